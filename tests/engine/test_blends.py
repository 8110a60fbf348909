"""Mixes of voices: notation and arithmetic."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from vivavoce_engine import Rejected
from vivavoce_engine.embeddings import EMBEDDING_MAX
from vivavoce_engine.voices.blends import MAX_CHARS, MAX_PARTS, blend_embeddings, embedding_of, parse_blend


@pytest.mark.parametrize(
    ("voice", "parts"),
    [
        ("a(2)+b(1)", [("a", 2.0), ("b", 1.0)]),
        ("a+b", [("a", 1.0), ("b", 1.0)]),
        ("heart(0.3)+uncle_fu(.7)", [("heart", 0.3), ("uncle_fu", 0.7)]),
        (" a (2) + b ( 1.5 ) ", [("a", 2.0), ("b", 1.5)]),
        ("My Voice(3)", [("My Voice", 3.0)]),
        ("alone", [("alone", 1.0)]),
        ("a+a(2)", [("a", 1.0), ("a", 2.0)]),
    ],
)
def test_notation(voice: str, parts: list[tuple[str, float]]) -> None:
    assert parse_blend(voice) == parts


@pytest.mark.parametrize(
    "voice",
    [
        *("", " ", "+", "a+", "+a", "a++b", "a(", "a)", "a()", "a(2", "(2)", "a(1)b", "a(1)(2)"),
        *("a(x)", "a(-1)+b", "a(0)+b", "a(nan)", "a(inf)", "a(1e3)", "a(٣)", f"a({'9' * 400})"),
        "+".join("a" * (MAX_PARTS + 1)),
        f"a{' ' * MAX_CHARS}(",
    ],
)
def test_what_is_no_mix(voice: str) -> None:
    with pytest.raises(Rejected) as refusal:
        parse_blend(voice)
    assert refusal.value.param == "speaker"


def test_weights_are_shares() -> None:
    mixed = blend_embeddings([[1.0, 0.0], [0.0, 1.0]], [2, 1])
    assert mixed.dtype == np.float32
    assert np.allclose(mixed, [2 / 3, 1 / 3], atol=1e-7)


@given(
    st.lists(st.lists(st.floats(-100, 100), min_size=3, max_size=3), min_size=1, max_size=5),
    st.floats(1e-3, 1e3),
    st.data(),
)
def test_a_mix_lies_among_its_voices_whatever_the_scale_of_the_weights(
    embeddings: list[list[float]], scale: float, data: st.DataObject
) -> None:
    weights = data.draw(
        st.lists(st.floats(0.01, 100), min_size=len(embeddings), max_size=len(embeddings)), label="weights"
    )
    mixed = blend_embeddings(embeddings, weights)
    low, high = np.min(embeddings, axis=0), np.max(embeddings, axis=0)
    assert (mixed >= low - 1e-4).all()
    assert (mixed <= high + 1e-4).all()
    assert np.allclose(mixed, blend_embeddings(embeddings, [scale * weight for weight in weights]), atol=1e-4)


def test_a_voice_mixed_with_itself_is_itself() -> None:
    voice = np.random.default_rng(1).normal(size=64).astype(np.float32)
    assert np.allclose(blend_embeddings([voice, voice], [3, 0.1]), voice, rtol=1e-6)
    assert np.array_equal(blend_embeddings([voice], [7]), voice)


@pytest.mark.parametrize(
    ("embeddings", "weights"),
    [
        ([], []),
        ([[1.0]], [1, 2]),
        ([[1.0], [2.0]], [1, 0]),
        ([[1.0], [2.0]], [1, -1]),
        ([[1.0], [2.0]], [1, float("nan")]),
        ([[1.0], [2.0]], [1, float("inf")]),
        ([[1.0], [1.0, 2.0]], [1, 1]),
        ([[1.0], [float("nan")]], [1, 1]),
        ([[1.0], [EMBEDDING_MAX + 1.0]], [1, 1]),
    ],
)
def test_what_cannot_be_mixed(embeddings: list[list[float]], weights: list[float]) -> None:
    with pytest.raises(Rejected) as refusal:
        blend_embeddings(embeddings, weights)
    assert refusal.value.param == "reference"


@pytest.mark.parametrize(
    "values",
    [
        *([], [[1.0]], 1.0, {}, "1", [[1.0], [1.0, 2.0]], ["a"], [None]),
        *([float("nan")], [float("inf")], [1e39], [10**400], [0.0, -EMBEDDING_MAX - 1.0]),
    ],
)
def test_what_is_no_embedding(values: object) -> None:
    with pytest.raises(Rejected) as refusal:
        embedding_of(values)  # type: ignore[arg-type]
    assert refusal.value.param == "reference"


def test_the_largest_values_are_an_embedding() -> None:
    largest = [float(EMBEDDING_MAX), -float(EMBEDDING_MAX)]
    assert embedding_of(largest).tolist() == blend_embeddings([largest, largest], [1, 3]).tolist() == largest
