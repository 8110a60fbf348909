"""Sound and rows for the tests of the judges, made without a model."""

from dataclasses import replace

import numpy as np
from vivavoce_eval.hearing import Row
from vivavoce_eval.waves import FRAME_SAMPLES, RATE_HZ, Samples


def speechlike(frames: int, seed: int = 0) -> Samples:
    """A hum with harmonics that grows and fades three times a second, between silences of 100 ms."""
    random = np.random.default_rng(seed)
    length = frames * FRAME_SAMPLES
    time_s = np.arange(length) / RATE_HZ
    hum = sum(np.sin(2 * np.pi * 120 * k * time_s + random.uniform(0, 6)) / k for k in range(1, 20))
    swell = 0.35 + 0.3 * np.sin(2 * np.pi * 3 * time_s) ** 2
    silence = RATE_HZ // 10
    swell[:silence] = swell[-silence:] = 0
    ramp = np.convolve(swell, np.hanning(481) / np.hanning(481).sum(), mode="same")  # no clicks of its own
    sound = 0.1 * hum * ramp + 1e-4 * random.standard_normal(length)
    return np.asarray(np.rint(sound * 32767) / 32768, np.float32)


CLEAN = Row(
    number=3,
    category="plain",
    speaker="heart",
    text="The birch canoe slid.",
    truth="the birch canoe slid",
    heard="the birch canoe slid",
    wrong_words=0,
    words=4,
    stopped=True,
    duration_s=2.0,
    leading_silence_s=0.1,
    trailing_silence_s=0.2,
    longest_pause_s=0.1,
    clipped=0.0,
    click=9.0,
    seam_click=3.0,
    f0_hz=190.0,
    voiced=0.6,
    ovrl=3.2,
    sig=3.5,
    bak=4.0,
    p808=3.7,
    likest="heart",
    likeness=0.9,
)


def row(**changes: object) -> Row:
    """A clean row, except for these fields."""
    return replace(CLEAN, **changes)  # type: ignore[arg-type]
