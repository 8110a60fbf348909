"""Variants of Code2Wav's kernels on a GPU, timed: python -m vivavoce_bench.cards.trial_codec RESULTS.json"""

# ruff: noqa: E501
# mypy: ignore-errors

import json
import multiprocessing
import os
import sys
import time
import traceback
import zlib
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from vivavoce_engine.gpu.card import Card
from vivavoce_engine.gpu.codec import decoder as codec_decoder
from vivavoce_engine.gpu.codec import layers as codec_layers
from vivavoce_engine.gpu.codec.decoder import GpuCodec
from vivavoce_engine.gpu.codec.tiles import Tiles
from vivavoce_engine.gpu.launch import Launcher
from vivavoce_engine.models.codec_decoder import CodecRows

from vivavoce_bench.cards.codec import error, graphed
from vivavoce_bench.cards.random_codec import RELEASED_CODEC, random_decoder
from vivavoce_bench.cards.timing import median_ms

BEGAN_S = time.perf_counter()
DRY = os.environ.get("DRY") == "1"
DEVICE = torch.device("cpu" if DRY else "cuda")
DTYPE = torch.float16 if DRY else torch.bfloat16
CONFIG = (
    replace(
        RELEASED_CODEC,
        transformer=replace(
            RELEASED_CODEC.transformer,
            hidden_size=64,
            intermediate_size=64,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
        ),
        latent_dim=64,
        codebook_dim=64,
        codebook_size=32,
        decoder_dim=192,
        upsample_rates=(2,),
        upsampling_ratios=(2, 2),
        samples_per_frame=8,
    )
    if DRY
    else RELEASED_CODEC
)
ROWS, MAX_FRAMES = (2, 4) if DRY else (256, 8)
FULL = ((64, 4), (256, 1), (64, 1), (1, 4)) if not DRY else ((2, 4), (2, 1))
ONE = FULL[:1]
WORKERS = 14
COMPILE_S, MEASURE_S = 45.0, 70.0 if not DRY else 1e9

MODULES = {"layers": codec_layers, "decoder": codec_decoder}
UNITS, PRODUCTS = codec_layers.choose_unit, codec_layers.choose


def units(changed):
    return lambda rows, width, dtype, card: (
        changed[width] if width in changed and rows >= 128 * 112 else UNITS(rows, width, dtype, card)
    )


def products(changed):
    def choose(rows, columns, depth, dtype, card):
        tiles = changed.get((columns, depth))
        return (
            tiles
            if tiles and rows >= 1024 and tiles.count(rows, columns) >= 112
            else PRODUCTS(rows, columns, depth, dtype, card)
        )

    return choose


U96 = Tiles(128, 64, 32, 32, 4, 4)
K1 = Tiles(64, 128, 0, 64, 4, 3)
WIDE, WIDE3 = Tiles(128, 128, 64, 64, 8, 4), Tiles(128, 128, 64, 64, 8, 3)
BASE = {"layers.choose_unit": units({96: U96}), "layers.POINTS": False}
WAVES = {(768, 5376): WIDE, (6144, 3072): WIDE, (1536, 7168): Tiles(128, 64, 32, 64, 4, 4)}


def variants():
    found = {"base": (BASE, True)}
    best = BASE | {"layers.choose": products(WAVES | {(384, 384): K1, (768, 768): K1}), "layers.REGISTERS": {K1: 168}}
    found["best"] = (best, True)
    found["points"] = (BASE | {"layers.POINTS": True}, False)
    for product, several in {
        (768, 5376): [WIDE, WIDE3],
        (6144, 3072): [WIDE, WIDE3],
        (1536, 7168): [Tiles(128, 64, 32, 64, 4, 4), Tiles(128, 64, 32, 64, 8, 4), Tiles(128, 64, 32, 128, 8, 3)],
        (384, 2688): [WIDE],
        (1920, 1536): [Tiles(128, 128, 64, 64, 8, 4)],
        (288, 384): [Tiles(128, 64, 32, 64, 4, 2)],
    }.items():
        for one in several:
            if one == Tiles(128, 128, 64, 64, 8, 4) and product == (1920, 1536):
                found["1920 128x192"] = (BASE | {"layers.choose": products({product: one})}, False)
            else:
                found[f"{product} {one.rows, one.columns, one.more_columns, one.depth, one.warps, one.stages}"] = (
                    BASE | {"layers.choose": products({product: one})},
                    False,
                )
    for registers in (168, 144):
        found[f"k1 {registers}"] = (
            BASE | {"layers.choose": products({(384, 384): K1, (768, 768): K1}), "layers.REGISTERS": {K1: registers}},
            False,
        )
    small = Tiles(64, 64, 0, 64, 4, 5)
    found["k1 64x64"] = (BASE | {"layers.choose": products({(384, 384): small, (768, 768): small})}, False)
    up = Tiles(128, 64, 32, 64, 4, 2)
    found["up 288 168"] = (BASE | {"layers.choose": products({(288, 384): up}), "layers.REGISTERS": {up: 168}}, False)
    for one in (Tiles(128, 64, 32, 32, 4, 3), Tiles(128, 64, 32, 32, 4, 6), Tiles(256, 64, 32, 32, 8, 4)):
        found[f"96 {one.rows} {one.warps} {one.stages}"] = (BASE | {"layers.choose_unit": units({96: one})}, False)
    one = Tiles(64, 128, 64, 64, 4, 4)
    found["192 64 4 4"] = (BASE | {"layers.choose_unit": units({96: U96, 192: one})}, False)
    found["waveform 32"] = (BASE | {"decoder.WAVEFORM_ROWS": 32}, False)
    found["base, again"] = (BASE, True)
    return found


@contextmanager
def patched(changes: dict[str, Any]):
    before = {}
    for key, value in changes.items():
        if key == "early":
            continue
        module, name = key.split(".")
        before[key] = getattr(MODULES[module], name)
        setattr(MODULES[module], name, value)
    try:
        yield
    finally:
        for key, value in before.items():
            module, name = key.split(".")
            setattr(MODULES[module], name, value)


def card(changes: dict[str, Any]) -> Card:
    return replace(Card.of(DEVICE), dependent_launch=bool(changes.get("early")) and not DRY)


def codes_of(decoder, batch: int, frames: int) -> Tensor:
    size, groups = decoder.quantizer.codebooks[0].shape[0], len(decoder.quantizer.codebooks)
    index = torch.arange(batch, device=DEVICE)
    return (
        torch.arange(groups, device=DEVICE) * 7
        + torch.arange(frames, device=DEVICE)[:, None] * 11
        + index[:, None, None] % 50
    ) % size


def spoken(coder, decoder, batch: int, frames: int) -> Tensor:
    """Audio of eight frames of some rows, decoded `frames` at a time."""
    codes, index = codes_of(decoder, batch, 8), torch.arange(batch, device=DEVICE)
    return torch.cat([coder.decode(index, codes[:, at : at + frames].contiguous()) for at in range(0, 8, frames)], 1)


def time_us(coder, decoder, batch: int, frames: int) -> float:
    rows, codes = torch.arange(batch, device=DEVICE), codes_of(decoder, batch, frames).contiguous()
    if DRY:
        coder.decode(rows, codes)
        return 0.0
    graph = graphed(lambda: coder.decode(rows, codes))
    return median_ms(graph.replay, 15) * 1e3


# ---- compiling


class Share(Launcher):
    """Launches each kernel once, if it falls to process `index` of `count`."""

    def __init__(self, card: Card, index: int, count: int, seen: set[str]) -> None:
        super().__init__(card)
        self._index, self._count, self._seen = index, count, seen

    def __call__(self, kernel, grid, *arguments, **meta) -> None:
        pattern = "".join("0" if argument is None else "1" for argument in arguments)
        types = "".join(str(argument.dtype) for argument in arguments if isinstance(argument, Tensor))
        key = f"{kernel.__name__} {pattern} {types} {sorted(meta.items())} {self.card.dependent_launch}"
        if key not in self._seen and zlib.crc32(key.encode()) % self._count == self._index:
            self._seen.add(key)
            try:
                super().__call__(kernel, grid, *arguments, **meta)
            except Exception as failure:
                print("does not compile:", key[:60], str(failure)[:200], flush=True)


def compile_share(index: int, count: int) -> None:
    began, seen = time.perf_counter(), set[str]()
    with torch.inference_mode():
        decoder = random_decoder(CONFIG, DEVICE)
        coder = None
        for name, (changes, full) in variants().items():
            try:
                with patched(changes):
                    if coder is None:
                        coder = GpuCodec(decoder, ROWS, MAX_FRAMES, DTYPE, launch=Launcher(card(changes)))
                    coder.launch = Share(card(changes), index, count, seen)
                    for batch, frames in (*(FULL if full else ONE), *(((1, 1),) if full else ())):
                        coder.decode(torch.arange(batch, device=DEVICE), codes_of(decoder, batch, frames).contiguous())
            except Exception:
                print("compile", name, traceback.format_exc()[-300:], flush=True)
        if not DRY:
            torch.cuda.synchronize()
    print(f"compiler {index}: {len(seen)} kernels in {time.perf_counter() - began:.1f} s", flush=True)


# ---- measuring


class Recorder(Launcher):
    def __init__(self, card: Card) -> None:
        super().__init__(card)
        self.labels: list[str] = []

    def __call__(self, kernel, grid, *arguments, **meta) -> None:
        shape = " ".join(f"{key}={meta[key]}" for key in ("N", "WIDTH", "CHANNELS", "TAPS", "SAVE") if key in meta)
        self.labels.append(
            f"{kernel.__name__} {shape} {'d' if any(type(a).__name__ == 'TensorDescriptor' for a in arguments) else 'p'} "
            + ",".join(str(meta[key]) for key in ("BM", "BN_0", "BN_1", "BK", "num_warps", "num_stages") if key in meta)
        )
        super().__call__(kernel, grid, *arguments, **meta)


def profile(coder, decoder, launch_card: Card, batch: int, frames: int) -> dict[str, Any]:
    rows, codes = torch.arange(batch, device=DEVICE), codes_of(decoder, batch, frames).contiguous()
    usual, recorder = coder.launch, Recorder(launch_card)
    coder.decode(rows, codes)
    coder.launch = recorder
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(3):
            coder.decode(rows, codes)
        torch.cuda.synchronize()
    coder.launch = usual
    names = {label.split()[0] for label in recorder.labels}
    events = sorted((e for e in profiler.events() if e.name in names), key=lambda event: event.time_range.start)
    if len(events) != len(recorder.labels):
        return {"seen": len(events), "launched": len(recorder.labels)}
    found: dict[str, list[float]] = {}
    for label, event in zip(recorder.labels, events, strict=True):
        found.setdefault(label, []).append(event.time_range.elapsed_us())
    return {
        label: {"each_us": round(sum(us) / len(us), 2), "launches": len(us) // 3, "us": round(sum(us) / 3, 1)}
        for label, us in sorted(found.items(), key=lambda item: -sum(item[1]))
    }


def main() -> None:
    path = Path(sys.argv[1])
    results: dict[str, Any] = {}

    def put(value: Any, *keys: str) -> None:
        place = results
        for key in keys[:-1]:
            place = place.setdefault(key, {})
        place[keys[-1]] = value
        path.write_text(json.dumps(results, indent=1, default=str))

    if not DRY:
        context = multiprocessing.get_context("spawn")
        compilers = [context.Process(target=compile_share, args=(index, WORKERS)) for index in range(WORKERS)]
        for compiler in compilers:
            compiler.start()
        for compiler in compilers:
            compiler.join(max(1.0, COMPILE_S - (time.perf_counter() - BEGAN_S)))
        for compiler in compilers:
            compiler.kill()
        print(f"compiled after {time.perf_counter() - BEGAN_S:.1f} s", flush=True)
        put({"card": torch.cuda.get_device_name(), "torch": torch.__version__}, "versions")
        torch.backends.cuda.matmul.allow_tf32 = False
    with torch.inference_mode():
        decoder = random_decoder(CONFIG, DEVICE)
        exact = spoken(CodecRows(decoder, 1, decoder.quantizer.codebooks[0]), decoder, 1, 8)
        coder = GpuCodec(decoder, ROWS, MAX_FRAMES, DTYPE, launch=Launcher(card({})))
        for name, (changes, full) in variants().items():
            if DRY and name not in ("base", "best"):
                continue
            if time.perf_counter() - BEGAN_S > MEASURE_S and name != "base, again":
                put("no time", name)
                continue
            try:
                with patched(changes):
                    coder.launch = Launcher(card(changes))
                    batch, frames = FULL[0]
                    for row in range(batch):
                        coder.reset(row)
                    audio = spoken(coder, decoder, batch, frames)
                    coder.reset(0)
                    alone = spoken(coder, decoder, 1, 1 if full else frames)
                    put(round(error(audio[:1], exact)["rel_rms"], 6), name, "off_float32")
                    put(bool(torch.equal(alone, audio[:1])), name, "alone_equal")
                    for batch, frames in FULL if full else ONE:
                        put(
                            round(time_us(coder, decoder, batch, frames) / batch / frames, 3), name, f"{batch}x{frames}"
                        )
                    if not DRY:
                        put(profile(coder, decoder, card(changes), 64, 4), name, "profile")
                    if name in ("base", "best") and not DRY:
                        put(profile(coder, decoder, card(changes), 1, 4), name, "profile 1x4")
            except Exception:
                put(traceback.format_exc()[-400:], name, "failed")
                print(name, traceback.format_exc()[-300:], flush=True)
            line = (
                {key: value for key, value in results[name].items() if not key.startswith("profile")}
                if isinstance(results.get(name), dict)
                else results.get(name)
            )
            print(f"[{time.perf_counter() - BEGAN_S:5.0f} s] {name:44} {line}", flush=True)
    for name in ("base", "best"):
        for part in ("profile", "profile 1x4"):
            table = results.get(name, {}).get(part, {})
            print(name, part, flush=True)
            for label, value in list(table.items())[:30]:
                print("   ", value, label, flush=True)


if __name__ == "__main__":
    main()
