"""Heads that follow a text, the choice among them, and the offset that silences tell."""

import numpy as np
import pytest
from vivavoce_engine.batching.word_times import Sound
from vivavoce_engine.text.words import TextWord
from vivavoce_eval.align import refusal
from vivavoce_eval.attention import Scores
from vivavoce_eval.heads import Head, choose, deviations_of, follow, with_offset

TOKENS, FRAMES_PER_TOKEN = 40, 3


def head(number: int, whole: float, streaming: float, offset_ms: int | None = None, spread_ms: int = 0) -> Head:
    return Head(2, number, whole, streaming, 9, offset_ms, None if offset_ms is None else spread_ms)


def scores(known_from: int = TOKENS) -> Scores:
    """A head that looks at the token that sounds, and one that looks at no token more than at another.

    Each token sounds for three frames. The tokens from `known_from` on get their places later, one with each frame.
    """
    frames = TOKENS * FRAMES_PER_TOKEN
    found = np.zeros((2, frames, TOKENS + 1), np.float32)
    for frame in range(frames):
        found[0, frame, frame // FRAMES_PER_TOKEN] = 12
        found[:, frame, known_from + frame :] = -np.inf
    return found


@pytest.mark.parametrize("known_from", [TOKENS + 1, 1])
def test_the_path_of_each_head_is_its_own(known_from: int) -> None:
    following, blind = follow(scores(known_from), TOKENS)
    expected = FRAMES_PER_TOKEN * np.arange(TOKENS + 1)
    assert np.abs(np.array(following.starts) - expected).max() < 0.1, "also behind the window's 32 tokens"
    assert np.mean(following.log_weights) > -0.1
    assert np.mean(blind.log_weights) < -1.5


def sound(*loud_ms: range) -> Sound:
    """Two seconds that sound in these ms, in frames of 80 ms with 1920 samples."""
    pcm = np.zeros(25 * 1920, np.float32)
    for ms in loud_ms:
        pcm[24 * ms.start : 24 * ms.stop] = 0.3
    found = Sound()
    found.add(pcm, 25)
    return found


def test_words_behind_a_sign_are_compared_with_the_end_of_the_silence() -> None:
    words = [TextWord(0, 2, 0, 1, sign=False), TextWord(3, 6, 1, 2, sign=True), TextWord(7, 9, 3, 4, sign=False)]
    heard = sound(range(100, 600), range(900, 1500))
    starts_s = np.array([0.1, 0.3, 0.62, 0.85, 1.5])
    assert deviations_of(words, starts_s, heard, 0.01) == pytest.approx([-50])
    assert deviations_of(words, starts_s, sound(range(100, 600), range(700, 1500)), 0.01) == [], "too short a silence"
    assert deviations_of(words, starts_s, sound(range(100, 600)), 0.01) == [], "a silence without an end"


def test_the_worse_layout_counts() -> None:
    assert head(0, -0.1, -0.9).score == -0.9
    assert choose([head(0, -0.1, -0.9, -1, 1), head(1, -0.8, -0.2, -1, 1)]) is None


def test_the_head_nearest_to_the_silences_is_chosen() -> None:
    ahead, exact, none = head(1, -0.1, -0.1, -300, 40), head(2, -0.5, -0.5, -50, 60), head(3, -0.1, -0.1)
    assert choose([ahead, exact, none]) is exact


def test_too_few_silences_are_refused_in_their_own_words() -> None:
    assert with_offset(head(0, -0.1, -0.1), [1.0] * 4).offset_ms is None
    assert "the speech has 9" in refusal([head(0, -0.1, -0.1)])
    measured = with_offset(head(0, -0.1, -0.1), [-70.0, -50.0, -40.0, -30.0, 200.0])
    assert (measured.silences, measured.offset_ms, measured.spread_ms) == (5, -40, 20)
