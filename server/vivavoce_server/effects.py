"""Changes of tempo and sample rate between the engine and the container.

They keep state between pieces, so the joined result does not depend on how the signal is cut.
"""

import ctypes
from contextlib import suppress
from fractions import Fraction
from typing import Protocol

import av
import av.filter
import numpy as np
import soxr
from numpy.typing import NDArray

# FFmpeg starts one thread per core for each codec and filter, and PyAV puts a filter before every encoder. Listeners
# are many, and the audio of each is little work. FFmpeg is therefore told that there is one core.
with suppress(AttributeError, OSError):  # if the library hides its symbols, its threads remain
    ctypes.CDLL(av._core.__file__).av_cpu_force_count(1)

Samples = NDArray[np.float32]
SLOWEST_STEP, FASTEST_STEP = 0.5, 2.0
"""Limits of one atempo step. Beyond them atempo would skip samples, so a wider change takes several steps."""


class Effect(Protocol):
    """Transforms a stream of mono samples. `feed` may hold samples back until `flush`."""

    def feed(self, pcm: Samples) -> Samples: ...

    def flush(self) -> Samples: ...


class TimeStretch:
    """Changes the speed and keeps the pitch (FFmpeg's atempo)."""

    def __init__(self, speed: float, sample_rate: int) -> None:
        self._sample_rate = sample_rate
        self._fed_samples = 0
        self._graph = av.filter.Graph()
        last = self._graph.add_abuffer(
            format="flt", sample_rate=sample_rate, layout="mono", time_base=Fraction(1, sample_rate)
        )
        for step in tempo_steps(speed):
            tempo = self._graph.add("atempo", str(step))
            last.link_to(tempo)
            last = tempo
        last.link_to(self._graph.add("abuffersink"))
        self._graph.configure()

    def feed(self, pcm: Samples) -> Samples:
        frame = audio_frame(pcm[np.newaxis, :], "flt", self._sample_rate, self._fed_samples)
        self._fed_samples += len(pcm)
        self._graph.push(frame)
        return self._pull()

    def flush(self) -> Samples:
        self._graph.push(None)
        return self._pull()

    def _pull(self) -> Samples:
        pieces: list[Samples] = [np.zeros(0, np.float32)]
        while True:
            try:
                frame = self._graph.pull()
            except (BlockingIOError, EOFError):  # nothing yet, and nothing more
                return np.concatenate(pieces)
            assert isinstance(frame, av.AudioFrame)
            pieces.append(frame.to_ndarray()[0])


def tempo_steps(speed: float) -> list[float]:
    """Factors within atempo's range whose product is `speed`."""
    steps: list[float] = []
    while speed < SLOWEST_STEP:
        steps.append(SLOWEST_STEP)
        speed /= SLOWEST_STEP
    while speed > FASTEST_STEP:
        steps.append(FASTEST_STEP)
        speed /= FASTEST_STEP
    return [*steps, speed]


class Resampler:
    """Converts the sample rate (soxr at high quality). Rates are in Hz."""

    def __init__(self, rate_in: int, rate_out: int) -> None:
        self._stream = soxr.ResampleStream(rate_in, rate_out, 1, dtype="float32", quality="HQ")

    def feed(self, pcm: Samples) -> Samples:
        resampled: Samples = self._stream.resample_chunk(pcm)
        return resampled

    def flush(self) -> Samples:
        tail: Samples = self._stream.resample_chunk(np.zeros(0, np.float32), last=True)
        return tail


def audio_frame(
    planes: Samples | NDArray[np.int16], sample_format: str, sample_rate: int, first_sample: int
) -> av.AudioFrame:
    """FFmpeg's frame of mono samples [1, samples]; `first_sample` is its position in the stream, in samples."""
    frame = av.AudioFrame.from_ndarray(planes, format=sample_format, layout="mono")
    frame.sample_rate = sample_rate
    frame.time_base = Fraction(1, sample_rate)
    frame.pts = first_sample
    return frame
