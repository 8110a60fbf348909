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
ATT = {"plain": {}, "ordered": {"ORDERED": True}, "late": {"LATE": True}, "late, ordered": {"LATE": True, "ORDERED": True}}
G, EARLY = "gemv_kernel", {"EARLY": True}


def small(att, early, blocks=None, norm=8):
    return Way((), {N[0]: norm}, {(*product, 1): tile for product, tile in (blocks or {}).items()}, {A[0]: ATT[att]} | ({G: EARLY, N[0]: EARLY} if early else {}))


SMALL_WAYS = {"old": ALL_OLD, "new": small("plain", False)}
SMALL_WAYS |= {f"{att}, early {early}": small(att, early) for early in (False, True) for att in ATT}
MANY_WAYS = {
    "old": ALL_OLD,
    "new": small("plain", False),
    "ordered": small("ordered", False),
    "late": small("late", False),
    "late, ordered": small("late, ordered", False),
    "ordered, early norm": Way((), {N[0]: 8}, {}, {A[0]: ATT["ordered"], N[0]: EARLY}),
    "ordered, norm 16": small("ordered", False, norm=16),
    "ordered, early norm 16": Way((), {N[0]: 16}, {}, {A[0]: ATT["ordered"], N[0]: EARLY}),
}
GRID = {
    GU: [(2, 1), (8, 4), (4, 4), (2, 1, 112), (2, 1, 96), (8, 4, 80)],
    O: [(2, 4), (4, 4), (8, 4)],
}
TILES = {
    DOWN: [(4, 8), (2, 4), (8, 8), (2, 2)],
    QKV: [(2, 1), (4, 2), (4, 4), (8, 8), (16, 8), (4, 1)],
    TGU: [(8, 4, 128), (4, 4), (4, 2), (2, 1), (8, 8), (2, 2)],
    TDOWN: [(4, 4), (2, 4), (2, 8), (8, 8)],
    TQKV: [(4, 2), (4, 4), (8, 8), (16, 8)],
    TO: [(4, 4), (8, 4), (2, 2)],
    HEAD: [(2, 1), (4, 2), (4, 4)],
}
TWO = {QKV: [(4, 2), (2, 1)], GU: [(2, 2), (4, 4), (8, 8)], DOWN: [(4, 8), (2, 4)], O: [(4, 4), (2, 2)]}
SCENES = [("1.7b", 1, False, SMALL_WAYS), ("1.7b", 256, True, MANY_WAYS), ("1.7b", 64, True, MANY_WAYS), ("0.6b", 1, False, SMALL_WAYS)]
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
                bench.use(way, lambda kernel, _: kernel in way.old or kernel in way.warps or kernel in way.flags)
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
    found = [("frame", size, rows, fixed, index) for size, rows, fixed, _ in SCENES for index in range(SHARES)]
    found += [("way", "1.7b", 1, False, name) for name in SMALL_WAYS]
    found += [("way", "0.6b", 1, False, "old")]
    found += [("way", "0.6b", 1, False, "ordered, early True")]
    found += [("way", "1.7b", 64, True, name) for name in MANY_WAYS]
    for tokens, table in ((1, GRID | TILES), (2, TWO)):
        found += [("tiles", product, tokens, tiles[at::2]) for product, tiles in table.items() for at in range(2)]
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
    name = f"{size} {rows} rows"
    bench = Bench(size, rows, fixed)
    base = None
    for way_name, way in [*ways.items(), ("old, again", ways["old"])]:
        if time.perf_counter() - BEGAN > deadline_s:
            report.put("no time", name, way_name)
            continue
        try:
            found, codes = bench.measure(way, profile=rows > 1, repeats=40 if rows == 1 else 15)
            if base is None:
                base = codes
            found["codes equal to old"] = round((codes == base).float().mean().item(), 4)
            report.put(found, name, way_name)
        except Exception:
            report.put(traceback.format_exc()[-500:], name, way_name)
    return bench


def tune(report, bench, deadline_s, products):
    """Tries tilings: first those of gate-up and o together, then the others one at a time. The best stays."""
    name = f"{bench.size} {bench.rows} rows, tiles"
    best, way = 1e9, None
    for att in ("ordered", "late, ordered"):
        for early in (True, False):
            for gate_up in GRID[GU] if early else [(2, 1), (8, 4)]:
                for o in GRID[O] if early else [(2, 4)]:
                    if time.perf_counter() - BEGAN > deadline_s:
                        break
                    tried = small(att, early, {GU: gate_up, O: o})
                    try:
                        ms = bench.measure(tried)[0]["ms"]
                    except Exception:
                        report.put(traceback.format_exc()[-200:], name, f"{att} {early} {gate_up} {o}")
                        continue
                    report.put(ms, name, f"{att} early {early} gate-up {gate_up} o {o}")
                    if ms < best * 0.999:
                        best, way = ms, tried
    for tokens, table in ((1, TILES), (2, TWO)):
        for product in products:
            winner = None
            for tile in table.get(product, ()):
                if time.perf_counter() - BEGAN > deadline_s:
                    break
                tried = Way(way.old, way.warps, way.blocks | {(*product, tokens): tile}, way.flags)
                try:
                    ms = bench.measure(tried)[0]["ms"]
                    if ms < best * 0.9985:
                        ms = max(ms, bench.measure(tried)[0]["ms"])
                except Exception:
                    report.put(traceback.format_exc()[-200:], name, f"{NAMES[product]} tokens {tokens} {tile}")
                    continue
                report.put(ms, name, f"{NAMES[product]} tokens {tokens} {tile}")
                if ms < best * 0.9985:
                    best, winner = ms, tried
            if winner is not None:
                way = winner
    report.put(str(way), name, "chosen")
    report.put(bench.measure(small("plain", False))[0]["ms"], name, "new, again")
    report.put(bench.measure(ALL_OLD)[0]["ms"], name, "old, again")
    report.put(bench.measure(way)[0]["ms"], name, "chosen, again")
    return way


def profiles(report, kept):
    for bench, way in kept:
        name = f"{bench.size} {bench.rows} rows, profile"
        for kind, one in (("old", ALL_OLD), ("new", small("plain", False)), ("ordered, early", small("ordered", True)), ("chosen", way)):
            report.put(bench.measure(one, profile=True, repeats=5)[0], name, kind)


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
    limit, kept = args.limit, []
    for at, until, products in ((0, 0.62, list(TILES) + [GU, O]), (3, 0.8, [DOWN, QKV, HEAD, GU, O])):
        bench = attempt(report, SCENES[at][0], scene, *SCENES[at], limit)
        if bench is not None:
            way = attempt(report, "tune", tune, bench, limit * until, products)
            kept.append((bench, way or small("ordered", True)))
    attempt(report, "profiles", profiles, kept)
    kept.clear()
    bench = None
    free()
    attempt(report, "1.7b 256", scene, *SCENES[1], limit - 6)
    free()
    attempt(report, "1.7b 64", scene, *SCENES[2], limit)
    table(report)
    print(f"done in {time.perf_counter() - BEGAN:.0f} s", flush=True)


if __name__ == "__main__":
    main()
