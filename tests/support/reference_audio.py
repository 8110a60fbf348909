"""Synthetic voices to clone, the same on every machine."""

from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

ReferenceName = Literal["short", "long", "short_44k"]
REFERENCES: tuple[ReferenceName, ...] = get_args(ReferenceName)
# Seconds, sample rate, and a seed that gives no near ties between codes.
_KIND: dict[ReferenceName, tuple[float, int, int]] = {
    "short": (2.3, 24000, 7),
    "long": (11.0, 24000, 7),  # longer than the 10 s window of the encoder's configuration
    "short_44k": (2.3, 44100, 1),
}


def reference_audio(name: ReferenceName) -> tuple[NDArray[np.float32], int]:
    """Two chirps, a slow tremolo and noise: (mono samples within -1..1, sample rate).

    The samples are whole 16-bit steps, so rounding of the sine functions does not matter.
    """
    seconds, rate, seed = _KIND[name]
    time = np.arange(round(seconds * rate)) / rate
    low = 0.3 * np.sin(2 * np.pi * (120 * time + 40 * time**2))
    high = 0.1 * np.sin(2 * np.pi * (1500 * time - 90 * time**2)) * (1 + np.sin(2 * np.pi * 3 * time))
    noise = np.random.PCG64(seed).random_raw(len(time)) / 2**63 - 1
    steps = np.round((low + high + 0.05 * noise) * 32768)
    return (steps / 32768).astype(np.float32), rate
