"""The speed of this machine with a model that is not loaded: a trial of its products, and the work of a frame.

The trial runs the kernels over weights of the model's size, for about a second, on the threads that would speak. It
leaves out prompts, the host's work and whatever else the machine does, so a stream counts only where a frame leaves a
fifth of its time.
"""

import ctypes
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np

from vivavoce_engine.cpu.library import BFLOAT16, INT8, INT11, Library, Matrix
from vivavoce_engine.cpu.threads import Threads
from vivavoce_engine.cpu.work import Work

STREAMS = (1, 2, 4, 8, 16, 32, 64)
"""Streams at once that are tried, until a frame takes longer than its sound."""
CONTEXT = 200
"""Positions before a frame: a prompt and about ten seconds of speech."""
FRAME_MS = 80.0
BUSY = 0.8
"""Largest share of a frame's time that its computing may take."""
INPUTS, OUTPUTS = 1024, 4096
"""A product of the trial, about as large as the average one of a released model."""
WINDOW, CHANNELS, STEPS = 7 * 384, 384, 48
"""Inputs, outputs and rows of a product of Code2Wav."""
INT8_INPUTS = 64
SINE_PRODUCTS = 150
"""Multiply-adds that take as long as a sine and the moves around it."""
MOST_BYTES = 512_000_000
"""Most memory of the weights of a trial. The rest of a larger model is read as fast."""
ROUNDS, LEAST_S = 3, 0.05
"""Least number of a trial's rounds, and the seconds that they take at least."""
ORDINARY = 0x03
"""A byte that makes ordinary weights: 3 as INT8, 771 of 1023 as INT11, 4e-37 as bfloat16, no denormal."""
BYTES_OF = {BFLOAT16: 2.0, INT8: 1 + 4 / INT8_INPUTS}
"""Kind of weights → bytes of a weight, its share of a scale included."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """Milliseconds in which one frame of each of a number of streams would be computed, by that number."""

    frame_ms: Mapping[int, float]

    @property
    def rtf(self) -> float:
        """Time of a lone stream over the time of its sound."""
        return self.frame_ms[1] / FRAME_MS

    @property
    def streams(self) -> int:
        """The most streams that would be in real time; 0 if not even one would be."""
        known = sorted(self.frame_ms.items())
        budget_ms, most = BUSY * FRAME_MS, 0
        for (few, few_ms), (many, many_ms) in zip([(0, 0.0), *known], known, strict=False):
            if few_ms <= budget_ms:
                share = min(1.0, (budget_ms - few_ms) / max(many_ms - few_ms, 1e-9))
                most = max(most, few + int(share * (many - few)))
        return most

    def __str__(self) -> str:
        took_ms = self.frame_ms[1]
        speed = f"about {took_ms:.{1 if took_ms < 10 else 0}f} ms for a frame of {FRAME_MS:.0f} ms"
        if self.streams:
            return f"{speed}, enough for {self.streams} stream{'s' * (self.streams > 1)} at once"
        return f"{speed}, " + ("without the reserve of real time" if took_ms < FRAME_MS else "too slow for real time")


def forecast(library: Library, work: Work, kind: int, threads: Threads) -> Forecast:
    """Tries products of this kind, and adds up what a frame of this work would take on these threads."""
    with Trial(library, kind, threads.together, min(MOST_BYTES, int(work.talker_weights * BYTES_OF[kind]))) as trial:
        read_s = trial.weight_s(1, work.talker_weights) / BYTES_OF[kind]
        code2wav_s = (work.code2wav_products + SINE_PRODUCTS * work.code2wav_sines) * trial.multiply_add_s()
        context_s = CONTEXT * work.position_bytes * read_s
        frame_ms: dict[int, float] = {}
        for streams in STREAMS:
            predictor_s = work.passes * trial.weight_s(streams, work.predictor_weights) * work.predictor_weights
            talker_s = trial.weight_s(streams, work.talker_weights) * work.talker_weights
            made_s = predictor_s + talker_s + streams * context_s
            frame_ms[streams] = 1000 * _together_s(made_s, streams, code2wav_s, threads.beside)
            if frame_ms[streams] > FRAME_MS:
                break
    return Forecast(frame_ms)


def _together_s(made_s: float, streams: int, code2wav_s: float, beside: int) -> float:
    """Seconds of a frame of all streams, of which each is decoded in `code2wav_s`, by `beside` threads."""
    if not beside:
        return made_s + streams * code2wav_s
    return max(made_s, code2wav_s, (made_s + streams * code2wav_s) / (1 + beside))


class Trial:
    """Products of a number of threads with weights of one kind, in memory of a number of bytes."""

    def __init__(self, library: Library, kind: int, threads: int, size: int) -> None:
        self._library, self._kind = library, kind
        count = max(1, round(size / (INPUTS * OUTPUTS * BYTES_OF[kind])))
        self.weights = count * INPUTS * OUTPUTS
        self._packed = np.full(self.weights * (2 if kind == BFLOAT16 else 1), ORDINARY, np.uint8)
        self._scales = np.full(self.weights // INT8_INPUTS, 0.01, np.float32)
        self._matrices = [self._matrix(number) for number in range(count)]
        rows = max(*STREAMS, STEPS)
        self._x, self._out = np.full(rows * WINDOW, 0.5, np.float32), np.zeros(rows * OUTPUTS, np.float32)
        self._pool = library.functions.vivavoce_pool(threads)  # None for one thread

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._library.functions.vivavoce_pool_end(self._pool)

    def _matrix(self, number: int) -> Matrix:
        first = number * INPUTS * OUTPUTS
        packed = self._packed.ctypes.data + first * self._packed.itemsize * (2 if self._kind == BFLOAT16 else 1)
        scales = self._scales.ctypes.data + first // INT8_INPUTS * self._scales.itemsize
        return Matrix(packed, scales, None, INPUTS, OUTPUTS, self._kind, INT8_INPUTS)

    def weight_s(self, rows: int, weights: int) -> float:
        """Seconds of a weight in products of this many rows, which read this many weights over and over."""
        used = self._matrices[: max(1, round(weights / (INPUTS * OUTPUTS)))]
        return self._best_s([(matrix, rows) for matrix in used]) / (len(used) * INPUTS * OUTPUTS)

    def multiply_add_s(self) -> float:
        """Seconds of a multiply-add in a product like those of Code2Wav."""
        kind = INT11 if self._kind == INT8 else BFLOAT16  # as packing.py has it
        matrix = Matrix(self._packed.ctypes.data, self._scales.ctypes.data, None, WINDOW, CHANNELS, kind, INT8_INPUTS)
        return self._best_s([(matrix, STEPS)]) / (WINDOW * CHANNELS * STEPS)

    def _best_s(self, products: list[tuple[Matrix, int]]) -> float:
        """The sum of the shortest times of these products in several rounds, which leaves out other programs' turns."""
        shortest_s = [math.inf] * len(products)
        started_s, rounds = time.perf_counter(), 0
        while rounds < ROUNDS or time.perf_counter() < started_s + LEAST_S:
            for number, (matrix, rows) in enumerate(products):
                begun_s = time.perf_counter()
                self._run(matrix, rows)
                shortest_s[number] = min(shortest_s[number], time.perf_counter() - begun_s)
            rounds += 1
        return sum(shortest_s)

    def _run(self, matrix: Matrix, rows: int) -> None:
        x, out = self._x.ctypes.data, self._out.ctypes.data
        inputs, outputs = matrix.inputs, matrix.outputs
        product = self._library.functions.vivavoce_product
        self._library.check(
            product(ctypes.addressof(matrix), self._pool, x, inputs, rows, 1, inputs, None, out, outputs)
        )
