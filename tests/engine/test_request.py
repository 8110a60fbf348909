"""Requests: which values they take."""

import pytest
from vivavoce_engine import SynthesisRequest
from vivavoce_engine.request import SEED_MAX, draw_seed


def test_every_seed_that_is_drawn_may_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secrets.randbelow", lambda bound: bound - 1)
    assert draw_seed() == SEED_MAX
    monkeypatch.setattr("secrets.randbelow", lambda bound: 0)
    assert draw_seed() == 0
    assert [SynthesisRequest("Hello", seed=seed).seed for seed in (0, SEED_MAX)] == [0, SEED_MAX]
    for seed in (-1, SEED_MAX + 1):
        with pytest.raises(ValueError, match="seed"):
            SynthesisRequest("Hello", seed=seed)
