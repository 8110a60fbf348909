"""Input of the judges, whose networks are replaced by stand-ins."""

from types import SimpleNamespace

import numpy as np
import pytest
from numpy.typing import NDArray
from vivavoce_eval import judges

SCORES = {"ovrl_mos": 3.0, "sig_mos": 3.5, "bak_mos": 4.0, "p808_mos": 3.25}


@pytest.mark.parametrize(("speech_s", "window_s", "starts_s"), [(2.7, 9.01, [0.15, 3.15, 6.15]), (12.0, 12.3, [0.15])])
def test_an_utterance_is_judged_with_silence_at_both_ends(
    speech_s: float, window_s: float, starts_s: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[NDArray[np.float32]] = []

    def run(window: NDArray[np.float32], rate_hz: int) -> dict[str, float]:
        heard.append(window)
        return SCORES

    monkeypatch.setattr(judges, "need", lambda name: SimpleNamespace(run=run))
    opinion = judges.dnsmos(np.ones(round(speech_s * 16000), np.float32))
    assert opinion == judges.Opinion(3.0, 3.5, 4.0, 3.25)
    (window,) = heard
    assert len(window) == round(window_s * 16000)
    rises = np.flatnonzero(np.diff(window, prepend=window[:1]) > 0)
    assert rises.tolist() == [round(start_s * 16000) for start_s in starts_s]
