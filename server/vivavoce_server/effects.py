"""Changes of tempo and sample rate between the engine and the container.

They keep state between pieces, so the joined result does not depend on how the signal is cut.
"""

import ctypes
from collections.abc import Iterator
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


PIECE_S, TAIL_S = 0.01, 0.4
"""Seconds of a piece for atempo, and of the silence that pushes out what it holds back."""


class Effect(Protocol):
    """Transforms a stream of mono samples. `feed` may hold samples back until `flush`."""

    def feed(self, pcm: Samples) -> Samples: ...

    def flush(self) -> Samples: ...


class TimeStretch:
    """Changes the speed and keeps the pitch (FFmpeg's atempo).

    What atempo gives depends on the sizes of its pieces, and it gives up to 100 ms too little or too much at the end.
    It therefore gets pieces of one size, and silence behind the last one, and what it gives is cut to the length that
    the speed makes of the signal.
    """

    def __init__(self, speed: float, sample_rate: int) -> None:
        self._speed = speed
        self._sample_rate = sample_rate
        self._piece_samples = round(PIECE_S * sample_rate)
        self._waiting: Samples = np.zeros(0, np.float32)
        """Samples that do not fill a piece yet."""
        self._fed_samples = 0
        self._pushed_samples = 0
        self._made: Samples = np.zeros(0, np.float32)
        """Samples that atempo has given before their time."""
        self._given_samples = 0
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
        self._fed_samples += len(pcm)
        return self._stretched(pcm)

    def flush(self) -> Samples:
        stretched = self._stretched(np.zeros(round(TAIL_S * self._sample_rate), np.float32))
        missing = round(self._fed_samples / self._speed) - self._given_samples
        return np.concatenate([stretched, np.zeros(missing, np.float32)])

    def _stretched(self, pcm: Samples) -> Samples:
        """Returns the part of the stretched signal that these samples complete."""
        samples = np.concatenate([self._waiting, pcm])
        whole = len(samples) - len(samples) % self._piece_samples
        self._waiting = samples[whole:]
        made = [self._made]
        for start in range(0, whole, self._piece_samples):
            self._push(samples[start : start + self._piece_samples])
            made += self._pulled()
        joined = np.concatenate(made)
        due = round(self._fed_samples / self._speed) - self._given_samples
        given, self._made = joined[:due], joined[due:]
        self._given_samples += len(given)
        return given

    def _push(self, piece: Samples) -> None:
        self._graph.push(audio_frame(piece[np.newaxis, :], "flt", self._sample_rate, self._pushed_samples))
        self._pushed_samples += len(piece)

    def _pulled(self) -> Iterator[Samples]:
        """The frames that atempo has ready."""
        while True:
            try:
                frame = self._graph.pull()
            except BlockingIOError:  # nothing yet
                return
            assert isinstance(frame, av.AudioFrame)
            yield frame.to_ndarray()[0]


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
