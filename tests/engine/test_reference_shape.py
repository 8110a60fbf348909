"""The shape of recordings that are cloned: one level, silence of one length at both ends, no fragment of a word."""

import numpy as np
import pytest
from vivavoce_engine.voices.reference_shape import (
    BLOCK_SAMPLES,
    KEPT_TAIL_S,
    LEAD_S,
    LEVEL_RMS,
    MOST_GAIN,
    PEAK,
    TAIL_S,
    NoSpeech,
    shaped,
)

from tests.support.recordings import Samples, voice_like

RATE = 24000
LEAD, TAIL, KEPT = (round(seconds * RATE) for seconds in (LEAD_S, TAIL_S, KEPT_TAIL_S))
VOICE = voice_like(1, 2.0)


def silence(seconds: float) -> Samples:
    return np.zeros(round(seconds * RATE), np.float32)


def body(found: Samples) -> Samples:
    """The samples between the two silences."""
    return found[LEAD : len(found) - TAIL]


def gain(found: Samples, given: Samples) -> float:
    return float(np.dot(found, given) / np.dot(given, given))


@pytest.mark.parametrize("lead_s", [0.0, 0.1, 0.2, 2.0])
@pytest.mark.parametrize("tail_s", [0.0, 0.1, 0.5, 2.0])
def test_both_silences_have_one_length(lead_s: float, tail_s: float) -> None:
    found = shaped(np.concatenate([silence(lead_s), VOICE, silence(tail_s)]))
    assert len(found) == LEAD + len(VOICE) + TAIL
    assert not found[:LEAD].any()
    assert not found[-TAIL:].any()
    factor = gain(body(found), VOICE)
    assert np.allclose(body(found), factor * VOICE, atol=1e-6)


@pytest.mark.parametrize("level", [0.1, 0.2, 1.0])
def test_the_speech_has_one_level(level: float) -> None:
    found = body(shaped(level * VOICE))
    assert abs(np.sqrt(np.mean(found**2)) / LEVEL_RMS - 1) < 0.02


def test_a_quiet_recording_is_lifted_by_20_db_and_no_more() -> None:
    quiet = 0.002 * VOICE / VOICE.std()
    assert np.isclose(gain(body(shaped(quiet)), quiet), MOST_GAIN)


def test_no_sample_is_clipped() -> None:
    peaked = VOICE.copy()
    peaked[RATE] = 3.9
    found = shaped(peaked)
    assert np.isclose(np.abs(found).max(), PEAK)


def test_pauses_and_quiet_beginnings_stay() -> None:
    """A voice that starts 40 dB below its loudest is a voice."""
    samples = np.concatenate([0.01 * VOICE, silence(1.0), VOICE])
    assert len(body(shaped(samples))) == len(samples)


def test_the_background_fades_out_behind_the_speech() -> None:
    noise = np.random.default_rng(1).normal(0, 1e-4, RATE).astype(np.float32)
    found = shaped(np.concatenate([VOICE, noise]))
    tail = found[-TAIL:]
    assert np.abs(tail[: KEPT // 2]).max() > 2 * np.abs(tail[KEPT * 9 // 10 : KEPT]).max() > 0
    assert not tail[KEPT:].any()


@pytest.mark.parametrize(
    ("pause_s", "fragment_s", "silence_s", "is_cut_off"),
    [
        (0.2, 0.1, 0.0, True),  # the beginning of the next word, where the recording breaks off
        (0.1, 0.24, 0.0, True),
        (0.2, 0.4, 0.0, False),  # a word
        (0.06, 0.1, 0.0, False),  # the stop inside a word
        (0.3, 0.06, 0.4, True),  # the click of a button
        (0.3, 0.24, 0.4, False),  # a short word
        (0.1, 0.06, 0.4, False),  # the end of a word, behind its stop
    ],
)
def test_a_fragment_at_the_end_is_cut_off(
    pause_s: float, fragment_s: float, silence_s: float, is_cut_off: bool
) -> None:
    fragment = voice_like(2, fragment_s)
    found = body(shaped(np.concatenate([VOICE, silence(pause_s), fragment, silence(silence_s)])))
    expected = len(VOICE) if is_cut_off else len(VOICE) + round(pause_s * RATE) + len(fragment)
    assert abs(len(found) - expected) <= BLOCK_SAMPLES


def test_nothing_of_a_fragment_is_left_in_a_noisy_room() -> None:
    noise = np.random.default_rng(3).normal(0, 1e-3, 4 * RATE).astype(np.float32)
    voices = np.concatenate([VOICE, silence(0.12), voice_like(2, 0.2)])
    found = shaped(voices + noise[: len(voices)])
    end = np.abs(found[LEAD + len(VOICE) + BLOCK_SAMPLES :])
    assert end.max() < 0.01


@pytest.mark.parametrize(
    ("samples", "reason"),
    [
        (silence(2.0), "is silent"),
        (np.full(2 * RATE, 0.5, np.float32), "is silent"),
        (np.concatenate([silence(1.0), VOICE[:4800], silence(1.0)]), "has 0.20 s that are not silent"),
    ],
)
def test_refused(samples: Samples, reason: str) -> None:
    with pytest.raises(NoSpeech, match=reason):
        shaped(samples)
