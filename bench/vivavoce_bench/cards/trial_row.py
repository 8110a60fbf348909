"""An experiment: variants of the small kernels of a frame. Not kept.

    python -m vivavoce_bench.cards.trial_row FILE [--limit 125] [--tiny]
"""

# ruff: noqa
# mypy: ignore-errors

import argparse
import json
import multiprocessing
import sys
import time
import traceback
import zlib
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton
from vivavoce_engine.gpu import frame_attention, linear, sampler
from vivavoce_engine.gpu.card import Card
from vivavoce_engine.gpu.graphs import Graphs
from vivavoce_engine.gpu.launch import Launcher
from vivavoce_engine.gpu.linear import ADD, GATED

from vivavoce_bench.cards import frame as frames
from vivavoce_bench.cards import trial_old, trial_old_linear, trial_old_sampler
from vivavoce_bench.cards.frame import build, launcher
from vivavoce_bench.cards.roofline import Labels, by_kernel
from vivavoce_bench.cards.timing import median_ms

BEGAN = time.perf_counter()
DEVICE = frames.DEVICE
BF16 = torch.bfloat16
CONTEXT = 200
OLD = {
    "frame_attention_kernel": trial_old.frame_attention_kernel,
    "draw_code_kernel": trial_old_sampler.draw_code_kernel,
    "draw_code_0_kernel": trial_old_sampler.draw_code_0_kernel,
    "norm_kernel": trial_old_linear.norm_kernel,
}
A, D, N = ("frame_attention_kernel",), ("draw_code_kernel", "draw_code_0_kernel"), ("norm_kernel",)
QKV, O, GU, DOWN, HEAD = (4096, 1024, 0), (1024, 2048, ADD.value), (3072, 1024, GATED.value), (1024, 3072, ADD.value), (2048, 1024, 0)
TQKV, TO, TGU, TDOWN, THEAD = (4096, 2048, 0), (2048, 2048, ADD.value), (6144, 2048, GATED.value), (2048, 6144, ADD.value), (3072, 2048, 0)
NAMES = {QKV: "qkv", O: "o", GU: "gate-up", DOWN: "down", HEAD: "head", TQKV: "T qkv", TO: "T o", TGU: "T gate-up", TDOWN: "T down", THEAD: "T head"}


class Way:
    """What a variant changes: kernels that stay old, warps of kernels, tilings of products (n, k, mode, tokens)."""

    def __init__(self, old=(), warps=None, blocks=None, flags=None):
        self.old, self.warps, self.blocks, self.flags = tuple(old), dict(warps or {}), dict(blocks or {}), dict(flags or {})

    def __str__(self):
        return f"{self.warps} {self.blocks} {self.flags}"


class Trial(Labels):
    def __init__(self, card: Card, way: Way, only=None):
        super().__init__(card)
        self.way, self.only, self.cache = way, only, {}

    def __call__(self, kernel, grid, *arguments, **meta):
        name = kernel.fn.__name__
        if name in self.way.old:
            kernel = OLD[name]
            meta.pop("PRECISION", None)
            if name == "norm_kernel":
                parts = arguments[1]
                stride = parts.stride(0) if parts.dim() == 3 else 0
                arguments = (*arguments[:6], stride, *arguments[7:])
        elif name in self.way.warps:
            meta["num_warps"] = self.way.warps[name]
        if name not in self.way.old:
            meta |= self.way.flags.get(name, {})
        if name == "gemv_kernel":
            key = (meta["N"], meta["K"], meta["MODE"], meta["TOKENS"])
            if key in self.way.blocks:
                rows, warps, *limit = self.way.blocks[key]
                if limit:
                    meta["maxnreg"] = limit[0]
                grid = (triton.cdiv(meta["N"], rows),)
                meta |= {"BLOCK_N": rows, "num_warps": warps}
        if self.only is not None:
            text = f"{name} {''.join('01'[a is None] for a in arguments)} {sorted(meta.items())}"
            if not self.only(name, text):
                return
        super().__call__(kernel, grid, *arguments, **meta)


class Bench:
    def __init__(self, size, rows, deterministic, layers=None):
        self.rows, self.size = rows, size
        self.model = build(size, BF16, rows, CONTEXT + 150, True, layers=layers, deterministic=deterministic)
        generator = torch.Generator(DEVICE).manual_seed(7)
        tables = self.model.tables
        self._hidden = torch.randn(tables.hidden.shape, generator=generator, device=DEVICE).to(BF16)
        for kept in (self.model.cache.cache.k, self.model.cache.cache.v):
            for layer in kept:
                layer.copy_(torch.randn(layer.shape, generator=generator, device=DEVICE))
        self.model.rows[:] = torch.arange(rows, device=DEVICE)
        self._stream = torch.cuda.Stream() if DEVICE.type == "cuda" else None

    def use(self, way, only=None):
        model = self.model
        launch = Trial(launcher(True).card, way, only)
        model.launch = model.talker.launch = model.predictor.launch = launch
        return launch

    def reset(self):
        tables = self.model.tables
        tables.frames[:], tables.positions[:], tables.seen[:] = 0, CONTEXT, 0
        tables.seeds[:] = torch.arange(len(tables.seeds), device=DEVICE) * 37 + 1000
        tables.code_0[:] = torch.arange(len(tables.seeds), device=DEVICE) % 2000
        tables.hidden.copy_(self._hidden)
        tables.text_counts[:] = 0

    def measure(self, way, profile=False, repeats=30):
        labels = self.use(way)

        def launch():
            labels.notes.clear()
            self.model.frame(self.rows)

        if DEVICE.type != "cuda":
            self.reset()
            launch()
            return {"ms": 0.0}, self.model.tables.codes[: self.rows, :1].clone()
        graphs = Graphs(self._stream, eager=False)
        with torch.cuda.stream(self._stream):
            self.reset()
            graphs.record(0, launch)
            self.reset()
            ms = median_ms(partial(graphs.replay, 0), repeats)
            self.reset()
            for _ in range(3):
                graphs.replay(0)
            torch.cuda.synchronize()
            codes = self.model.tables.codes[: self.rows, :3].clone()
            found = {"ms": round(ms, 4)}
            if profile:
                self.reset()
                try:
                    found["kernels"] = {row["kernel"]: (row["launches"], row["us_each"]) for row in by_kernel(labels.notes, partial(graphs.replay, 0))}
                except RuntimeError as failure:
                    found["profile"] = str(failure)
        return found, codes


class Report:
    def __init__(self, path):
        self.path, self.data, self.lines = path, {}, []

    def put(self, value, *keys):
        place = self.data
        for key in keys[:-1]:
            place = place.setdefault(key, {})
        place[keys[-1]] = value
        self.path.write_text(json.dumps(self.data, indent=1, default=str))
        short = {k: v for k, v in value.items() if k != "kernels"} if isinstance(value, dict) else value
        line = f"[{time.perf_counter() - BEGAN:5.0f} s] {' | '.join(map(str, keys))} {str(short)[:260]}"
        print(line, flush=True)


ALL_OLD = Way(A + D + N)
def tiles(**given):
    names = {name.lower().replace(" ", "_").replace("-", "_"): product for product, name in NAMES.items()}
    blocks = {}
    for name, tile in given.items():
        tokens = 2 if name.startswith("two_") else 1
        blocks[(*names[name.removeprefix("two_")], tokens)] = tile
    return Way((), {}, blocks)


SMALL_WAYS = {
    "old": ALL_OLD,
    "new": Way(),
    "as tuned before": tiles(qkv=(8, 4), head=(8, 4), t_down=(4, 8), t_head=(8, 4)),
    "head (8, 4)": tiles(head=(8, 4)),
    "head (4, 2)": tiles(head=(4, 2)),
    "down (2, 2)": tiles(down=(2, 2)),
    "o (4, 4)": tiles(o=(4, 4)),
    "o (4, 4), down (2, 2)": tiles(o=(4, 4), down=(2, 2)),
    "two qkv (4, 2)": tiles(two_qkv=(4, 2)),
    "two qkv (8, 4)": tiles(two_qkv=(8, 4)),
    "T down (4, 8)": tiles(t_down=(4, 8)),
    "T qkv (4, 2)": tiles(t_qkv=(4, 2)),
    "T qkv (2, 1)": tiles(t_qkv=(2, 1)),
    "T gate-up (4, 4)": tiles(t_gate_up=(4, 4)),
    "T gate-up (4, 2)": tiles(t_gate_up=(4, 2)),
    "T o (4, 4)": tiles(t_o=(4, 4)),
    "new, again": Way(),
}
MANY_WAYS = {"old": ALL_OLD, "new": Way()}
ONE_WAY = MANY_WAYS
SCENES = [("1.7b", 1, False, SMALL_WAYS), ("0.6b", 1, False, SMALL_WAYS), ("1.7b", 64, True, ONE_WAY), ("1.7b", 256, True, ONE_WAY), ("0.6b", 64, True, ONE_WAY), ("0.6b", 256, True, ONE_WAY), ("1.7b", 1, True, ONE_WAY), ("1.7b", 8, True, ONE_WAY), ("1.7b", 128, True, ONE_WAY)]
SHARES = 4


def compile_job(job):
    began = time.perf_counter()
    try:
        with torch.inference_mode():
            if job[0] == "frame":
                _, size, rows, fixed, index = job
                bench = Bench(size, rows, fixed, layers=1)
                ways = SMALL_WAYS if rows == 1 else MANY_WAYS
                seen = set()

                def share(name, text):
                    if text in seen:
                        return False
                    seen.add(text)
                    return zlib.crc32(text.encode()) % SHARES == index

                bench.use(ways["new"], share)
                bench.model.frame(rows)
            elif job[0] == "way":
                _, size, rows, fixed, name = job
                bench = Bench(size, rows, fixed, layers=1)
                way = (SMALL_WAYS if rows == 1 else MANY_WAYS)[name]
                bench.use(way, lambda kernel, _: kernel in way.old or bool(way.blocks) and kernel == "gemv_kernel")
                bench.model.frame(rows)
            else:
                _, (n, k, mode), tokens, tiles = job
                kind = {"dtype": BF16, "device": DEVICE}
                x, weight, out = torch.zeros(tokens, k, **kind), torch.zeros(2 * n if mode == GATED.value else n, k, **kind), torch.zeros(tokens, n, **kind)
                norm = None if mode == ADD.value or n in (2048, 3072) and mode == 0 else (torch.ones(k, **kind), 1e-6)
                for tile in tiles:
                    launch = Trial(launcher(True).card, Way((), {}, {(n, k, mode, tokens): tile}, {G: EARLY}))
                    linear.gemv(launch, x, weight, out, mode=mode, norm=norm)
            torch.cuda.synchronize()
    except Exception as failure:
        return f"{job[:5]}: {type(failure).__name__}: {str(failure)[:300]}"
    taken = time.perf_counter() - began
    return f"{job[:5]} {taken:.0f} s" if taken > 25 else ""


def jobs():
    found = [("frame", size, rows, fixed, index) for size, rows, fixed, _ in SCENES[:4] for index in range(SHARES)]
    found += [("way", size, 1, False, name) for size in ("1.7b", "0.6b") for name in SMALL_WAYS]
    found += [("way", size, 64, True, "old") for size in ("1.7b", "0.6b")]
    found += [("frame", size, rows, fixed, index) for size, rows, fixed, _ in SCENES[4:] for index in range(SHARES)]
    return found


# ---- attention alone


def attention_alone(report):
    """The kernel against float64, the old kernel against float64, and a row alone against a row in a batch."""
    from vivavoce_engine.gpu.attention import Cache, Projected
    from vivavoce_engine.models.layers import Rope, rotate, RMSNorm
    from vivavoce_engine.checkpoint.networks import RopeConfig

    for dtype in (BF16, torch.float32):
        heads, kv_heads, dim, batch, length = 16, 8, 128, 9, 16
        generator = torch.Generator(DEVICE).manual_seed(3)
        told = torch.randn(length, batch, (heads + 2 * kv_heads) * dim, generator=generator, device=DEVICE).to(dtype)
        weight = (1 + 0.1 * torch.randn(heads + kv_heads, dim, generator=generator, device=DEVICE)).to(dtype)
        rope = Rope(RopeConfig(1e6, dim))
        cos, sin = (x.view(length, dim).to(DEVICE) for x in rope(torch.arange(length)[None]))
        worst = {"new": 0.0, "old": 0.0}
        outs = {}
        for kind, way in (("old", Way(A)), ("new", Way()), ("new, 4 rows", Way()), ("new, 2 warps", Way((), {A[0]: 2}))):
            some = 4 if kind == "new, 4 rows" else batch
            k = torch.full((1, some, length, kv_heads, dim), float("nan"), device=DEVICE, dtype=dtype)
            cache = Cache(k, k.clone(), cos, sin, heads)
            launch = Trial(launcher(True).card, way)
            outs[kind] = []
            for position in range(1, length):
                qkv = (told[:2, :some].flatten(0, 1) if position == 1 else told[position, :some]).contiguous()
                out = torch.full((len(qkv), heads * dim), float("nan"), device=DEVICE, dtype=dtype)
                frame_attention.attend_in_frame(launch, cache, some, position, Projected(0, qkv, (weight, 1e-6), out))
                outs[kind].append(out[-some:])
            outs[kind + " k"] = cache.k[0]
            outs[kind + " v"] = cache.v[0]
        norm = RMSNorm((heads + kv_heads, dim), 1e-6).to(DEVICE)
        norm.weight.data = weight.float()
        every = told.float().view(length, batch, -1, dim)
        qk = rotate(norm(every[:, :, : heads + kv_heads]).transpose(0, 1), *(x.to(DEVICE) for x in rope(torch.arange(length)[None]))).double()
        v = every[:, :, heads + kv_heads :].transpose(0, 1).double().repeat_interleave(2, 2)
        q, k = qk[:, :, :heads], qk[:, :, heads:].repeat_interleave(2, 2)
        found = {}
        for kind in ("old", "new", "new, 2 warps"):
            errors = []
            for position in range(1, length):
                scores = torch.einsum("bhd,blhd->bhl", q[:, position], k[:, : position + 1]) / dim**0.5
                exact = torch.einsum("bhl,blhd->bhd", scores.softmax(-1), v[:, : position + 1]).flatten(1)
                errors.append(((outs[kind][position - 1].double() - exact).norm() / exact.norm()).item())
            found[kind + " error"] = max(errors)
        found["row alone equal"] = all(torch.equal(a[:4], b) for a, b in zip(outs["new"], outs["new, 4 rows"], strict=True))
        found["k equal share"] = (outs["new k"] == outs["old k"])[:, 2:].float().mean().item()
        found["v equal"] = torch.equal(outs["new v"], outs["old v"])
        report.put(found, "attention alone", str(dtype))


def draws_alone(report):
    """Old and new draws of many random logits."""
    vocab, batch = 3072, 256
    from vivavoce_engine.gpu.sampler import RowTables

    unequal, count = 0, 0
    for turn in range(24):
        generator = torch.Generator(DEVICE).manual_seed(turn)
        logits = (torch.randn(batch, vocab, generator=generator, device=DEVICE) * (0.5 + turn % 5)).to(BF16)
        if turn % 4 == 3:
            logits = logits.round()
        codes = {}
        for kind, way in (("old", Way(D)), ("new", Way())):
            tables = RowTables.allocate(batch, 4, vocab, 8, 4, 2, like=torch.empty(0, device=DEVICE))
            tables.params[:] = torch.tensor([(0.9, 50, 1.0, 1.05), (1.0, 0, 0.9, 1.1), (1.2, 5, 0.7, 1.0), (0.0, 0, 1.0, 1.0)][(turn // 2) % 4], device=DEVICE)
            tables.seeds[:] = torch.arange(batch + 1, device=DEVICE) * 977 + turn
            tables.seen[:, ::7] = 1
            rows = torch.arange(batch, device=DEVICE, dtype=torch.int32)
            ended = torch.zeros(batch, dtype=torch.int32, device=DEVICE)
            sampler.draw_code_0(Trial(launcher(True).card, way), logits, rows, tables, ended, 2150, 2048)
            codes[kind] = tables.code_0[:batch].clone()
        unequal += int((codes["old"] != codes["new"]).sum())
        count += batch
    report.put({"draws": count, "unequal": unequal}, "draws alone")


# ---- whole frames


def scene(report, size, rows, fixed, ways, deadline_s):
    name = f"{size} {rows} rows" + ", deterministic" * (fixed and rows == 1)
    bench = Bench(size, rows, fixed)
    base, turns = None, 3 if rows == 1 else 2
    times = {}
    for turn in range(turns):
        for way_name, way in ways.items():
            if time.perf_counter() - BEGAN > deadline_s:
                return
            try:
                found, codes = bench.measure(way, repeats=30 if rows == 1 else 15)
                base = codes if base is None else base
                times.setdefault(way_name, []).append(found["ms"])
                found = {"ms": min(times[way_name]), "all": times[way_name], "codes equal to old": round((codes == base).float().mean().item(), 4)}
                if turn == turns - 1:
                    report.put(found, name, way_name)
            except Exception:
                report.put(traceback.format_exc()[-500:], name, way_name)


def profiles(report):
    for size, rows, fixed, _ in SCENES[:4]:
        bench = Bench(size, rows, fixed)
        for kind, way in (("old", ALL_OLD), ("new", Way())):
            report.put(bench.measure(way, profile=True, repeats=5)[0], f"{size} {rows} rows, profile", kind)
        del bench
        free()


def free():
    import gc

    gc.collect()
    torch.cuda.empty_cache()


def table(report):
    print("\n==== table")
    for name, ways in report.data.items():
        if not isinstance(ways, dict):
            continue
        for way, found in ways.items():
            if not (isinstance(found, dict) and "ms" in found):
                continue
            kernels = found.get("kernels", {})
            small = {k: v for k, v in kernels.items() if any(x in k for x in ("frame_att", "draw", "norm", "gemv"))}
            text = "; ".join(f"{k.replace('_kernel', '')} {n}x {us}" for k, (n, us) in list(small.items())[:14])
            print(f"{name} | {way} | {found['ms']} ms | equal {found.get('codes equal to old')} | {text}")


def attempt(report, name, call, *arguments):
    try:
        return call(report, *arguments)
    except Exception:
        report.put(traceback.format_exc()[-700:], "fault", name)
        return None


@torch.inference_mode()
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--limit", type=float, default=128)
    args = parser.parse_args()
    report = Report(args.out)
    if DEVICE.type == "cuda":
        report.put({"card": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__}, "versions")
        pool = multiprocessing.get_context("spawn").Pool(16)
        results = [pool.apply_async(compile_job, (job,)) for job in jobs()]
        notes = []
        for result in results:
            try:
                notes.append(result.get(max(0.3, 62 - (time.perf_counter() - BEGAN))))
            except multiprocessing.TimeoutError:
                notes.append("not in time")
        pool.terminate()
        report.put([note for note in notes if note], "compiled")
    limit = args.limit
    for at in range(len(SCENES)):
        attempt(report, str(SCENES[at][:3]), scene, *SCENES[at], limit)
        free()
    attempt(report, "attention alone", attention_alone)
    attempt(report, "draws alone", draws_alone)
    if time.perf_counter() - BEGAN < limit:
        attempt(report, "profiles", profiles)
    if time.perf_counter() - BEGAN < limit:
        for size in ("1.7b",):
            attempt(report, "modules", lambda r: r.put(frames.check_modules(size), "modules", size))
            attempt(report, "batches", lambda r: r.put(frames.check_batches(size), "batches", size))
    table(report)
    print(f"done in {time.perf_counter() - BEGAN:.0f} s", flush=True)


if __name__ == "__main__":
    main()
