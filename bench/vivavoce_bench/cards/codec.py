"""Code2Wav on a GPU: compares it with the PyTorch module, times both, and tries other tiles.

python -m vivavoce_bench.cards.codec RESULTS.json [--voice voice/vivavoce_voice/checkpoint] [--seconds 110]
"""

# ruff: noqa: E501

import argparse
import functools
import itertools
import json
import multiprocessing
import sys
import time
import traceback
import zlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from vivavoce_engine.gpu.card import Card
from vivavoce_engine.gpu.codec.decoder import GpuCodec
from vivavoce_engine.gpu.codec.layers import Buffer, Buffers, Product, Shape, Snake, Unit
from vivavoce_engine.gpu.codec.tiles import Tiles
from vivavoce_engine.gpu.launch import Launcher
from vivavoce_engine.models.codec_decoder import CodecDecoder, CodecRows
from vivavoce_voice import CHECKPOINT

from vivavoce_bench.cards.random_codec import RELEASED_CODEC, random_decoder
from vivavoce_bench.cards.timing import median_ms

GPU = torch.device("cuda")
BF16, F32 = torch.bfloat16, torch.float32
BATCHES, FRAMES = (1, 8, 32, 64, 128), (1, 2, 4, 8)
PLAIN = ((1, 1), (1, 4), (8, 4), (32, 1), (64, 4))
"""Pairs (batch, frames) for which the PyTorch module is timed too."""
RESULTS: dict[str, Any] = {}
Section = Callable[[], None]


@functools.cache
def launcher() -> Launcher:
    return Launcher.of(GPU)


def random_codes(decoder: CodecDecoder, batch: int, frames: int) -> Tensor:
    books = decoder.quantizer.codebooks
    return torch.randint(books[0].shape[0], (batch, frames, len(books)), device=GPU)


def cut(rows: Any, index: Tensor, codes: Tensor, sizes: tuple[int, ...]) -> Tensor:
    return torch.cat([rows.decode(index, piece) for piece in torch.split(codes, list(sizes), dim=1)], dim=1)


def error(actual: Tensor, expected: Tensor) -> dict[str, float]:
    off = actual.double() - expected.double()
    return {"rel_rms": float(off.norm() / expected.double().norm()), "max": float(off.abs().max())}


# ---- time ---------------------------------------------------------------------------------------------------------


def graphed(call: Callable[[], Any]) -> torch.cuda.CUDAGraph:
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph


def time_decode(codec: GpuCodec | CodecRows, decoder: CodecDecoder, batch: int, frames: int) -> float:
    rows, codes = torch.arange(batch, device=GPU), random_codes(decoder, batch, frames)
    graph = graphed(lambda: codec.decode(rows, codes))
    return median_ms(graph.replay)


# ---- launches -----------------------------------------------------------------------------------------------------


def describe(kernel: Any, constants: dict[str, Any]) -> str:
    shape = " ".join(
        f"{key}={constants[key]}" for key in ("N", "WIDTH", "CHANNELS", "TAPS", "SAVE") if key in constants
    )
    tiles = ("BM", "BN_0", "BN_1", "BK", "num_warps", "num_stages")
    return f"{kernel.__name__} {shape} [{','.join(str(constants[key]) for key in tiles if key in constants)}]"


class Recorder(Launcher):
    """Launches kernels and records a label for each launch."""

    def __init__(self) -> None:
        super().__init__(Card.of(GPU))
        self.labels: list[str] = []

    def __call__(self, kernel: Any, grid: tuple[int, ...], *arguments: Any, **meta: Any) -> None:
        self.labels.append(describe(kernel, meta))
        super().__call__(kernel, grid, *arguments, **meta)


class Share(Launcher):
    """Launches each kernel once, if it belongs to process `index` of `count`. Processes compile in parallel with it."""

    def __init__(self, index: int, count: int) -> None:
        super().__init__(Card.of(GPU))
        self._index, self._count, self._seen = index, count, set[str]()

    def __call__(self, kernel: Any, grid: tuple[int, ...], *arguments: Any, **meta: Any) -> None:
        pattern = "".join("0" if argument is None else "1" for argument in arguments)
        types = "".join(str(argument.dtype) for argument in arguments if isinstance(argument, Tensor))
        key = f"{kernel.__name__} {pattern} {types} {sorted(meta.items())}"
        if key not in self._seen and zlib.crc32(key.encode()) % self._count == self._index:
            self._seen.add(key)
            super().__call__(kernel, grid, *arguments, **meta)


def compile_share(index: int, count: int, voice: str) -> None:
    """Compiles a share of all kernels into the cache on disk. Runs in a process of its own."""
    started, share = time.time(), Share(index, count)
    with torch.inference_mode():
        full = random_decoder(RELEASED_CODEC, GPU)
        shapes = list(itertools.product(BATCHES, FRAMES))
        decoders = [(full, BF16, shapes), (full, F32, [(3, 1), (3, 4)])]
        if voice:
            small = load_voice(voice, F32)
            decoders += [(small, BF16, [(3, 1), (3, 4)]), (small, F32, [(3, 1), (3, 4)])]
        for decoder, dtype, sizes in decoders:
            codec = GpuCodec(decoder, max(batch for batch, _ in sizes), max(FRAMES), dtype, launch=share)
            for fuse, (batch, frames) in itertools.product((True, False), sizes):
                codec.fuse_units = fuse
                try:
                    codec.decode(torch.arange(batch, device=GPU), random_codes(decoder, batch, frames))
                except Exception:
                    traceback.print_exc()
            del codec
        for _, trial in trials():
            try:
                trial(share)
            except Exception as failure:
                print("does not compile:", str(failure)[:200], flush=True)
        torch.cuda.synchronize()
    print(f"compiler {index}: {len(share._seen)} kernels in {time.time() - started:.1f} s", flush=True)


# ---- other tiles --------------------------------------------------------------------------------------------------

Trial = Callable[[Launcher], None]
PRODUCTS = (  # name, N, channels, taps, dilation, input steps per frame, output channels
    ("head 1024>1536 k7", 1536, 1024, 7, 1, 4, 1536),
    ("up 1536>768", 6144, 1536, 2, 1, 4, 768),
    ("conv 768 k7", 768, 768, 7, 3, 32, 768),
    ("conv 768 k1", 768, 768, 1, 1, 32, 768),
    ("up 768>384", 1920, 768, 2, 1, 32, 384),
    ("conv 384 k7", 384, 384, 7, 3, 160, 384),
    ("conv 384 k1", 384, 384, 1, 1, 160, 384),
    ("up 384>192", 768, 384, 2, 1, 160, 192),
    ("conv 192 k7", 192, 192, 7, 3, 640, 192),
    ("up 192>96", 288, 192, 2, 1, 640, 96),
    ("conv 96 k7", 96, 96, 7, 3, 1920, 96),
    ("pointwise 1024>4096", 4096, 1024, 1, 1, 4, 4096),
    ("pointwise 4096>1024", 1024, 4096, 1, 1, 4, 1024),
)
SIZES = (256, 1)  # frames


def tiles_to_try(columns: int, frames: int) -> list[Tiles]:
    if frames == 1:
        sizes = [(16, 16, 0, 256, 4, 3), (16, 32, 0, 128, 4, 4), (16, 32, 0, 256, 4, 3), (32, 16, 0, 128, 4, 4),
                 (32, 32, 0, 128, 4, 4), (64, 16, 0, 128, 4, 4), (64, 32, 0, 128, 4, 3)]  # fmt: skip
        return [Tiles(*size) for size in sizes]
    if columns % 128 == 0:
        sizes = [(128, 128, 0, 64, 4, 3), (128, 128, 0, 64, 8, 3), (128, 128, 0, 64, 8, 4), (64, 128, 0, 64, 4, 4),
                 (64, 64, 0, 64, 4, 5), (64, 256, 0, 64, 4, 3), (256, 128, 0, 64, 8, 3), (128, 128, 0, 128, 8, 3)]  # fmt: skip
        if columns % 256 == 0:
            sizes += [(128, 256, 0, 64, 8, 3), (128, 256, 0, 64, 8, 4)]
        if columns == 384:
            sizes += [(64, 256, 128, 64, 8, 3), (128, 256, 128, 32, 8, 4)]
    elif columns == 192:
        sizes = [(128, 128, 64, 64, 8, 4), (128, 128, 64, 64, 8, 3), (64, 128, 64, 64, 4, 4), (64, 128, 64, 64, 4, 3),
                 (256, 128, 64, 32, 8, 4), (128, 64, 32, 64, 4, 4), (128, 64, 0, 64, 4, 4)]  # fmt: skip
    else:
        sizes = [(128, 64, 32, 64, 4, 4), (128, 64, 32, 32, 4, 4), (128, 64, 32, 32, 4, 6), (128, 64, 32, 32, 8, 5),
                 (256, 64, 32, 32, 8, 4), (256, 64, 32, 64, 8, 3), (64, 64, 32, 64, 4, 4), (128, 128, 0, 64, 8, 3)]  # fmt: skip
    return [Tiles(*size) for size in sizes]


def unit_tiles(width: int) -> list[Tiles]:
    if width == 192:
        sizes = [(128, 128, 64, 64, 8, 4), (128, 128, 64, 64, 8, 3), (128, 128, 64, 32, 8, 5), (64, 128, 64, 64, 4, 3),
                 (64, 128, 64, 32, 4, 4)]  # fmt: skip
    else:
        sizes = [(128, 64, 32, 64, 4, 4), (128, 64, 32, 32, 4, 4), (128, 64, 32, 32, 8, 5), (256, 64, 32, 32, 8, 4),
                 (64, 64, 32, 32, 4, 4), (64, 64, 32, 64, 4, 3)]  # fmt: skip
    return [Tiles(*size) for size in sizes]


def with_tiles(part: Product | Unit, call: Sequence[Any], tiles: Tiles) -> Trial:
    return lambda launch: part(launch, *call, tiles=tiles)


def trials() -> list[tuple[dict[str, Any], Trial]]:
    """Pairs (description, trial) of every product and unit, with each of its tiles and sizes, in bf16."""
    found: list[tuple[dict[str, Any], Trial]] = []
    buffers = Buffers(max(SIZES))
    like = torch.empty(0, dtype=BF16, device=GPU)

    def random(*shape: int, scale: float = 1.0) -> Tensor:
        return torch.randn(*shape, device=GPU) * scale

    def snake(columns: int) -> Snake:
        return Snake(random(columns).exp(), random(columns).exp())

    def add(
        name: str, frames: int, flops: float, tiles: list[Tiles], part: Product | Unit, buffers: Sequence[Buffer | None]
    ) -> None:
        call = (Shape(max(1, frames // 4), min(frames, 4)), *buffers)
        for one in tiles:
            info = {"name": name, "frames": frames, "tiles": str(one), "gflop": flops * frames / 1e9}
            found.append((info, with_tiles(part, call, one)))

    for name, columns, channels, taps, dilation, rate, width in PRODUCTS:
        keep = (taps - 1) * dilation
        x = buffers.add(channels, rate, keep, shared="x")
        out = buffers.add(width, rate * columns // width, 54, shared="out")
        raw = buffers.add(width, rate * columns // width, shared="raw")
        weight = random(columns, taps * channels, scale=(taps * channels) ** -0.5).to(BF16)
        product = Product(
            weight=weight, taps=taps, dilation=dilation, bias=random(columns).float(), snake=snake(columns)
        )
        for frames in SIZES:
            flops = 2.0 * rate * columns * taps * channels
            add(name, frames, flops, tiles_to_try(columns, frames), product, (x, out, None, raw))
    for width, rate in ((192, 640), (96, 1920)):
        x, out = (buffers.add(width, rate, keep, shared=part) for part, keep in (("x", 18), ("out", 54)))
        raw, hidden = buffers.add(width, rate, shared="raw"), buffers.add(width, rate, shared="hidden")
        spread, point = (
            Product(
                weight=random(width, taps * width, scale=(taps * width) ** -0.5).to(BF16),
                taps=taps,
                dilation=3 if taps > 1 else 1,
                bias=random(width),
                snake=snake(width),
            )
            for taps in (7, 1)
        )
        unit = Unit(spread, point)
        for frames in SIZES:
            flops = 2.0 * rate * width * width * 8
            add(f"unit {width}", frames, flops, unit_tiles(width), unit, (x, out, raw, hidden))
    buffers.allocate(like).normal_()
    return found


# ---- sections -----------------------------------------------------------------------------------------------------


def load_voice(path: str, dtype: torch.dtype) -> CodecDecoder:
    from vivavoce_engine.checkpoint.files import read_checkpoint
    from vivavoce_engine.models.loader import load_models

    decoder = load_models(read_checkpoint(Path(path)), GPU, dtype)[2]
    assert isinstance(decoder, CodecDecoder)
    return decoder


def check(name: str, decoder: CodecDecoder) -> None:
    """Errors relative to the PyTorch module in float32, of the module in bf16 and of this codec in float32 and bf16."""
    index, codes = torch.tensor([2, 0, 1], device=GPU), random_codes(decoder, 3, 30)
    sizes = (1, 1, 2, 4, 8, 4, 1, 3, 6)
    plain = CodecRows(decoder, 3, decoder.quantizer.codebooks[0])
    expected = cut(plain, index, codes, (30,))
    found = {"rms": float(expected.square().mean().sqrt()), "clamped": float((expected.abs() == 1).float().mean())}
    errors: dict[str, Any] = {"module f32, same cuts": error(cut_fresh(plain, index, codes, sizes), expected)}
    codec = GpuCodec(decoder, 3, 8, F32, launch=launcher())
    errors["triton f32"] = error(cut(codec, index, codes, sizes), expected)
    for row in index.tolist():
        codec.reset(row)
    codec.prime(1, codes[0, :20])
    errors["triton f32 primed"] = error(cut(codec, index[2:], codes[:1, 20:], (4, 6)), expected[:1, 20 * spf(codec) :])
    for fuse in (True, False):
        codec = GpuCodec(decoder, 3, 8, BF16, launch=launcher())
        codec.fuse_units = fuse
        eager = cut(codec, index, codes, sizes)
        errors[f"triton bf16, fused units {fuse}"] = error(eager, expected)
    codec = GpuCodec(decoder, 3, 8, BF16, launch=launcher())
    first = cut(codec, index, codes, sizes)
    alone = cut(GpuCodec(decoder, 3, 8, BF16, launch=launcher()), index[:1], codes[:1], sizes)
    found["bf16 alone = in a batch of 3"] = bool(torch.equal(first[:1], alone))
    errors["bf16 alone against batch"] = error(alone, first[:1])
    errors["bf16 by 6 against cut"] = error(
        cut(GpuCodec(decoder, 3, 8, BF16, launch=launcher()), index, codes, (6,) * 5), first
    )
    codec = GpuCodec(decoder, 3, 8, BF16, launch=launcher())
    static = codes[:, :1].clone()
    out: list[Tensor] = []
    graph = graphed(lambda: out.append(codec.decode(index, static)))
    for row in index.tolist():
        codec.reset(row)
    audio = []
    for frame in range(30):
        static.copy_(codes[:, frame : frame + 1])
        graph.replay()
        audio.append(out[-1].clone())
    fresh = GpuCodec(decoder, 3, 8, BF16, launch=launcher())
    found["graph = eager"] = bool(torch.equal(torch.cat(audio, 1), cut(fresh, index, codes, (1,) * 30)))
    module = decoder.to(BF16)
    errors["module bf16"] = error(
        cut(CodecRows(module, 3, module.quantizer.codebooks[0]), index, codes, sizes), expected
    )
    print(f"\n{name}: {found}")
    for label, value in errors.items():
        print(f"  {label:34} rel rms {value['rel_rms']:.2e}  max {value['max']:.2e}", flush=True)
    RESULTS[f"check {name}"] = found | {"errors": errors}


def cut_fresh(rows: CodecRows, index: Tensor, codes: Tensor, sizes: tuple[int, ...]) -> Tensor:
    rows.reset(index)
    return cut(rows, index, codes, sizes)


def spf(codec: GpuCodec) -> int:
    return codec.samples_per_frame


def table() -> None:
    decoder = random_decoder(RELEASED_CODEC, GPU)
    codec = GpuCodec(decoder, max(BATCHES), max(FRAMES), BF16, launch=launcher())
    RESULTS["memory_gb"] = torch.cuda.memory_allocated() / 1e9
    times: dict[str, float] = {}
    print("\nTriton bf16, in a graph: ms (us a frame)")
    for batch in BATCHES:
        for frames in FRAMES:
            times[f"{batch}x{frames}"] = time_decode(codec, decoder, batch, frames)
        line = (
            f"{frames}: {(t := times[f'{batch}x{frames}']):.3f} ({t * 1e3 / batch / frames:.1f})" for frames in FRAMES
        )
        print(f"  batch {batch:3}  " + "  ".join(line), flush=True)
    RESULTS["graph_ms"] = times
    codec.fuse_units = False
    RESULTS["two_kernel_units_ms"] = {f"{b}x{t}": time_decode(codec, decoder, b, t) for b, t in PLAIN}
    print("  units in two kernels:", RESULTS["two_kernel_units_ms"], flush=True)


def pieces() -> None:
    """Times calls in pieces of other numbers of frames."""
    decoder = random_decoder(RELEASED_CODEC, GPU)
    found = {}
    for at_once in (64, 128, 256, 512):
        codec = GpuCodec(decoder, 128, 8, BF16, frames_at_once=at_once, launch=launcher())
        found[at_once] = {f"{b}x{t}": time_decode(codec, decoder, b, t) for b, t in ((64, 4), (128, 8))}
        del codec
    RESULTS["frames_at_once_ms"] = found
    print("  frames at once:", found, flush=True)


def plain() -> None:
    decoder = random_decoder(RELEASED_CODEC, GPU).to(BF16)
    rows = CodecRows(decoder, max(BATCHES), decoder.quantizer.codebooks[0])
    RESULTS["module_ms"] = {f"{b}x{t}": time_decode(rows, decoder, b, t) for b, t in PLAIN}
    print("\nPyTorch module bf16, in a graph:", RESULTS["module_ms"], flush=True)


def profile(batch: int, frames: int) -> None:
    """Measures the time of each kernel in eager calls, in the order of the launches."""
    decoder = random_decoder(RELEASED_CODEC, GPU)
    codec = GpuCodec(decoder, batch, frames, BF16, launch=launcher())
    rows, codes = torch.arange(batch, device=GPU), random_codes(decoder, batch, frames)
    codec.decode(rows, codes)
    codec.launch = recorder = Recorder()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(3):
            codec.decode(rows, codes)
        torch.cuda.synchronize()
    names = {label.split()[0] for label in recorder.labels}
    events = sorted((e for e in profiler.events() if e.name in names), key=lambda event: event.time_range.start)
    if len(events) != len(recorder.labels):
        print(f"profile: {len(events)} kernels seen, {len(recorder.labels)} launched")
        return
    times: defaultdict[str, float] = defaultdict(float)
    counts: defaultdict[str, int] = defaultdict(int)
    for label, event in zip(recorder.labels, events, strict=True):
        times[label] += event.time_range.elapsed_us() / 3
        counts[label] += 1
    print(f"\n{batch}x{frames}: {sum(times.values()):.0f} us in {len(recorder.labels) // 3} kernels")
    for label, us in sorted(times.items(), key=lambda item: -item[1])[:28]:
        print(f"  {us:8.1f} us  {counts[label] // 3:2} x  {label}")
    RESULTS[f"profile_us {batch}x{frames}"] = dict(times)


def sweep() -> None:
    from triton.testing import do_bench

    best: dict[str, tuple[float, str, float]] = {}
    everything = []
    for info, trial in trials():
        try:
            ms = do_bench(lambda trial=trial: trial(launcher()), warmup=2, rep=8, return_mode="median")
        except Exception as failure:
            print("  ", info["name"], info["tiles"], "failed:", str(failure)[:100])
            continue
        everything.append(info | {"ms": ms})
        key = f"{info['name']} @ {info['frames']}"
        if key not in best or ms < best[key][0]:
            best[key] = (ms, info["tiles"], info["gflop"] / ms)
    RESULTS["sweep"] = everything
    print("\nbest tiles:")
    for key, (ms, tiles, rate) in best.items():
        print(f"  {key:28} {ms * 1e3:8.1f} us {rate:6.1f} TFLOP/s  {tiles}")


def sections(voice: str) -> dict[str, Section]:
    found: dict[str, Section] = {"check full": lambda: check("full", random_decoder(RELEASED_CODEC, GPU))}
    if voice:
        found["check voice"] = lambda: check("voice", load_voice(voice, F32))
    found |= {
        "table": table,
        "pieces": pieces,
        "profile 64x4": lambda: profile(64, 4),
        "profile 1x1": lambda: profile(1, 1),
        "sweep": sweep,
        "plain": plain,
    }
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("results", type=Path)
    parser.add_argument("--voice", default=str(CHECKPOINT))
    parser.add_argument("--seconds", type=float, default=110)
    parser.add_argument("--compilers", type=int, default=14)
    parser.add_argument("--only", nargs="*", help="names of the sections to run")
    options = parser.parse_args()
    started = time.time()
    voice = options.voice if Path(options.voice).exists() else ""
    context = multiprocessing.get_context("spawn")
    compilers = [
        context.Process(target=compile_share, args=(index, options.compilers, voice))
        for index in range(options.compilers)
    ]
    for compiler in compilers:
        compiler.start()
    for compiler in compilers:
        compiler.join(max(1.0, 75 - (time.time() - started)))
    for compiler in compilers:
        compiler.kill()
    print(f"compiled after {time.time() - started:.1f} s", flush=True)
    RESULTS["versions"] = {"torch": torch.__version__, "card": torch.cuda.get_device_name()}
    torch.backends.cuda.matmul.allow_tf32 = False
    for name, section in sections(voice).items():
        if options.only and name not in options.only:
            continue
        if time.time() - started > options.seconds:
            print("no time for", name)
            continue
        try:
            with torch.inference_mode():
                section()
        except Exception:
            print(f"section {name} failed:")
            traceback.print_exc(file=sys.stdout)
        torch.cuda.empty_cache()
        print(f"[{name}: {time.time() - started:.1f} s]", flush=True)
        options.results.write_text(json.dumps(RESULTS, indent=1))


if __name__ == "__main__":
    main()
