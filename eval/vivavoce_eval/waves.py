"""Sound as arrays: mono float32 in [-1, 1]."""

import wave
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from vivavoce_eval.errors import Unusable
from vivavoce_eval.extras import need

Samples = NDArray[np.float32]
RATE_HZ = 24_000
JUDGE_RATE_HZ = 16_000
FRAME_SAMPLES = 1920
"""Samples of a codec frame, 80 ms. Pieces of speech that were decoded separately join at multiples of it."""
SHORTEST_S = 0.2
"""Least speech that judges accept, in seconds."""


def from_pcm(pcm: bytes) -> Samples:
    """Converts 16-bit little-endian mono PCM to samples."""
    return np.frombuffer(pcm, "<i2").astype(np.float32) / np.float32(32768)


def read_wav(path: Path) -> Samples:
    """Reads a mono 16-bit WAV file of 24 kHz.

    Raises:
        Unusable: the file is another kind of sound.
    """
    with wave.open(str(path)) as file:
        kind = (file.getnchannels(), file.getsampwidth(), file.getframerate())
        if kind != (1, 2, RATE_HZ):
            raise Unusable(f"{path}: channels, bytes a sample and rate are {kind}, not (1, 2, {RATE_HZ})")
        return from_pcm(file.readframes(file.getnframes()))


def write_wav(target: Path | BinaryIO, samples: Samples) -> None:
    with wave.open(str(target) if isinstance(target, Path) else target, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE_HZ)
        file.writeframes(np.rint(np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())


def for_judges(samples: Samples) -> Samples:
    """Resamples to 16 kHz, clips to [-1, 1], and pads to the least length that judges accept."""
    missing = max(0, int(SHORTEST_S * RATE_HZ) - len(samples))
    resampled = need("soxr").resample(np.pad(samples, (0, missing)), RATE_HZ, JUDGE_RATE_HZ)
    return np.clip(np.asarray(resampled, np.float32), -1, 1)
