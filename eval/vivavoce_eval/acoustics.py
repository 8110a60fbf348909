"""Faults of a 24 kHz waveform that are found without a model: silence, clipping, clicks."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vivavoce_eval.waves import FRAME_SAMPLES, RATE_HZ, Samples

LEVEL_WINDOW_SAMPLES = RATE_HZ // 100
SILENCE_BELOW_PEAK_DB = 40.0
SILENCE_FLOOR_DBFS = -60.0
CLIPPED = 0.999
CLICK_SURROUNDINGS_SAMPLES = RATE_HZ // 100
CLICK_ITSELF_SAMPLES = 4
ROUNDING = 2e-4
"""Largest second difference that 16-bit rounding causes."""
SEAM_SAMPLES = 3
"""Largest distance of a seam click from the edge of a frame."""


@dataclass(frozen=True, slots=True)
class Acoustics:
    """Figures of one utterance.

    `click` and `seam_click` are the largest outliers of the waveform's second difference, in multiples of the RMS
    around them: anywhere, and at the edges of codec frames. An outlier at such an edge is most likely caused by a seam.
    """

    duration_s: float
    leading_silence_s: float
    trailing_silence_s: float
    longest_pause_s: float
    clipped: float
    click: float
    seam_click: float


def listen(samples: Samples) -> Acoustics:
    """Measures one utterance. If it is silent, all of it counts as leading silence."""
    window_s = LEVEL_WINDOW_SAMPLES / RATE_HZ
    windows = -(-len(samples) // LEVEL_WINDOW_SAMPLES)
    loud = np.flatnonzero(_sounding(samples))
    first, last = (loud[0], loud[-1]) if len(loud) else (windows, windows - 1)
    outliers = click_outliers(samples)
    return Acoustics(
        duration_s=len(samples) / RATE_HZ,
        leading_silence_s=float(first * window_s),
        trailing_silence_s=float((windows - 1 - last) * window_s),
        longest_pause_s=float((np.diff(loud).max(initial=1) - 1) * window_s),
        clipped=float(np.mean(np.abs(samples) >= CLIPPED)) if len(samples) else 0.0,
        click=float(outliers.max(initial=0)),
        seam_click=float(_at_seams(outliers).max(initial=0)),
    )


def _sounding(samples: Samples) -> NDArray[np.bool_]:
    """True for each 10 ms that is not silent: louder than 40 dB below the loudest 10 ms, and than -60 dBFS."""
    padded = np.pad(samples, (0, -len(samples) % LEVEL_WINDOW_SAMPLES)).reshape(-1, LEVEL_WINDOW_SAMPLES)
    level_db = 10 * np.log10(np.mean(padded.astype(np.float64) ** 2, axis=1) + 1e-12)
    sounding: NDArray[np.bool_] = level_db > max(
        level_db.max(initial=SILENCE_FLOOR_DBFS) - SILENCE_BELOW_PEAK_DB, SILENCE_FLOOR_DBFS
    )
    return sounding


def click_outliers(samples: Samples) -> NDArray[np.float64]:
    """Second difference at each sample over its RMS in the 20 ms around. Entry n belongs to sample n + 1."""
    curvature = np.abs(np.diff(samples.astype(np.float64), 2))
    power = np.concatenate([[0.0], np.cumsum(curvature**2)])
    at = np.arange(len(curvature))

    def within(reach: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        start, stop = np.maximum(at - reach, 0), np.minimum(at + reach + 1, len(curvature))
        return power[stop] - power[start], stop - start

    around, around_count = within(CLICK_SURROUNDINGS_SAMPLES)
    itself, itself_count = within(CLICK_ITSELF_SAMPLES)
    rms = np.sqrt(np.maximum(around - itself, 0) / np.maximum(around_count - itself_count, 1))
    outliers: NDArray[np.float64] = curvature / (rms + ROUNDING)
    return outliers


def _at_seams(outliers: NDArray[np.float64]) -> NDArray[np.float64]:
    """Selects the outliers next to the edges of codec frames."""
    place = (np.arange(len(outliers)) + 1 + SEAM_SAMPLES) % FRAME_SAMPLES
    inner = (np.arange(len(outliers)) > FRAME_SAMPLES // 2) & (np.arange(len(outliers)) < len(outliers) - SEAM_SAMPLES)
    return outliers[(place <= 2 * SEAM_SAMPLES) & inner]
