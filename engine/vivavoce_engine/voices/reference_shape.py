"""The shape of a recording that is cloned: its level, its silence at both ends, and an end that is no piece of a word.

Speech goes on from a recording as if the two were one. A recording that breaks off in a word, or ends in the click of a
button, is heard at the beginning of the speech. So such an end is cut off, and silence follows.
"""

import numpy as np
from numpy.typing import NDArray

from vivavoce_engine.checkpoint.files import REFERENCE_SAMPLE_RATE

Samples = NDArray[np.float32]

MIN_SPEECH_S = 0.6
"""Least seconds from the first sound to the last."""
BLOCK_S = 0.02
BLOCK_SAMPLES = round(BLOCK_S * REFERENCE_SAMPLE_RATE)
SILENCE_STD = 1e-3
"""Standard deviation within a block, -60 dB. A file in which no block reaches it is silent."""
TRIM_RATIO = 10 ** (-50 / 20)
"""Blocks below the loudest block times this, -50 dB, are silence at both ends."""
SPEECH_RATIO = 10 ** (-30 / 20)
"""Blocks below the loudest block times this, -30 dB, are pauses."""
LEAD_S = 0.2
"""Silence before the speech."""
TAIL_S = 0.5
"""Silence behind the speech."""
KEPT_TAIL_S = 0.1
"""The part of it that is the recording's own. It fades out."""
CUT_PAUSE_S, CUT_MOST_S = 0.1, 0.25
"""A fragment at the end of a recording that breaks off: least pause before it, and its greatest length."""
NOISE_PAUSE_S, NOISE_MOST_S = 0.2, 0.1
"""A fragment at the end of a recording that falls silent behind it, such as a click; likewise."""
LEVEL_RMS = 0.1
"""Level of the speech, -20 dB."""
PEAK = 0.95
"""Largest sample, if that allows the level."""
MOST_GAIN = 10.0
"""Greatest gain, 20 dB: more would lift the noise of a quiet recording to that of a room."""


class NoSpeech(ValueError):
    """The recording has too little sound. The message completes "the reference audio ..."."""


def shaped(samples: Samples) -> Samples:
    """samples [n] float32 at 24 kHz, at least a block → the recording as it is cloned, [m] float32.

    Raises:
        NoSpeech: it is silent, or its speech is shorter than MIN_SPEECH_S.
    """
    assert samples.ndim == 1
    assert len(samples) >= BLOCK_SAMPLES
    levels = block_levels(samples)
    if levels.max() < SILENCE_STD:
        raise NoSpeech("is silent")
    start, stop, end = (at * BLOCK_SAMPLES for at in speech_span(levels))
    if end == len(levels) * BLOCK_SAMPLES:  # what is no whole block belongs to the last one
        stop, end = len(samples) if stop == end else stop, len(samples)
    if stop - start < MIN_SPEECH_S * REFERENCE_SAMPLE_RATE:
        heard_s = (stop - start) / REFERENCE_SAMPLE_RATE
        raise NoSpeech(f"has {heard_s:.2f} s that are not silent; at least {MIN_SPEECH_S:g} s are needed")
    return framed(samples[:end] * np.float32(gain_of(samples[start:stop], levels)), start, stop)


def block_levels(samples: Samples) -> NDArray[np.float32]:
    """Standard deviation of each whole block, [blocks]."""
    blocks = samples[: len(samples) // BLOCK_SAMPLES * BLOCK_SAMPLES].reshape(-1, BLOCK_SAMPLES)
    levels: NDArray[np.float32] = blocks.std(axis=1)
    return levels


def speech_span(levels: NDArray[np.float32]) -> tuple[int, int, int]:
    """The first block of the speech, the one behind its last, and the one from which nothing is used.

    The last one is that of a fragment, or the end.
    """
    audible, spoken = (np.flatnonzero(levels >= ratio * levels.max()) for ratio in (TRIM_RATIO, SPEECH_RATIO))
    start, stop, end = int(audible[0]), int(audible[-1]) + 1, len(levels)
    pauses = np.diff(spoken) - 1
    long_ones = np.flatnonzero(pauses >= blocks_of(CUT_PAUSE_S))
    if not len(long_ones):
        return start, stop, end
    last_word = int(spoken[long_ones[-1]])
    fragment = last_word + 1 + int(pauses[long_ones[-1]])
    breaks_off = spoken[-1] == end - 1
    least_s, most_s = (CUT_PAUSE_S, CUT_MOST_S) if breaks_off else (NOISE_PAUSE_S, NOISE_MOST_S)
    if fragment - last_word - 1 < blocks_of(least_s) or spoken[-1] + 1 - fragment > blocks_of(most_s):
        return start, stop, end
    audible = audible[audible < fragment]
    return start, int(audible[-1]) + 1, fragment


def blocks_of(seconds: float) -> int:
    return round(seconds / BLOCK_S)


def gain_of(speech: Samples, levels: NDArray[np.float32]) -> float:
    """The factor that brings speech to LEVEL_RMS. `levels` are those of the whole recording's blocks."""
    loud = levels[levels >= SPEECH_RATIO * levels.max()]
    level = float(np.sqrt(np.mean(np.square(loud, dtype=np.float64))))
    return min(LEVEL_RMS / level, PEAK / float(np.abs(speech).max()), MOST_GAIN)


def framed(samples: Samples, start: int, stop: int) -> Samples:
    """The samples [start, stop) between LEAD_S and TAIL_S of silence, of which the nearest part is their own."""
    lead, tail, kept = (round(each * REFERENCE_SAMPLE_RATE) for each in (LEAD_S, TAIL_S, KEPT_TAIL_S))
    before, behind = samples[max(0, start - lead) : start], samples[stop : stop + kept]
    faded = behind * np.linspace(1, 0, len(behind), dtype=np.float32)
    silence = np.zeros(tail - len(behind), np.float32)
    return np.concatenate([np.zeros(lead - len(before), np.float32), before, samples[start:stop], faded, silence])
