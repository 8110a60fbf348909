"""Requests: which values they take."""

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from vivavoce_engine import SpokenContext, SynthesisRequest
from vivavoce_engine.request import SEED_MAX, UtteranceOptions, draw_seed


def test_every_seed_that_is_drawn_may_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secrets.randbelow", lambda bound: bound - 1)
    assert draw_seed() == SEED_MAX
    monkeypatch.setattr("secrets.randbelow", lambda bound: 0)
    assert draw_seed() == 0
    assert [SynthesisRequest("Hello", seed=seed).seed for seed in (0, SEED_MAX)] == [0, SEED_MAX]
    for seed in (-1, SEED_MAX + 1):
        with pytest.raises(ValueError, match="seed"):
            SynthesisRequest("Hello", seed=seed)


def test_options_with_a_text_are_a_request() -> None:
    context = SpokenContext("Before.", np.zeros((2, 1), np.int16))
    options = UtteranceOptions(speaker="heart", seed=7, streaming_text=True, client="a", context=context)
    request = SynthesisRequest("Hello", speaker="heart", seed=7, streaming_text=True, client="a", context=context)
    assert options.with_text("Hello") == request
    assert isinstance(request, UtteranceOptions)
    assert pickle.loads(pickle.dumps(replace(request, context=None))) == replace(request, context=None)


@pytest.mark.parametrize(
    "wrong", [{"seed": -1}, {"max_frames": 0}, {"endless_frames": 0}, {"first_chunk_frames": 0}, {"max_wait_s": -1.0}]
)
def test_options_out_of_range_are_refused_with_and_without_a_text(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        UtteranceOptions(**wrong)
    with pytest.raises(ValueError, match=next(iter(wrong))):
        SynthesisRequest("Hello", **wrong)
