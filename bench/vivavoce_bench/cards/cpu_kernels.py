"""The CPU's kernels at the released shapes, by threads and streams, without a checkpoint: random weights in memory.

    python -m vivavoce_bench.cards.cpu_kernels --sizes 0.6b 1.7b --dtypes int8 bfloat16 --threads 2 4 8 16 \\
        --streams 1 4 16 --out kernels.json

It measures what a frame costs: talker and code predictor for all streams, and Code2Wav for each. Prompts, the loop and
the server are left out. The time of Code2Wav is that of all streams. The whole run stops after --minutes, and says so.
The last line is the JSON document.
"""

import argparse
import ctypes
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from vivavoce_engine.checkpoint.files import Checkpoint
from vivavoce_engine.checkpoint.networks import CodecDecoderConfig, TalkerConfig
from vivavoce_engine.config import EngineConfig
from vivavoce_engine.cpu import library as c
from vivavoce_engine.cpu.decoders import Decoders, Job
from vivavoce_engine.cpu.decoding import Decoding, Scratch
from vivavoce_engine.cpu.forecast import CONTEXT, FRAME_MS, forecast
from vivavoce_engine.cpu.native_runner import RowArrays
from vivavoce_engine.cpu.packing import WHOLE_MAX, Embeddings, Packer, WeightsDtype, address, pack
from vivavoce_engine.cpu.threads import Threads, usable_cores
from vivavoce_engine.cpu.work import RELEASED
from vivavoce_engine.device import cpu_model
from vivavoce_engine.models.code_predictor import CodePredictor
from vivavoce_engine.models.codec_decoder import CodecDecoder
from vivavoce_engine.models.loader import SkipInit
from vivavoce_engine.models.talker import Talker
from vivavoce_engine.request import SamplingParams

from vivavoce_bench.cards.random_codec import RELEASED_CODEC
from vivavoce_bench.cards.shapes import talker_config
from vivavoce_bench.engine.machine import resident_mb

POSITIONS = CONTEXT + 312
"""Places of a stream in the talker's cache: more than all rounds take."""
PIECES = (1, 4)
"""Frames of a call of Code2Wav that are timed."""
LEAST_ROUNDS, LEAST_S = 5, 0.6
"""Rounds of a figure, and the seconds that they take at least."""
GAIN = 0.5
"""Spread of a product's outputs over that of its inputs: no activation grows without bound."""
NOISE = 1 << 20
"""Random weights that are drawn. They are repeated in memory of the real size."""


class RandomPacker(Packer):
    """Makes packed weights of the shapes of modules without storage."""

    def __init__(self, dtype: WeightsDtype) -> None:
        super().__init__(dtype)
        self._random = np.random.default_rng(1)
        self._noise = self._random.standard_normal(NOISE, np.float32)
        self._whole = {
            kind: self._random.integers(-most, most + 1, NOISE, np.int8 if kind == c.INT8 else np.int16)
            for kind, most in WHOLE_MAX.items()
        }

    def floats(self, values: Tensor | None, length: int | None = None) -> int | None:
        if values is None or not values.is_meta:
            return super().floats(values, length)
        made = self._room((length or values.numel(),), np.float32)
        made[:] = 0.3
        return address(made)

    def table(self, weight: Tensor) -> Embeddings:
        return Embeddings(self._repeated(self._bfloat16(1.0), weight.numel()).reshape(weight.shape))

    def matrix(self, weight: Tensor, bias: Tensor | None, rounds: bool = False, taps: int = 1) -> c.Matrix:
        inputs, outputs = weight.shape
        length, gain = -(-outputs // c.BLOCK) * c.BLOCK, GAIN / inputs**0.5
        kind, block = self._kind_of(weight, rounds, inputs // taps)
        scales: int | None = None
        if kind in WHOLE_MAX:
            made = self._room((inputs // block * length,), np.float32)
            made[:] = gain / WHOLE_MAX[kind]
            scales = address(made)
            values: NDArray[Any] = self._whole[kind]
        else:
            values = self._bfloat16(gain)
        packed = address(self._repeated(values, inputs * length))
        return c.Matrix(packed, scales, self.floats(bias, length), inputs, outputs, kind, block)

    def _fits_bfloat16(self, weight: Tensor) -> bool:
        return True

    def _is_bfloat16(self, weight: Tensor) -> bool:
        return False  # asked of Code2Wav, whose released weights are float32

    def _bfloat16(self, gain: float) -> NDArray[np.uint16]:
        return ((self._noise * gain).view(np.uint32) >> 16).astype(np.uint16)

    def _repeated(self, values: NDArray[Any], count: int) -> NDArray[Any]:
        made = self._room((count,), values.dtype.type)
        for start in range(0, count, len(values)):
            part = made[start : start + len(values)]
            part[:] = values[: len(part)]
        return made


class Kernels:
    """A model with random weights, and streams in the midst of their speech."""

    def __init__(self, talker: TalkerConfig, codec: CodecDecoderConfig, dtype: WeightsDtype, streams: int) -> None:
        self.library = c.load_library()
        checkpoint = cast("Checkpoint", SimpleNamespace(talker=talker, codec=codec, alignment=None, tts_pad_token_id=0))
        with torch.device("meta"), SkipInit():
            modules = Talker(talker), CodePredictor(talker), CodecDecoder(codec)
        modules[2].final_conv.bias = torch.nn.Parameter(torch.zeros(1))  # the only number that packing reads
        self.networks = pack(checkpoint, modules, POSITIONS, RandomPacker(dtype))
        config = EngineConfig(max_streams=streams, max_context=POSITIONS)
        self._rows = RowArrays(checkpoint, config)
        self._decoding = Decoding(self.library, self.networks.codec, streams, max(streams, 1))
        self.decoders = Decoders(0)
        self._scratch = Scratch(self.library)
        self._groups, self._codebook, self._frame = codec.num_quantizers, codec.codebook_size, 0
        shape = (streams, talker.transformer.num_hidden_layers, config.max_context, -1)
        for row in range(streams):
            for sampling in (self._rows.settings.talker_sampling, self._rows.settings.predictor_sampling):
                sampling.set(row, SamplingParams())
        floats = np.prod(shape[:3]) * talker.transformer.num_key_value_heads * talker.transformer.head_dim
        for start in (self._rows.structure.talker_keys, self._rows.structure.talker_values):
            cache = np.ctypeslib.as_array((ctypes.c_float * int(floats)).from_address(start)).reshape(shape)
            cache[:, :, :CONTEXT] = 0.01

    def speak(self, streams: int, pool: int | None) -> None:
        """One frame of each of this many streams, without its audio."""
        functions, networks = self.library.functions, self.networks
        talker, predictor = address(networks.talker), address(networks.predictor)
        self._frame = (self._frame + 1) % (POSITIONS - CONTEXT)
        rows = np.arange(streams, dtype=np.int32)
        frames = np.full(streams, self._frame, np.int32)
        positions, ended = frames + np.int32(CONTEXT), np.zeros(streams, np.uint8)
        scratch = self._scratch.take(functions.vivavoce_frame_scratch(talker, predictor, streams))
        arrays = address(rows), address(frames), address(positions), None, None, address(ended)
        state = address(self._rows.structure)
        self.library.check(functions.vivavoce_frame(talker, predictor, state, pool, streams, *arrays, scratch))

    def decode(self, streams: int, frames: int, threads: Threads, pool: int | None) -> None:
        """Audio of this many frames of each stream: by a thread each, or with few streams by all threads in turn."""
        codes = np.random.default_rng(2).integers(0, self._codebook, (frames, self._groups), np.int32)
        if streams < threads.rows_each_alone:
            for row in range(streams):
                self._decoding.decode(row, codes, pool)
            return
        pcm = self._decoding.room_for(codes)
        jobs = [Job(row, row, partial(self._decoding.decode, row, codes, None, pcm.copy())) for row in range(streams)]
        self.decoders.put(jobs)
        self.decoders.finish(jobs)


@contextmanager
def pool_of(library: c.Library, threads: int) -> Iterator[int | None]:
    pool = library.functions.vivavoce_pool(threads)
    try:
        yield pool
    finally:
        library.functions.vivavoce_pool_end(pool)


def median_ms(work: Callable[[], None]) -> float:
    """Median time of a call in several rounds, behind one that is not counted."""
    work()
    took_s: list[float] = []
    begun_s = time.perf_counter()
    while len(took_s) < LEAST_ROUNDS or time.perf_counter() < begun_s + LEAST_S:
        started_s = time.perf_counter()
        work()
        took_s.append(time.perf_counter() - started_s)
    return round(1000 * statistics.median(took_s), 2)


def runs_of(kernels: Kernels, threads: Sequence[int], streams: Sequence[int]) -> Iterator[dict[str, Any]]:
    """A figure for each number of threads and streams: milliseconds, and RTF with Code2Wav in pieces of four."""
    for number in threads:
        with pool_of(kernels.library, number) as pool:
            shared = Threads(number, 0)
            kernels.decoders = Decoders(min(shared.decoders, max(streams) - 1))
            for count in streams:
                code2wav = {
                    frames: median_ms(partial(kernels.decode, count, frames, shared, pool)) / frames
                    for frames in PIECES
                }
                frame_ms = median_ms(partial(kernels.speak, count, pool))
                yield {
                    "threads": number,
                    "streams": count,
                    "talker_and_predictor_ms": frame_ms,
                    **{f"code2wav_of_all_x{frames}_ms_per_frame": round(ms, 2) for frames, ms in code2wav.items()},
                    "rtf": round((frame_ms + code2wav[PIECES[-1]]) / FRAME_MS, 3),
                }


def foretold_ms(kernels: Kernels, size: str, dtype: str, threads: Sequence[int]) -> dict[int, dict[int, float]]:
    """Threads → streams → what `vivavoce doctor` foretells for a frame of all, in ms."""
    kind = c.INT8 if dtype == "int8" else c.BFLOAT16
    return {n: dict(forecast(kernels.library, RELEASED[size.upper()], kind, Threads(n, 0)).frame_ms) for n in threads}


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """The document; `complete` is false if time ran out."""
    stop_s = time.monotonic() + 60 * args.minutes
    document: dict[str, Any] = {
        "machine": f"{cpu_model()}, {len(os.sched_getaffinity(0))} hardware threads, {usable_cores()} usable cores",
        "level": c.load_library().level,
        "complete": True,
        "runs": [],
        "foretold_ms": {},
    }
    for size in args.sizes:
        for dtype in args.dtypes:
            kernels = Kernels(talker_config(size), RELEASED_CODEC, dtype, max(args.streams))
            about = {"size": size, "dtype": dtype, "resident_mb": round(resident_mb())}
            for run in runs_of(kernels, args.threads, args.streams):
                document["runs"].append(about | run)
                print(" ".join(f"{name}={value}" for name, value in (about | run).items()), flush=True)
                if time.monotonic() > stop_s:
                    return document | {"complete": False}
            document["foretold_ms"][f"{size} {dtype}"] = foretold_ms(kernels, size, dtype, args.threads)
            del kernels
    return document


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=("0.6b", "1.7b"), default=["0.6b", "1.7b"])
    parser.add_argument("--dtypes", nargs="+", choices=("int8", "bfloat16"), default=["int8", "bfloat16"])
    parser.add_argument("--threads", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--minutes", type=float, default=4.0, help="time after which no further figure begins")
    parser.add_argument("--out", type=Path, help="file for the JSON document")
    args = parser.parse_args()
    text = json.dumps(measure(args))
    if args.out:
        args.out.write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
