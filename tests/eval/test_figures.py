"""Figures of a run, and the file that keeps them."""

import json
from itertools import combinations, product
from pathlib import Path

import numpy as np
import pytest
from vivavoce_eval.errors import Unusable
from vivavoce_eval.figures import Run, figures_of, load, save, voices_of

from tests.support.sounds import row


def test_error_rates_count_words_not_sentences() -> None:
    rows = [row(), row(category="word", wrong_words=1, words=1), row(wrong_words=3, words=15)]
    figures = figures_of(rows)
    assert figures.word_error_rate == pytest.approx(100 * 4 / 20)
    assert figures.by_category == {"plain": pytest.approx(100 * 3 / 19), "word": 100}


def test_pace_leaves_silence_out() -> None:
    slow = row(duration_s=2.4, leading_silence_s=0.3, trailing_silence_s=0.1, text="twenty letters, yes.")
    assert figures_of([slow]).s_per_character == pytest.approx(2.0 / 20)


def test_silences_are_medians() -> None:
    rows = [row(leading_silence_s=0.01 * n, trailing_silence_s=0.1 * n) for n in (1, 2, 9)]
    assert (figures_of(rows).leading_silence_s, figures_of(rows).trailing_silence_s) == (0.02, 0.2)


def test_no_rows_are_no_figures() -> None:
    with pytest.raises(Unusable, match="no sentence"):
        figures_of([])


def test_cosines_follow_from_the_mean_embedding() -> None:
    random = np.random.default_rng(1)
    vectors = random.standard_normal((7, 16)).astype(np.float32) + 0.5
    vectors = np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)
    speakers = ["a", "a", "a", "a", "b", "b", "b"]
    rows = [row(speaker=name, f0_hz=100.0 + number) for number, name in enumerate(speakers)]
    rows.append(row(speaker="b", f0_hz=None))
    voices = voices_of(rows, [*vectors, None])
    own = [float(x @ y) for x, y in combinations(vectors[:4], 2)]
    others = [float(x @ y) for x, y in product(vectors[:4], vectors[4:])]
    assert voices["a"].same == pytest.approx(np.mean(own), abs=1e-5)
    assert voices["a"].different(voices["b"]) == pytest.approx(np.mean(others), abs=1e-5)
    assert (voices["a"].f0_hz, voices["b"].f0_hz) == (101.5, 105.0)


def test_one_utterance_tells_nothing_of_likeness() -> None:
    vector = np.full(4, 0.5, np.float32)
    assert voices_of([row()], [vector])["heart"].same is None


def test_a_run_comes_back_as_it_was_kept(tmp_path: Path) -> None:
    rows = (row(), row(number=4, text="Another.", f0_hz=None, heard="ümlaut", likest=None, likeness=None))
    run = Run({"note": "test"}, rows, voices_of(rows, [np.full(4, 0.5, np.float32)] * 2))
    save(run, tmp_path / "run.json")
    again = load(tmp_path / "run.json")
    assert again.rows == rows
    assert again.about == run.about
    np.testing.assert_allclose(again.voices["heart"].embedding, 0.5)
    assert json.loads((tmp_path / "run.json").read_text())["figures"]["sentences"] == 2
    assert [found.number for found in again.rows_shared_with([row(text="Another."), row(text="Unknown.")])] == [4]


@pytest.mark.parametrize("content", ["[]", "{}", "no JSON", '{"about": {}, "voices": {}, "rows": [{"number": 1}]}'])
def test_another_file_is_named(tmp_path: Path, content: str) -> None:
    file = tmp_path / "other.json"
    file.write_text(content)
    with pytest.raises(Unusable, match=r"other\.json"):
        load(file)
