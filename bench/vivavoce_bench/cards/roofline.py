"""Time of a frame and of Code2Wav by kernel on a GPU, beside the bytes and FLOPs of each kernel.

    python -m vivavoce_bench.cards.roofline --out FILE [--sizes 1.7b 0.6b] [--rows 1 8 64 128 256]

Weights are random, with the released shapes. Kernels begin before their predecessors end, so a kernel's time counts
from the end of the one before it to its own end. Its bound is the larger of its bytes at the card's bandwidth and its
FLOPs at the card's peak. Bytes are those of weights, inputs and outputs, each counted once.
"""

import argparse
import json
import shlex
import sys
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from vivavoce_engine.gpu.card import Card
from vivavoce_engine.gpu.codec.decoder import GpuCodec
from vivavoce_engine.gpu.graphs import Graphs
from vivavoce_engine.gpu.launch import Launcher
from vivavoce_engine.gpu.linear import GATED, PARTS

from vivavoce_bench.cards.codec import graphed, random_codes
from vivavoce_bench.cards.frame import DEVICE, build, launcher
from vivavoce_bench.cards.random_codec import RELEASED_CODEC, random_decoder
from vivavoce_bench.cards.shapes import SIZES
from vivavoce_bench.cards.timing import median_ms
from vivavoce_bench.listener.report import versions

CONTEXT = 200
PEAK_BYTES, PEAK_FLOPS = 4.8e12, 990e12
"""Bytes and FLOPs of an H200 a second, bfloat16 and dense, by NVIDIA's data sheet."""
CODEC_SHAPES = ((1, 1), (1, 4), (64, 1), (64, 4))
"""Pairs (batch, frames) of Code2Wav's calls."""
REPEATS = 5
MODES = ("plain", "add", "gate, up, silu", "bias", "parts")
Note = tuple[str, float, float]
"""Label of a launch, its bytes, and its FLOPs."""


class Labels(Launcher):
    """Launches kernels, and notes what each launch is."""

    def __init__(self, card: Card) -> None:
        super().__init__(card)
        self.stage = ""
        """The network that is launched: a part of the labels."""
        self.notes: list[Note] = []

    def __call__(self, kernel: Any, grid: tuple[int, ...], *arguments: Any, **meta: Any) -> None:
        name, given = kernel.fn.__name__, dict(zip(kernel.arg_names, arguments, strict=False)) | meta
        label, size, flops = NOTES.get(name, other)(grid, given)
        self.notes.append((f"{self.stage} {name} {label}".strip(), size, flops))
        super().__call__(kernel, grid, *arguments, **meta)


def product_of_tokens(_: tuple[int, ...], given: dict[str, Any]) -> Note:
    """A product of gpu/linear.py."""
    tokens, n, k, mode = given.get("TOKENS") or given["tokens"], given["N"], given["K"], given["MODE"]
    weights = (2 if mode == GATED.value else 1) * n * k
    out = 4 * given["SPLITS"] if mode == PARTS.value else 2
    return f"{MODES[mode]} {n}x{k}, {tokens} tokens", 2 * weights + tokens * (2 * k + out * n), 2.0 * weights * tokens


def attention(grid: tuple[int, ...], given: dict[str, Any]) -> Note:
    """The talker's attention, of tokens at CONTEXT."""
    tokens = grid[1]
    values = tokens * (CONTEXT + 1) * given["D"]
    return f"{tokens} tokens", 4.0 * values * given["KV_HEADS"], 4.0 * values * given["HEADS"]


def norm(grid: tuple[int, ...], given: dict[str, Any]) -> Note:
    """A norm, and the sum of parts before it."""
    return f"{given['SPLITS']} parts, {grid[0]} tokens", grid[0] * given["K"] * (6.0 + 4 * given["SPLITS"]), 0.0


def product_of_windows(_: tuple[int, ...], given: dict[str, Any]) -> Note:
    """A product of Code2Wav."""
    rows, columns, channels, taps = given["row_count"], given["N"], given["CHANNELS"], given["TAPS"]
    width = columns // 2 if given["ACTIVATION"] == "swiglu" else columns
    values = columns * channels * taps + rows * (channels + width)
    values += rows * columns * sum(given[name] is not None for name in ("residual", "raw"))
    return f"{columns}x{channels}, {taps} taps", 2.0 * values, 2.0 * rows * columns * channels * taps


def unit(_: tuple[int, ...], given: dict[str, Any]) -> Note:
    """A residual unit of Code2Wav."""
    rows, width = given["row_count"], given["WIDTH"]
    size = 2.0 * rows * width * (3 + (given["raw"] is not None))
    return f"{width}", size, 2.0 * rows * width * width * (given["TAPS"] + 1)


def other(_: tuple[int, ...], __: dict[str, Any]) -> Note:
    """A kernel whose bytes and FLOPs are small, and are not counted."""
    return "", 0.0, 0.0


NOTES: dict[str, Callable[[tuple[int, ...], dict[str, Any]], Note]] = {
    "gemm_kernel": product_of_tokens,
    "gemv_kernel": product_of_tokens,
    "attention_kernel": attention,
    "norm_kernel": norm,
    "product_kernel": product_of_windows,
    "unit_kernel": unit,
}


def measured() -> dict[str, float]:
    """Bytes a second of a read and of a copy (read and written), and FLOPs a second of a large bfloat16 product."""
    big = torch.ones(1 << 30, dtype=torch.float32, device=DEVICE)
    target, square = torch.empty_like(big), torch.randn(8192, 8192, device=DEVICE, dtype=torch.bfloat16)
    size = 4.0 * big.numel()
    return {
        "read bytes_per_s": size / median_ms(lambda: big.view(-1, 4096).amax(0)) * 1e3,
        "copied bytes_per_s": 2 * size / median_ms(lambda: target.copy_(big)) * 1e3,
        "cublas flops_per_s": 2 * 8192.0**3 / median_ms(lambda: square @ square) * 1e3,
    }


def by_kernel(notes: list[Note], replay: Callable[[], None]) -> list[dict[str, Any]]:
    """Time of each kind of launch in a graph whose launches are `notes`, longest first.

    Raises:
        RuntimeError: the profiler has seen other kernels than were launched.
    """
    from torch.profiler import ProfilerActivity, profile

    replay()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(REPEATS):
            replay()
            torch.cuda.synchronize()
    seen = sorted(
        (one for one in profiler.events() if one.name.endswith("_kernel")), key=lambda one: one.time_range.end
    )
    if len(seen) != REPEATS * len(notes):
        raise RuntimeError(f"{len(seen)} kernels seen, {REPEATS * len(notes)} launched")
    us, counts, costs = defaultdict[str, float](float), defaultdict[str, int](int), dict[str, tuple[float, float]]()
    for at, one in enumerate(seen):
        label, size, flops = notes[at % len(notes)]
        us[label] += one.time_range.end - (seen[at - 1].time_range.end if at % len(notes) else one.time_range.start)
        counts[label] += 1
        costs[label] = size, flops
    longest = sorted(us, key=lambda label: -us[label])
    return [row(label, us[label] / REPEATS, counts[label] // REPEATS, costs[label]) for label in longest]


def row(label: str, us: float, launches: int, costs: tuple[float, float]) -> dict[str, Any]:
    size, flops = costs
    return {
        "kernel": label,
        "launches": launches,
        "us": round(us, 1),
        "us_each": round(us / launches, 2),
        "bound_us_each": round(max(size / PEAK_BYTES, flops / PEAK_FLOPS) * 1e6, 2),
        "mbytes_each": round(size / 1e6, 3),
        "gflop_each": round(flops / 1e9, 3),
    }


@torch.inference_mode()
def frame(size: str, rows: int, deterministic: bool) -> dict[str, Any]:
    """The table of a frame."""
    labels = Labels(launcher(dependent=True).card)
    model = build(size, torch.bfloat16, rows, CONTEXT + 200, dependent=True, deterministic=deterministic)
    model.launch = model.talker.launch = model.predictor.launch = labels
    model.rows[:] = torch.arange(rows, device=DEVICE)
    model.tables.positions[:] = CONTEXT
    make, read = model._make, model._read

    def staged(stage: str, call: Callable[[int], None], batch: int) -> None:
        labels.stage = stage
        call(batch)

    model._make = partial(staged, "predictor", make)  # type: ignore[method-assign]
    model._read = partial(staged, "talker", read)  # type: ignore[method-assign]

    def launch() -> None:
        labels.notes.clear()
        model.frame(rows)

    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    graphs = Graphs(stream, eager=False)
    with torch.cuda.stream(stream):
        graphs.record(rows, launch)
        replay = partial(graphs.replay, rows)
        return {"ms": round(median_ms(replay), 4), "kernels": by_kernel(labels.notes, replay)}


@torch.inference_mode()
def code2wav(batch: int, frames: int) -> dict[str, Any]:
    """The table of a call of Code2Wav."""
    decoder, labels = random_decoder(RELEASED_CODEC, DEVICE), Labels(launcher(dependent=True).card)
    codec = GpuCodec(decoder, batch, frames, torch.bfloat16, launch=labels)
    rows, codes = torch.arange(batch, device=DEVICE), random_codes(decoder, batch, frames)

    def call() -> None:
        labels.notes.clear()
        codec.decode(rows, codes)

    graph = graphed(call)
    ms = median_ms(graph.replay)
    us_a_frame = round(ms * 1e3 / batch / frames, 2)
    return {"ms": round(ms, 4), "us_a_frame": us_a_frame, "kernels": by_kernel(labels.notes, graph.replay)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sizes", nargs="+", choices=list(SIZES), default=["1.7b", "0.6b"])
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 8, 64, 128, 256])
    args = parser.parse_args()
    tables: list[tuple[str, Callable[[], Any]]] = [("measured", measured)]
    for size in args.sizes:
        tables.append((f"{size}, 1 row, not deterministic", partial(frame, size, 1, False)))
        tables += [(f"{size}, {rows} rows", partial(frame, size, rows, True)) for rows in args.rows]
    tables += [(f"code2wav {batch}x{frames}", partial(code2wav, batch, frames)) for batch, frames in CODEC_SHAPES]
    result: dict[str, Any] = {
        "card": torch.cuda.get_device_name(),
        "versions": versions("torch", "triton"),
        "command": shlex.join(["python", "-m", "vivavoce_bench.cards.roofline", *sys.argv[1:]]),
    }
    for name, table in tables:
        result[name] = table()
        torch.cuda.empty_cache()
        args.out.write_text(json.dumps(result, indent=1) + "\n")
        print(name, "done", flush=True)


if __name__ == "__main__":
    main()
