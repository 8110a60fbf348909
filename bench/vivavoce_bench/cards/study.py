"""Studies the kernels of a frame and of Code2Wav on a GPU: a table of time against bytes and FLOPs, then variants.

    python -m vivavoce_bench.cards.study FOLDER [--seconds 400] [--only table one products codec near]

Every part writes its own JSON file after each result. A part or a variant that fails is noted in it.
"""

# ruff: noqa: E501

import argparse
import json
import multiprocessing
import subprocess
import sys
import time
import traceback
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from vivavoce_engine.gpu import linear, stack
from vivavoce_engine.gpu.card import Card
from vivavoce_engine.gpu.codec import decoder as codec_decoder
from vivavoce_engine.gpu.codec import layers as codec_layers
from vivavoce_engine.gpu.codec.decoder import GpuCodec
from vivavoce_engine.gpu.codec.tiles import Tiles
from vivavoce_engine.gpu.graphs import Graphs
from vivavoce_engine.gpu.launch import Launcher
from vivavoce_engine.gpu.linear import ADD, GATED, PARTS, Blocks, gemm
from vivavoce_engine.models.codec_decoder import CodecRows

from vivavoce_bench.cards.codec import error, graphed, random_codes, time_decode
from vivavoce_bench.cards.frame import DEVICE, build, launcher
from vivavoce_bench.cards.random_codec import RELEASED_CODEC, random_decoder
from vivavoce_bench.cards.timing import median_ms

BF16 = torch.bfloat16
CONTEXT = 200
PEAK_FLOPS = 990e12
"""bfloat16, dense, by NVIDIA's data sheet of an H200."""
PEAK_BYTES = 4.8e12
BEGAN_S = time.perf_counter()


class Report:
    """A JSON file that is written after each result."""

    def __init__(self, path: Path) -> None:
        self._path, self.data = path, dict[str, Any]()

    def rows(self, name: str, components: list[dict[str, Any]]) -> None:
        """Keeps a table of components, and prints its longest rows."""
        self.put(components, name, "components")
        for one in components[:16]:
            print("   ", *(one[key] for key in list(one)[1:]), "|", one["component"], flush=True)

    def put(self, value: Any, *keys: str) -> None:
        place = self.data
        for key in keys[:-1]:
            place = place.setdefault(key, {})
        place[keys[-1]] = value
        self._path.write_text(json.dumps(self.data, indent=1, default=str))
        print(f"[{time.perf_counter() - BEGAN_S:5.0f} s]", *keys, value if len(str(value)) < 200 else "…", flush=True)


@contextmanager
def patched(**changes: Any) -> Iterator[None]:
    """Sets attributes `module__NAME` for a while."""
    modules = {
        "linear": linear, "stack": stack, "decoder": codec_decoder, "layers": codec_layers,
    }  # fmt: skip
    before = {}
    for key, value in changes.items():
        module, name = key.split("__")
        before[key] = getattr(modules[module], name)
        setattr(modules[module], name, value)
    try:
        yield
    finally:
        for key, value in before.items():
            module, name = key.split("__")
            setattr(modules[module], name, value)


# ---- frames


class Bench:
    """A model whose frames are timed again and again from the same state."""

    def __init__(self, size: str, rows: int, deterministic: bool, layers: int | None = None) -> None:
        self.rows = rows
        self.model = build(size, BF16, rows, CONTEXT + 120, True, layers=layers, deterministic=deterministic)
        generator = torch.Generator(DEVICE).manual_seed(7)
        tables = self.model.tables
        self._hidden = torch.randn(tables.hidden.shape, generator=generator, device=DEVICE).to(BF16)
        for kept in (self.model.cache.cache.k, self.model.cache.cache.v):
            for layer in kept:
                layer.copy_(torch.randn(layer.shape, generator=generator, device=DEVICE))
        self.model.rows[:] = torch.arange(rows, device=DEVICE)
        self._stream = torch.cuda.Stream()

    def reset(self) -> None:
        tables = self.model.tables
        tables.frames[:], tables.positions[:], tables.seen[:] = 0, CONTEXT, 0
        tables.seeds[:] = torch.arange(len(tables.seeds), device=DEVICE) * 37 + 1000
        tables.code_0[:] = torch.arange(len(tables.seeds), device=DEVICE) % 2000
        tables.hidden.copy_(self._hidden)
        tables.text_counts[:] = 0

    def time(self, repeats: int = 20) -> tuple[float, Tensor]:
        """Milliseconds a frame, and the codes of five frames."""
        graphs = Graphs(self._stream, eager=False)
        with torch.cuda.stream(self._stream):
            graphs.record(0, partial(self.model.frame, self.rows))
            self.reset()
            ms = median_ms(partial(graphs.replay, 0), repeats)
            self.reset()
            for _ in range(5):
                graphs.replay(0)
            torch.cuda.synchronize()
            return round(ms, 4), self.model.tables.codes[: self.rows, :5].clone()


def free() -> None:
    import gc

    gc.collect()
    torch.cuda.empty_cache()


# ---- part: the table


class Labels(Launcher):
    """Notes what each launch is, with its bytes and FLOPs."""

    def __init__(self, card: Card) -> None:
        super().__init__(card)
        self.stage = ""
        self.notes: list[tuple[str, float, float]] = []

    def __call__(self, kernel: Any, grid: tuple[int, ...], *arguments: Any, **meta: Any) -> None:
        self.notes.append(self.note(kernel.fn.__name__, grid, arguments, meta))
        super().__call__(kernel, grid, *arguments, **meta)

    def note(self, name: str, grid: tuple[int, ...], arguments: Any, meta: dict[str, Any]) -> tuple[str, float, float]:
        if name in ("gemm_kernel", "gemv_kernel"):
            tokens = meta.get("TOKENS", 0) or arguments[4]
            n, k = meta["N"], meta["K"]
            gated = 2 if meta["MODE"] == GATED.value else 1
            out = 4 * meta["SPLITS"] if meta["MODE"] == PARTS.value else 2
            size = 2 * gated * n * k + tokens * (2 * k + out * n)
            mode = {0: "plain", 1: "add", 2: "gate-up-silu", 3: "bias", 4: "parts"}[meta["MODE"]]
            return f"{self.stage} {name} {mode} {n}x{k} tokens {tokens}", size, 2.0 * gated * n * k * tokens
        if name == "attention_kernel":
            values = grid[0] * (CONTEXT + 1) * meta["D"]
            size = values * meta["KV_HEADS"] * 4
            return f"{self.stage} {name} tokens {grid[0]}", size, 4.0 * values * meta["HEADS"]
        if name == "frame_attention_kernel":
            values = grid[0] * 8 * meta["D"]
            return f"{self.stage} {name}", values * meta["KV_HEADS"] * 4, 4.0 * values * meta["HEADS"]
        if name == "norm_kernel":
            size = grid[0] * meta["K"] * (4 + 4 * meta["SPLITS"])
            return f"{self.stage} {name} parts {meta['SPLITS']} tokens {grid[0]}", size, 0.0
        if name in ("draw_code_kernel", "draw_code_0_kernel"):
            return f"{self.stage} {name}", grid[0] * meta["V"] * 2, 0.0
        if name == "product_kernel":
            rows, columns, depth = arguments[11], meta["N"], meta["CHANNELS"] * meta["TAPS"]
            width = columns // 2 if meta["ACTIVATION"] == "swiglu" else columns
            outs = width * (1 + (arguments[5] is not None)) + columns * (arguments[4] is not None)
            size = 2.0 * (columns * depth + rows * (meta["CHANNELS"] + outs))
            return f"product {columns}x{meta['CHANNELS']} taps {meta['TAPS']}", size, 2.0 * rows * columns * depth
        if name == "unit_kernel":
            rows, width = arguments[14], meta["WIDTH"]
            size = 2.0 * rows * width * (3 + (arguments[8] is not None))
            return f"unit {width}", size, 2.0 * rows * width * width * (meta["TAPS"] + 1)
        return f"{self.stage} {name}".strip(), 0.0, 0.0


def measured_bandwidth() -> dict[str, float]:
    """Bytes a second of a read (a sum over 4 GB) and of a copy (read and write), the best of five."""
    big = torch.ones(1 << 30, dtype=torch.float32, device=DEVICE)
    other = torch.empty_like(big)
    size = big.numel() * 4
    read = min(median_ms(lambda: big.view(-1, 4096).amax(0), 3) for _ in range(3))
    copy = min(median_ms(lambda: other.copy_(big), 3) for _ in range(3))
    one = torch.randn(8192, 8192, device=DEVICE, dtype=BF16)
    product = min(median_ms(lambda: one @ one, 5) for _ in range(3))
    return {
        "read": size / read * 1e3,
        "copy": 2 * size / copy * 1e3,
        "flops 8192^3 by cuBLAS": 2 * 8192.0**3 / product * 1e3,
    }


def by_component(labels: Labels, replay: Callable[[], None], repeats: int = 5) -> list[dict[str, Any]]:
    """Time of each kind of launch in a graph. A launch takes from the end of the one before it to its own end, because
    kernels begin before their predecessors end."""
    from torch.profiler import ProfilerActivity, profile

    replay()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(repeats):
            replay()
            torch.cuda.synchronize()
    # Names of Triton's kernels end with _kernel, those of PyTorch's do not.
    events = sorted((e for e in profiler.events() if e.name.endswith("_kernel")), key=lambda e: e.time_range.end)
    notes = labels.notes
    if len(events) != repeats * len(notes):
        raise RuntimeError(f"{len(events)} kernels seen, {len(notes)} launched")
    us, own, count = defaultdict[str, float](float), defaultdict[str, float](float), defaultdict[str, int](int)
    sizes = {}
    for turn in range(repeats):
        end = None
        for note, event in zip(notes, events[turn * len(notes) :], strict=False):
            label, size, flops = note
            us[label] += event.time_range.end - (event.time_range.start if end is None else end)
            own[label] += event.time_range.elapsed_us()
            end = event.time_range.end
            count[label] += 1
            sizes[label] = (size, flops)
    found = []
    for label, total in sorted(us.items(), key=lambda item: -item[1]):
        launches, (size, flops) = count[label] // repeats, sizes[label]
        found.append({
            "component": label, "launches": launches, "us": round(total / repeats, 2), "us_each": round(total / repeats / launches, 2),
            "us_from_own_start": round(own[label] / repeats / launches, 2), "mbytes_each": round(size / 1e6, 3),
            "gflop_each": round(flops / 1e9, 3), "bound_us_each": round(max(size / PEAK_BYTES, flops / PEAK_FLOPS) * 1e6, 2),
        })  # fmt: skip
    return found


def table(report: Report, deadline_s: float) -> None:
    report.put(measured_bandwidth(), "measured")
    free()
    for size, rows, fixed in (
        ("1.7b", 64, True), ("1.7b", 256, True), ("1.7b", 1, False), ("1.7b", 1, True), ("1.7b", 8, True), ("0.6b", 1, False),
        ("1.7b", 128, True), ("0.6b", 64, True), ("0.6b", 256, True), ("0.6b", 1, True), ("0.6b", 8, True), ("0.6b", 128, True),
    ):  # fmt: skip
        if time.perf_counter() - BEGAN_S > deadline_s:
            break
        name = f"{size} rows {rows} deterministic {fixed}"
        try:
            frame_table(report, name, size, rows, fixed)
        except Exception:
            report.put(traceback.format_exc()[-600:], name, "fault")
        free()
    for batch, frames in CODEC_SHAPES:
        try:
            codec_table(report, batch, frames)
        except Exception:
            report.put(traceback.format_exc()[-600:], f"code2wav {batch}x{frames}", "fault")
        free()


def codec_table(report: Report, batch: int, frames: int) -> None:
    name = f"code2wav {batch}x{frames}"
    with patched():
        decoder = random_decoder(RELEASED_CODEC, DEVICE)
        labels = Labels(launcher(False).card)
        coder = GpuCodec(decoder, 64, 4, BF16, launch=labels)
        rows, codes = torch.arange(batch, device=DEVICE), random_codes(decoder, batch, frames)
        graph = graphed(lambda: coder.decode(rows, codes))
        labels.notes = labels.notes[-(len(labels.notes) // 3) :]
        report.put(round(median_ms(graph.replay), 4), name, "ms")
        report.rows(name, by_component(labels, graph.replay))


def frame_table(report: Report, name: str, size: str, rows: int, fixed: bool) -> None:
    bench = Bench(size, rows, fixed)
    model = bench.model
    report.put(bench.time()[0], name, "ms")
    labels = Labels(model.launch.card)
    model.launch = model.talker._launch = model.predictor._launch = labels
    if hasattr(model.talker, "_experts"):
        raise NotImplementedError
    graphs = Graphs(bench._stream, eager=False)
    make, read = model._make, model._read

    def staged(stage: str, call: Callable[[int], None], batch: int) -> None:
        labels.stage = stage
        call(batch)

    model._make = partial(staged, "predictor", make)  # type: ignore[method-assign]
    model._read = partial(staged, "talker", read)  # type: ignore[method-assign]
    with torch.cuda.stream(bench._stream):
        graphs.record(0, lambda: (labels.notes.clear(), model.frame(rows)))  # type: ignore[arg-type,return-value]
        bench.reset()
        report.rows(name, by_component(labels, partial(graphs.replay, 0)))


# ---- part: frames

FRAMES = [
    (size, rows, fixed)
    for size in ("1.7b", "0.6b")
    for rows, fixed in (
        (1, False),
        (1, True),
        (2, True),
        (8, True),
        (16, True),
        (32, True),
        (64, True),
        (128, True),
        (256, True),
    )
]


def frames(report: Report, deadline_s: float) -> None:
    """Milliseconds a frame with tiles by pointers, as on cards without descriptors, and by descriptors."""
    for size, rows, fixed in FRAMES:
        if time.perf_counter() - BEGAN_S > deadline_s:
            return
        bench = Bench(size, rows, fixed)
        model = bench.model
        usual = model.launch
        plain = Launcher(replace(usual.card, descriptors=False))
        found: dict[str, Any] = {}
        codes = {}
        for _ in range(2):
            for kind, launch in (("pointers", plain), ("descriptors", usual)):
                model.launch = model.talker._launch = model.predictor._launch = launch
                ms, codes[kind] = bench.time()
                found.setdefault(kind, []).append(ms)
        found["codes_equal"] = bool((codes["pointers"] == codes["descriptors"]).all())
        report.put(found, f"{size} rows {rows} deterministic {fixed}")
        del bench, model
        free()


# ---- part: products of many tokens

Product = tuple[int, int, int]
PRODUCTS: list[Product] = [
    (3072, 1024, GATED.value), (4096, 1024, 0), (1024, 3072, ADD.value), (1024, 2048, ADD.value),
    (6144, 2048, GATED.value), (4096, 2048, 0), (2048, 6144, ADD.value), (2048, 2048, ADD.value), (2048, 1024, 0),
]  # fmt: skip
FEW = [
    (0, 64, 128, 4, 6),
    (0, 64, 128, 4, 4),
    (0, 64, 256, 4, 3),
    (0, 64, 64, 4, 6),
    (64, 32, 128, 4, 4),
    (64, 32, 128, 4, 6),
    (64, 16, 128, 4, 4),
    (64, 16, 128, 4, 6),
    (64, 16, 256, 4, 3),
    (64, 32, 64, 4, 6),
    (64, 8, 128, 4, 4),
]
TILES: dict[int, list[tuple[int, int, int, int, int]]] = {
    64: [(64, 32, 128, 4, 4), (64, 32, 128, 4, 3), (64, 32, 64, 4, 6), (64, 16, 128, 4, 4), (64, 32, 256, 4, 2), (-64, 64, 128, 4, 4), (-64, 64, 128, 4, 3), (-64, 64, 64, 4, 6)],
    256: [(128, 64, 64, 4, 5), (128, 64, 64, 4, 4), (128, 64, 128, 4, 3), (128, 128, 64, 8, 4), (-128, 128, 64, 8, 4), (-128, 128, 128, 8, 2), (-256, 64, 64, 4, 4), (-256, 64, 64, 8, 4), (128, 32, 128, 4, 3), (256, 32, 64, 8, 4), (-128, 64, 128, 8, 3), (-128, 64, 64, 4, 4)],
    8: FEW,
    128: [(128, 32, 128, 4, 4), (128, 32, 64, 4, 6), (128, 64, 64, 4, 5), (128, 64, 64, 4, 4), (128, 64, 128, 4, 3), (128, 16, 128, 4, 4), (64, 32, 128, 4, 4), (64, 64, 128, 4, 4), (-128, 64, 128, 8, 3), (-128, 64, 64, 8, 4)],
    1: FEW,
    32: FEW,
}  # fmt: skip
"""Rows → tiles (tokens, outputs, summands, warps, stages). With tokens above 0, tokens are a tile's rows."""


def ways(rows: int, product: Product) -> list[Blocks]:
    """Blocks to try: those of small weights ask for the weight early, and the first of the others do so too."""
    early = product[1] <= 1024 or product[0] <= 1024
    found = []
    for prefetch in (early, not early):
        for t, n, k, warps, stages in TILES[rows]:
            block_t = abs(t) or linear.block_tokens(rows)
            blocks = Blocks(block_t, n, k, warps, stages, token_rows=t > 0, described=True, prefetch=prefetch)
            if fits(product, blocks):
                found.append(blocks)
    return found


class Chosen:
    """Multiplies products in the blocks that are chosen. The others keep those of gpu/linear.py."""

    def __init__(self, tokens: int) -> None:
        self.tokens, self.blocks = tokens, dict[Product, Blocks]()

    def __call__(
        self, launch: Launcher, x: Tensor, weight: Tensor, out: Tensor, *, mode: int = 0, bias: Tensor | None = None
    ) -> None:
        blocks = self.blocks.get((out.shape[-1], x.shape[1], ADD.value if mode == PARTS.value else mode))
        gemm(launch, x, weight, out, mode=mode, bias=bias, blocks=blocks if len(x) == self.tokens else None)


def fits(product: Product, blocks: Blocks) -> bool:
    n, k, mode = product
    values = blocks.n * blocks.t * (2 if mode == GATED.value else 1) // (32 * blocks.warps)
    length = k // linear.splits(n, k, 132) if mode == ADD.value else k
    return launcher(False).card.fits(blocks.stages, blocks.stage_bytes(mode, 2)) and values <= 128 and blocks.k < length


def products(report: Report, deadline_s: float) -> None:
    shares = {64: 0.2, 256: 0.3, 8: 0.35, 128: 0.45, 1: 0.6, 32: 1.0}
    for rows, share in shares.items():
        now_s = time.perf_counter() - BEGAN_S
        search(report, rows, now_s + share * (deadline_s - now_s))
        free()


def search(report: Report, rows: int, until_s: float) -> None:
    bench = Bench("1.7b", rows, True)
    name, chosen = f"rows {rows}", Chosen(rows)
    before, codes = bench.time()
    report.put(before, name, "before")
    with patched(stack__gemm=chosen):
        best = before
        for product in PRODUCTS:
            winner = None
            for blocks in ways(rows, product):
                if time.perf_counter() - BEGAN_S > until_s:
                    break
                chosen.blocks[product] = blocks
                text = (
                    f"t{blocks.t} n{blocks.n} k{blocks.k} w{blocks.warps} s{blocks.stages}"
                    + " rows" * blocks.token_rows
                    + " prefetch" * blocks.prefetch
                )
                try:
                    ms, found = bench.time(10)
                    equal = bool((found == codes).all())
                    report.put(ms if equal else f"{ms} DIFFERS", name, str(product), text)
                    if ms < best and equal:
                        best, winner = ms, blocks
                except Exception:
                    report.put(traceback.format_exc()[-200:], name, str(product), text)
            chosen.blocks.pop(product, None)
            if winner is not None:
                chosen.blocks[product] = winner
        ms, found = bench.time()
        report.put({"ms": ms, "codes_equal": bool((found == codes).all())}, name, "after")
        for product, blocks in chosen.blocks.items():
            report.put(str(blocks), name, "best", str(product))
    report.put(bench.time()[0], name, "before, again")


# ---- part: Code2Wav

CODEC_SHAPES = ((64, 4), (1, 1), (64, 1), (1, 4), (8, 4))
UNIT_TILES = {
    96: [(128, 64, 32, 32, 4, 4), (128, 64, 32, 32, 4, 6), (128, 64, 32, 32, 4, 3), (256, 64, 32, 32, 8, 4), (256, 64, 32, 32, 8, 3), (64, 64, 32, 32, 4, 4), (128, 64, 32, 32, 8, 4)],
    192: [(128, 128, 64, 64, 8, 4), (128, 128, 64, 64, 8, 3), (128, 128, 64, 32, 8, 6), (128, 128, 64, 64, 8, 2), (64, 128, 64, 64, 4, 3), (64, 128, 64, 32, 4, 4)],
}  # fmt: skip
LARGE = [
    (128, 128, 0, 64, 8, 3),
    (128, 256, 0, 64, 8, 3),
    (128, 128, 0, 64, 4, 3),
    (64, 128, 0, 64, 4, 4),
    (128, 64, 0, 64, 4, 4),
    (64, 256, 0, 64, 8, 3),
    (128, 128, 0, 32, 8, 6),
]
PRODUCT_TILES: dict[tuple[int, int], list[tuple[int, int, int, int, int, int]]] = {
    (768, 5376): LARGE, (384, 2688): LARGE[:1] + LARGE[2:5] + [(128, 256, 128, 64, 8, 2), (128, 128, 64, 64, 8, 4)], (6144, 3072): LARGE, (1536, 7168): LARGE,
    (1920, 1536): LARGE[:1] + LARGE[2:5], (768, 768): LARGE, (384, 384): LARGE[:1] + LARGE[2:5], (288, 384): [(128, 64, 32, 64, 4, 3), (128, 128, 16, 64, 8, 3), (64, 64, 32, 64, 4, 3)],
    (4096, 1024): LARGE[:4], (1024, 4096): LARGE[:4],
}  # fmt: skip
"""Columns and depth of a product → tiles to try for many rows."""


def units(width: int, tiles: Tiles) -> Callable[..., Tiles | None]:
    usual = codec_layers.choose_unit

    def choose(rows: int, channels: int, dtype: torch.dtype, card: Card) -> Tiles | None:
        return tiles if channels == width else usual(rows, channels, dtype, card)

    return choose


def product_tiles(product: tuple[int, int], tiles: Tiles) -> Callable[..., Tiles]:
    usual = codec_layers.choose

    def choose(rows: int, columns: int, depth: int, dtype: torch.dtype, card: Card) -> Tiles:
        return tiles if (columns, depth) == product and rows >= 512 else usual(rows, columns, depth, dtype, card)

    return choose


def codec_variants() -> dict[str, dict[str, Any]]:
    """Variant → what is patched."""
    found: dict[str, dict[str, Any]] = {
        "pointers, plain attention": {"layers__DESCRIBED": False, "decoder__PRODUCTS": False},
        "pointers": {"layers__DESCRIBED": False},
        "descriptors": {},
        "descriptors, attention of 8 warps": {"decoder__ATTENTION_WARPS": 8},
        "descriptors, attention of 2 warps": {"decoder__ATTENTION_WARPS": 2},
    }
    for width, several in UNIT_TILES.items():
        for one in several:
            found[f"unit {width} {one}"] = {"layers__choose_unit": units(width, Tiles(*one))}
    for product, several in PRODUCT_TILES.items():
        for one in several:
            found[f"product {product} {one}"] = {"layers__choose": product_tiles(product, Tiles(*one))}
    return found


def shapes_of(variant: str) -> tuple[tuple[int, int], ...]:
    return CODEC_SHAPES[:1] if variant.startswith(("unit", "product")) else CODEC_SHAPES


def codec(report: Report, deadline_s: float) -> None:
    decoder = random_decoder(RELEASED_CODEC, DEVICE)
    expected: dict[tuple[int, int], Tensor] = {}
    exact = exact_audio(decoder)
    for variant, changes in codec_variants().items():
        for batch, frames in shapes_of(variant):
            if time.perf_counter() - BEGAN_S > deadline_s:
                return
            try:
                with patched(**changes):
                    coder = GpuCodec(decoder, 64, 4, BF16, launch=launcher(False))
                    audio = spoken(coder, batch, frames)
                    value: dict[str, Any] = {}
                    if shapes_of(variant) == CODEC_SHAPES:
                        again = GpuCodec(decoder, 64, 4, BF16, launch=launcher(False))
                        value["alone_equal"] = bool(torch.equal(spoken(again, 1, 1), audio[:1]))
                        value["off_float32"] = round(error(audio[:1], exact)["rel_rms"], 5)
                    want = expected.setdefault((batch, frames), audio)
                    value["off_first"] = round(error(audio, want)["rel_rms"], 5)
                    ms = time_decode(coder, decoder, batch, frames)
                    report.put(
                        {"us_a_frame": round(ms * 1e3 / batch / frames, 3), "ms": round(ms, 4)} | value,
                        variant,
                        f"{batch}x{frames}",
                    )
            except Exception:
                report.put(traceback.format_exc()[-300:], variant, f"{batch}x{frames}")
            free()


def spoken(coder: GpuCodec, batch: int, frames: int) -> Tensor:
    """Audio of eight frames of some rows, decoded `frames` at a time."""
    index = torch.arange(batch, device=DEVICE)
    codes = (
        torch.arange(16, device=DEVICE) * 7 + torch.arange(8, device=DEVICE)[:, None] * 11 + index[:, None, None] % 50
    )
    return torch.cat([coder.decode(index, codes[:, at : at + frames].contiguous()) for at in range(0, 8, frames)], 1)


def exact_audio(decoder: Any) -> Tensor:
    """The first row's audio in float32, by the PyTorch module."""
    return spoken(CodecRows(decoder, 1, decoder.quantizer.codebooks[0]), 1, 8)  # type: ignore[arg-type]


# ---- compiling


def compile_job(job: tuple[Any, ...]) -> str:
    """Compiles kernels into the cache on disk, in a process of its own."""
    began = time.perf_counter()
    try:
        with torch.inference_mode():
            if job[0] == "frame":
                _, size, rows, fixed, descriptors = job
                bench = Bench(size, rows, fixed, layers=1)
                model = bench.model
                launch = Launcher(replace(model.launch.card, descriptors=descriptors))
                model.launch = model.talker._launch = model.predictor._launch = launch
                model.frame(rows)
                del bench, model
            elif job[0] == "way":
                _, (n, k, mode), tokens, several = job
                kind: dict[str, Any] = {"dtype": BF16, "device": DEVICE}
                x, weight = torch.zeros(tokens, k, **kind), torch.zeros(2 * n if mode == GATED.value else n, k, **kind)
                out = torch.zeros(tokens, n, **kind)
                if mode == ADD.value:
                    out, mode = torch.zeros(linear.splits(n, k, 132), tokens, n, device=DEVICE), PARTS.value
                for blocks in several:
                    gemm(launcher(True), x, weight, out, mode=mode, blocks=blocks)
            elif job[0] == "codec":
                _, variant, (batch, frames), name, index, count = job
                decoder = random_decoder(RELEASED_CODEC, DEVICE)
                with patched(**codec_variants()[variant]):
                    coder = GpuCodec(decoder, 64, 4, BF16, launch=Share(launcher(False).card, name, index, count))
                    coder.decode(torch.arange(batch, device=DEVICE), random_codes(decoder, batch, frames))
            torch.cuda.synchronize()
            free()
    except Exception as failure:
        return f"{job}: {type(failure).__name__}: {str(failure)[:300]}"
    return f"{job[:4]} {time.perf_counter() - began:.1f} s" if time.perf_counter() - began > 20 else ""


class Share(Launcher):
    """Launches the kernels named `name…` that fall to process `index` of `count`, to compile them."""

    def __init__(self, card: Card, name: str, index: int, count: int) -> None:
        super().__init__(card)
        self._name, self._index, self._count = name, index, count

    def __call__(self, kernel: Any, grid: tuple[int, ...], *arguments: Any, **meta: Any) -> None:
        key = f"{kernel.fn.__name__} {''.join('01'[argument is None] for argument in arguments)} {sorted(meta.items())}"
        if key.startswith(self._name) and zlib.crc32(key.encode()) % self._count == self._index:
            super().__call__(kernel, grid, *arguments, **meta)


def codec_jobs() -> list[tuple[Any, ...]]:
    whole = [
        ("codec", variant, shape, "", index, 4)
        for variant in ("pointers", "descriptors")
        for shape in CODEC_SHAPES
        for index in range(4)
    ]
    parts = [
        ("codec", variant, CODEC_SHAPES[0], variant.split()[0], 0, 1)
        for variant in codec_variants()
        if variant.startswith(("unit", "product"))
    ]
    more = [
        ("codec", variant, shape, "window", 0, 1)
        for variant in list(codec_variants())[:5]
        for shape in CODEC_SHAPES[:1]
    ]
    return whole + more + parts


def jobs(parts: list[str]) -> list[tuple[Any, ...]]:
    """All kernels of the parts. Those that others need too come first."""
    found: list[tuple[Any, ...]] = []
    if "frames" in parts or "table" in parts:
        found += [("frame", *one, descriptors) for descriptors in (True, False) for one in FRAMES]
    if "codec" in parts or "table" in parts:
        found += codec_jobs()
    if "products" in parts:
        found += [
            ("way", product, rows, ways(rows, product)[at::4])
            for rows in TILES
            for product in PRODUCTS
            for at in range(4)
        ]
    return found


PARTS_S = {"frames": 60, "codec": 65, "table": 50, "products": 160}
"""Part → seconds that it may take."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=400)
    parser.add_argument("--only", nargs="+", default=list(PARTS_S), choices=list(PARTS_S))
    parser.add_argument("--alone", action="store_true", help="run one part in this process")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    if args.alone:
        (name,) = args.only
        report = Report(args.folder / f"{name}.json")
        report.put(
            {
                "card": torch.cuda.get_device_name(),
                "torch": torch.__version__,
                "triton": __import__("triton").__version__,
            },
            "versions",
        )
        with torch.inference_mode():
            globals()[name](report, args.seconds)
        return
    compiled: list[str] = []
    pool = multiprocessing.get_context("spawn").Pool(15)
    results = [pool.apply_async(compile_job, (job,)) for job in jobs(args.only)]
    for result in results:
        try:
            compiled.append(result.get(max(0.5, 105 - (time.perf_counter() - BEGAN_S))))
        except multiprocessing.TimeoutError:
            compiled.append("not in time")
    pool.terminate()
    compiled = [line for line in compiled if line]
    (args.folder / "compiled.txt").write_text(
        f"{len(results)} jobs in {time.perf_counter() - BEGAN_S:.0f} s\n" + "\n".join(compiled) + "\n"
    )
    print(
        f"compiled {len(results)} jobs in {time.perf_counter() - BEGAN_S:.0f} s", *compiled[:20], sep="\n", flush=True
    )
    for name in args.only:
        left_s = args.seconds - (time.perf_counter() - BEGAN_S)
        limit_s = min(PARTS_S[name], left_s - 5)
        if limit_s < 10:
            print("no time for", name, flush=True)
            continue
        command = [
            sys.executable,
            "-m",
            "vivavoce_bench.cards.study",
            str(args.folder),
            "--alone",
            "--only",
            name,
            "--seconds",
            str(limit_s - 6),
        ]
        try:
            subprocess.run(command, timeout=limit_s + 10, check=False)
        except subprocess.TimeoutExpired:
            print(name, "ran past its limit", flush=True)
    print(f"done in {time.perf_counter() - BEGAN_S:.0f} s", flush=True)


if __name__ == "__main__":
    main()
