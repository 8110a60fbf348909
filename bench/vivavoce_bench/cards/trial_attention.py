"""Ways of the talker's attention, tried on a GPU.

    python -m vivavoce_bench.cards.trial_attention OUT.json [--seconds 100] [--tiny]
"""

# ruff: noqa
# mypy: ignore-errors

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import time
import traceback
from pathlib import Path

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from vivavoce_bench.cards import trial_hoisted, trial_plain
from vivavoce_bench.cards.trial_present import CHUNK, NOTHING, Cache, shares
from vivavoce_engine.gpu.card import Card
from vivavoce_engine.gpu.heads import load_rotation, norm_rotate, norm_weights
from vivavoce_engine.gpu.launch import Launcher
from vivavoce_engine.gpu.prefetch import prefetch_rows
from vivavoce_engine.models.layers import Rope
from vivavoce_engine.checkpoint.networks import RopeConfig


@triton.jit
def touch_kernel(source_ptr, target_ptr, SIZE: tl.constexpr, DEPENDENT: tl.constexpr = False):
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(target_ptr + at, tl.load(source_ptr + at))


@triton.jit
def weigh(q, k, v, past, scale, TALL: tl.constexpr, PRECISION: tl.constexpr):
    """A tile's maximum, sum and weighted values. TALL: q [D, N], results [N], [N], [D, N]; else [M, D]."""
    if TALL:
        score = tl.dot(k, q, input_precision=PRECISION) * scale
        score = tl.where(past[:, None], score, NOTHING)
        m = tl.max(score, axis=0)
        weight = tl.exp(score - m[None, :])
        total = tl.sum(weight, axis=0)
        acc = tl.dot(v, weight.to(v.dtype), input_precision=PRECISION)
    else:
        score = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
        score = tl.where(past[None, :], score, NOTHING)
        m = tl.max(score, axis=1)
        weight = tl.exp(score - m[:, None])
        total = tl.sum(weight, axis=1)
        acc = tl.dot(weight.to(v.dtype), v, input_precision=PRECISION)
    return m, total, acc


@triton.jit
def merge_lines(part_ptr, out_ptr, lines, G: tl.constexpr, D: tl.constexpr, UNROLL: tl.constexpr):
    COLUMNS: tl.constexpr = triton.next_power_of_2(G * D)
    column = tl.arange(0, COLUMNS)
    real = column < G * D
    m = tl.full((COLUMNS,), NOTHING, tl.float32)
    total = tl.zeros((COLUMNS,), tl.float32)
    acc = tl.zeros((COLUMNS,), tl.float32)
    first = lines * 0
    while first < lines:
        for number in tl.static_range(UNROLL):
            there = real & (first + number < lines)
            part = part_ptr + ((first + number) * G + column // D) * (D + 2)
            next_m = tl.load(part + D, mask=there, other=NOTHING, cache_modifier=".cg")
            next_total = tl.load(part + (D + 1), mask=there, other=0.0, cache_modifier=".cg")
            next_acc = tl.load(part + column % D, mask=there, other=0.0, cache_modifier=".cg")
            m, left, right = shares(m, next_m)
            total = tl.fma(total, left, next_total * right)
            acc = tl.fma(acc, left, next_acc * right)
        first += UNROLL
    tl.store(out_ptr + column, (acc / tl.where(real, total, 1.0)).to(out_ptr.dtype.element_ty), mask=real)


@triton.jit
def spread(x, TALL: tl.constexpr):
    """[N] → [1, N] for TALL, [N, 1] else."""
    if TALL:
        return x[None, :]
    else:
        return x[:, None]


@triton.jit(do_not_specialize=["chunks_max", "lines_max"])
def trial_kernel(
    qkv_ptr, norm_ptr, cos_ptr, sin_ptr, rows_ptr, positions_ptr, pages_ptr, k_ptr, v_ptr, out_ptr, part_ptr,
    arrived_ptr, eps, scale, chunks_max, lines_max,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, CHUNK: tl.constexpr, SPLITS: tl.constexpr,
    BY_ROW: tl.constexpr, WRITE: tl.constexpr, PRECISION: tl.constexpr,
    TALL: tl.constexpr, N: tl.constexpr, TILE: tl.constexpr, STAGES: tl.constexpr, ORDER: tl.constexpr,
    AHEAD: tl.constexpr, SOLO: tl.constexpr, THREADS: tl.constexpr, DEPENDENT: tl.constexpr = False,
):  # fmt: skip
    if ORDER == 0:
        token, kv_head, split = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    elif ORDER == 1:
        kv_head, token, split = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2)
    else:
        kv_head, split, token = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    G: tl.constexpr = HEADS // KV_HEADS
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    if DEPENDENT:
        gdc_launch_dependents()
        if not WRITE:
            gdc_wait()
    row = tl.load(rows_ptr + token).to(tl.int64)
    position = tl.load(positions_ptr + (row if BY_ROW else token)).to(tl.int32)
    d = tl.arange(0, D)
    g = tl.arange(0, N)
    real = g < G
    n = tl.arange(0, TILE)
    one = kv_head + tl.arange(0, 1)
    always = one >= 0
    pages = pages_ptr + row * chunks_max
    PER: tl.constexpr = CHUNK // TILE
    tiles = (position + TILE - 1) // TILE
    cos, sin = load_rotation(cos_ptr, sin_ptr, cos_ptr, row, token, position, D, BY_ROW, 0, 0)
    q_weight, q_turned = norm_weights(norm_ptr, kv_head * G + g, D, real)
    k_weight, k_turned = norm_weights(norm_ptr, HEADS + one, D, always)
    own_page = tl.load(pages + position // CHUNK).to(tl.int64)
    begin = split
    step = SPLITS
    alone = SPLITS == 1
    if SPLITS > 1 and SOLO > 0:
        alone = tiles <= SOLO
        step = tl.where(alone, 1, SPLITS)
        tiles = tl.where(alone & (split > 0), 0, tiles)
    page = tl.load(pages + begin // PER, mask=begin < tiles, other=0).to(tl.int64)
    offset = n[:, None] * (KV_HEADS * D) + d[None, :]
    v_offset = n[None, :] * (KV_HEADS * D) + d[:, None] if TALL else offset
    if AHEAD == 2 and SPLITS > 1:
        place = ((page * CHUNK + (begin % PER) * TILE) * KV_HEADS + kv_head) * D
        past = begin * TILE + n < position
        k_first = tl.load(k_ptr + place + offset, mask=past[:, None] & (begin < tiles), other=0.0)
        v_first = tl.load(v_ptr + place + v_offset, mask=(past[None, :] if TALL else past[:, None]) & (begin < tiles), other=0.0)
    if AHEAD == 1 and SPLITS > 1:
        there = tl.minimum(tl.maximum(position - begin * TILE, 0), TILE)
        there = tl.where(begin < tiles, there, 0)
        place = ((page * CHUNK + (begin % PER) * TILE) * KV_HEADS + kv_head) * D
        size: tl.constexpr = k_ptr.dtype.element_ty.primitive_bitwidth // 8
        for piece in tl.static_range(0, TILE, THREADS):
            rest = tl.maximum(there - piece, 0)
            prefetch_rows(k_ptr + place + piece * KV_HEADS * D, KV_HEADS * D * size, D * size, rest)
            prefetch_rows(v_ptr + place + piece * KV_HEADS * D, KV_HEADS * D * size, D * size, rest)
    if DEPENDENT and WRITE:
        gdc_wait()
    base = qkv_ptr + token * (HEADS + 2 * KV_HEADS) * D
    q = norm_rotate(base, kv_head * G + g, q_weight, q_turned, cos, sin, eps, D, real).to(dtype)
    new_k = norm_rotate(base, HEADS + one, k_weight, k_turned, cos, sin, eps, D, always).to(dtype)
    new_v = tl.load(base + (HEADS + KV_HEADS + kv_head) * D + d)
    own_score = tl.sum(q.to(tl.float32) * new_k.to(tl.float32), axis=1) * scale
    if WRITE:
        own = ((own_page * CHUNK + position % CHUNK) * KV_HEADS + kv_head) * D
        mine = split == 0
        tl.store(k_ptr + own + d[None, :] + 0 * one[:, None], new_k, mask=mine & (d[None, :] >= 0))
        tl.store(v_ptr + own + d, new_v, mask=mine & (d >= 0))
    if TALL:
        operand = tl.trans(q)
        acc = tl.zeros((D, N), tl.float32)
        across = d[:, None] + g[None, :] * 0
    else:
        operand = q
        acc = tl.zeros((N, D), tl.float32)
        across = d[None, :] + g[:, None] * 0
    m = tl.full((N,), NOTHING, tl.float32)
    total = tl.zeros((N,), tl.float32)
    lines = part_ptr + (token * KV_HEADS + kv_head) * lines_max * (G * (D + 2))
    if AHEAD == 2 and SPLITS > 1:
        if begin < tiles:
            past = begin * TILE + n < position
            next_m, next_total, next_acc = weigh(operand, k_first, v_first, past, scale, TALL, PRECISION)
            m, total, acc = next_m, next_total, next_acc
            part = lines + (begin * G + g) * (D + 2)
            kept = real if SOLO == 0 else real & (not alone)
            tl.store(spread(part, TALL) + across, next_acc, mask=spread(kept, TALL))
            tl.store(part + D, next_m, mask=kept)
            tl.store(part + D + 1, next_total, mask=kept)
        begin += step
        page = tl.load(pages + begin // PER, mask=begin < tiles, other=0).to(tl.int64)
    for tile in tl.range(begin, tiles, step, num_stages=STAGES):
        past = tile * TILE + n < position
        page = tl.load(pages + tile // PER).to(tl.int64)
        place = ((page * CHUNK + (tile % PER) * TILE) * KV_HEADS + kv_head) * D
        k = tl.load(k_ptr + place + offset, mask=past[:, None], other=0.0)
        v = tl.load(v_ptr + place + v_offset, mask=past[None, :] if TALL else past[:, None], other=0.0)
        next_m, next_total, next_acc = weigh(operand, k, v, past, scale, TALL, PRECISION)
        if SPLITS == 1 or SOLO > 0:
            m, left, right = shares(m, next_m)
            total = tl.fma(total, left, next_total * right)
            acc = tl.fma(acc, tl.broadcast_to(spread(left, TALL), acc.shape), next_acc * spread(right, TALL))
        if SPLITS > 1:
            part = lines + (tile * G + g) * (D + 2)
            kept = real if SOLO == 0 else real & (not alone)
            tl.store(spread(part, TALL) + across, next_acc, mask=spread(kept, TALL))
            tl.store(part + D, next_m, mask=kept)
            tl.store(part + D + 1, next_total, mask=kept)
    own_v = tl.load(base + (HEADS + KV_HEADS + kv_head) * D + across).to(tl.float32)
    whole = split == 0
    if SPLITS == 1 or SOLO > 0:
        m, left, right = shares(m, own_score)
        total = tl.fma(total, left, right)
        acc = tl.fma(acc, tl.broadcast_to(spread(left, TALL), acc.shape), own_v * spread(right, TALL))
        total = tl.where(real, total, 1.0)
        out = out_ptr + (token * HEADS + kv_head * G + g) * D
        kept = real if SPLITS == 1 else real & (alone & whole)
        tl.store(spread(out, TALL) + across, (acc / spread(total, TALL)).to(dtype), mask=spread(kept, TALL))
    if SPLITS > 1:
        if not alone:
            part = lines + (tiles * G + g) * (D + 2)
            kept = real & whole
            tl.store(spread(part, TALL) + across, own_v, mask=spread(kept, TALL))
            tl.store(part + D, own_score, mask=kept)
            tl.store(part + D + 1, 1.0, mask=kept)
            tl.debug_barrier()
            arrived = tl.atomic_add(arrived_ptr + token * KV_HEADS + kv_head, 1, sem="acq_rel")
            if arrived == SPLITS - 1:
                merged = out_ptr + (token * HEADS + kv_head * G) * D
                merge_lines(lines, merged, tiles + 1, G, D, SPLITS)
                tl.store(arrived_ptr + token * KV_HEADS + kv_head, 0)


class Way:
    """A variant. `splits_max` programs share a token in a call of at most `split_tokens` tokens."""

    def __init__(self, tall=0, warps=2, tile=64, stages=5, order=1, ahead=0, solo=0, n=0, splits=8, base=False, kernel='', regs=0, until=8):
        self.until = until
        self.kernel, self.regs = kernel, regs
        self.tall, self.warps, self.tile, self.stages, self.order = tall, warps, tile, stages, order
        self.ahead, self.solo, self.splits, self.base = ahead, solo, splits, base
        self.n = n or (8 if tall else 16)

    @property
    def name(self):
        if self.base:
            return "present"
        if self.kernel:
            return f"{self.kernel} w{self.warps} t{self.tile} s{self.stages} r{self.regs} x{self.splits} to {self.until}"
        shape = f"tall{self.n}" if self.tall else "flat"
        return f"{shape} w{self.warps} t{self.tile} s{self.stages} o{self.order} a{self.ahead} solo{self.solo} x{self.splits}"


def grid_of(way, tokens, kv_heads, splits):
    return [(tokens, kv_heads, splits), (kv_heads, tokens, splits), (kv_heads, splits, tokens)][way.order]


class Bench:
    """Caches of the 1.7B shape in shuffled pages."""

    HEADS, KV, D = 16, 8, 128

    def __init__(self, device, dtype, layers, pages, launcher, seed=0):
        self.device, self.dtype, self.launch = device, dtype, launcher
        self.generator = torch.Generator(device).manual_seed(seed)
        shape = (layers, pages, CHUNK, self.KV, self.D)
        self.k = torch.empty(shape, dtype=dtype, device=device)
        self.v = torch.empty(shape, dtype=dtype, device=device)
        for cached in (self.k, self.v):
            for layer in cached:
                layer.normal_(generator=self.generator)
        self.k.mul_(0.3)
        table = Rope(RopeConfig(1e6, self.D))(torch.arange(4200)[None])
        self.cos, self.sin = (one[0, :, 0].contiguous().to(device) for one in table)
        self.norm = (torch.ones(self.HEADS + self.KV, self.D, device=device) + 0.1 * self.normal(24, self.D).float()).to(dtype)
        self.cache = Cache(self.k, self.v, self.cos, self.sin, self.HEADS)
        self.arrived = torch.zeros(256 * self.KV, dtype=torch.int32, device=device)

    def normal(self, *shape):
        return torch.randn(shape, generator=self.generator, device=self.device).to(self.dtype)

    def paged(self, rows, chunks):
        order = torch.randperm(self.k.shape[1], generator=self.generator, device=self.device)[: rows * chunks]
        return order.view(rows, chunks).int()

    def call(self, way, layer, qkv, out, rows, positions, table, part, *, by_row=True, write=True, split=None):
        tokens = len(qkv)
        splits = (way.splits if tokens <= way.until else 1) if split is None else split
        if way.kernel:
            module = trial_plain if way.kernel == "plain" else trial_hoisted
            more = {"maxnreg": way.regs} if way.regs else {}
            self.launch(
                module.attention_kernel, (self.KV, tokens, splits), qkv, self.norm, self.cos, self.sin, rows, positions, table, self.k[layer],
                self.v[layer], out, part, self.arrived, None, None, 1e-6, self.D**-0.5, table.shape[1],
                HEADS=self.HEADS, KV_HEADS=self.KV, D=self.D, CHUNK=CHUNK, TILE=way.tile, STAGES=way.stages, SPLITS=splits, BY_ROW=by_row, WRITE=write,
                PRECISION="ieee" if self.dtype == torch.float32 else "tf32", num_warps=way.warps, **more,
            )  # fmt: skip
            return
        if way.base:
            self.launch(
                present_kernel(), (tokens, self.KV, splits), qkv, self.norm, self.cos, self.sin, rows, positions, table, self.k[layer],
                self.v[layer], out, part, self.arrived, None, None, 1e-6, self.D**-0.5, table.shape[1],
                HEADS=self.HEADS, KV_HEADS=self.KV, D=self.D, CHUNK=CHUNK, SPLITS=splits, BY_ROW=by_row, WRITE=write,
                PRECISION="ieee" if self.dtype == torch.float32 else "tf32", num_warps=4,
            )  # fmt: skip
            return
        self.launch(
            trial_kernel, grid_of(way, tokens, self.KV, splits), qkv, self.norm, self.cos, self.sin, rows, positions,
            table, self.k[layer], self.v[layer], out, part, self.arrived, 1e-6, self.D**-0.5, table.shape[1],
            table.shape[1] * (CHUNK // way.tile) + 1,
            HEADS=self.HEADS, KV_HEADS=self.KV, D=self.D, CHUNK=CHUNK, SPLITS=splits, BY_ROW=by_row, WRITE=write,
            PRECISION="ieee" if self.dtype == torch.float32 else "tf32", TALL=bool(way.tall), N=way.n, TILE=way.tile,
            STAGES=way.stages, ORDER=way.order, AHEAD=way.ahead, SOLO=way.solo, THREADS=32 * way.warps,
            num_warps=way.warps,
        )  # fmt: skip

    def reference(self, layer, qkv, lengths, table):
        """float64 attention of tokens at positions `lengths` → [T, HEADS * D]."""
        out = []
        for token, n in enumerate(lengths):
            heads = qkv[token].view(-1, self.D)
            x = heads[: self.HEADS + self.KV].double()
            x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.norm.double()
            half = torch.cat([x[:, self.D // 2 :], x[:, : self.D // 2]], -1)
            x = x * self.cos[n].double() + half * self.sin[n].double()
            x = x.to(self.dtype).double()
            page = table[token].long()
            k = torch.cat([self.k[layer, page].flatten(0, 1)[:n].double(), x[None, self.HEADS :]])
            v = torch.cat([self.v[layer, page].flatten(0, 1)[:n].double(), heads[None, self.HEADS + self.KV :].double()])
            k, v = (one.repeat_interleave(self.HEADS // self.KV, 1) for one in (k, v))
            weights = (torch.einsum("hd,lhd->hl", x[: self.HEADS], k) / self.D**0.5).softmax(-1)
            out.append(torch.einsum("hl,lhd->hd", weights, v).flatten())
        return torch.stack(out)


def present_kernel():
    from vivavoce_bench.cards.trial_present import attention_kernel

    return attention_kernel


LENGTHS = [0, 1, 5, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 190, 200, 255, 256, 257, 290, 310, 320, 400, 500, 511]


def check(bench, way, lengths, tiny=False):
    """Largest error to float64 as a share of the norm, and whether batch, splits and prompt agree bit for bit."""
    chunks, count = 8, len(lengths)
    table = bench.paged(count, chunks)
    held = bench.k.clone(), bench.v.clone()
    table = table.contiguous()
    for row, n in enumerate(lengths):
        for cached in (bench.k, bench.v):
            flat = cached[0, table[row].long()].flatten(0, 1)
            flat[n:] = float("nan")
            cached[0, table[row].long()] = flat.view(chunks, CHUNK, bench.KV, bench.D)
    qkv = bench.normal(count, 32 * bench.D)
    part = torch.full((count * bench.KV * (chunks * 2 + 1) * 2 * (bench.D + 2),), float("nan"), device=bench.device)
    positions = torch.tensor(lengths, device=bench.device)
    rows = torch.arange(count, dtype=torch.int32, device=bench.device)
    exact = bench.reference(0, qkv, lengths, table)
    outs = []
    for split in (1, way.splits):
        for step in (count, 1):
            out = torch.full((count, bench.HEADS * bench.D), float("nan"), dtype=bench.dtype, device=bench.device)
            if tiny and step == 1 and split == 1:
                continue
            for at in range(0, count, step):
                some = slice(at, at + step)
                bench.call(way, 0, qkv[some], out[some], rows[some], positions, table, part, split=split)
            outs.append(out)
    new_k = bench.k[0, table[torch.arange(count), positions // CHUNK].long(), positions % CHUNK]
    new_v = bench.v[0, table[torch.arange(count), positions // CHUNK].long(), positions % CHUNK]
    stored = not bool(torch.isnan(new_k).any()) and torch.equal(new_v.flatten(), qkv[:, -bench.KV * bench.D :].flatten())
    if not way.base:
        out = torch.full_like(outs[0], float("nan"))
        bench.call(way, 0, qkv, out, rows, positions, table, part, by_row=False, write=False, split=1)
        outs.append(out)
    bench.k.copy_(held[0])
    bench.v.copy_(held[1])
    off = (outs[0].double() - exact).norm(dim=1) / exact.norm(dim=1)
    return {
        "error": float(off.max()),
        "equal": [bool(torch.equal(outs[0], other)) for other in outs[1:]],
        "stored": stored,
        "arrived": int(bench.arrived.abs().sum()),
    }


LAUNCHES = 28


class Timer:
    def __init__(self, bench, flush_bytes=1 << 28):
        self.bench = bench
        self.qkv_source = bench.normal(256, 32 * bench.D)
        self.qkv = self.qkv_source.clone()
        self.out = torch.empty(256, bench.HEADS * bench.D, dtype=bench.dtype, device=bench.device)
        self.part = torch.zeros(64 * bench.KV * (68 * 2 + 1) * 2 * (bench.D + 2), device=bench.device)
        self.flusher = torch.ones(flush_bytes // 4, device=bench.device)
        self.tables = {1000: bench.paged(256, 17), 4000: bench.paged(8, 66)}
        self.tables[200] = self.tables[1000]
        self.touched = {}

    def launches(self, way, tokens, context, count=LAUNCHES):
        bench = self.bench
        table = self.tables[context]
        all_rows = len(table)
        positions = torch.full((all_rows,), context, device=bench.device)
        plan = []
        for i in range(count):
            first = (i * tokens) % all_rows
            rows = (torch.arange(tokens, device=bench.device) + first) % all_rows
            plan.append(rows.int())

        def launch():
            for i in range(count):
                bench.launch(touch_kernel, (tokens,), self.qkv_source, self.qkv, SIZE=32 * bench.D)
                if way is not None:
                    bench.call(way, i % len(bench.k), self.qkv[:tokens], self.out[:tokens], plan[i], positions, table, self.part)

        return launch, plan, positions

    def us(self, way, tokens, context, replays=9):
        launch, *held = self.launches(way, tokens, context)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            launch()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            launch()
        times = []
        small = tokens * context < 30000
        for turn in range(replays + 2):
            if small:
                self.flusher.view(-1, 4096).amax(0)
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            if turn >= 2:
                times.append(begin.elapsed_time(end))
        return statistics.median(times) * 1e3 / LAUNCHES

    def attention_us(self, way, tokens, context):
        if tokens not in self.touched:
            self.touched[tokens] = self.us(None, tokens, 200)
        return round(self.us(way, tokens, context) - self.touched[tokens], 2)


def ways():
    yield Way(base=True)
    for kernel in ("hoisted", "plain"):
        for stages in (3, 5, 7):
            for splits, until in ((8, 8), (16, 8), (4, 32), (2, 64)):
                yield Way(kernel=kernel, warps=1, tile=32, stages=stages, splits=splits, until=until)


SIZES = ((1, 200), (8, 200), (16, 200), (32, 200), (64, 200), (128, 200), (256, 200), (256, 1000), (64, 1000), (1, 1000), (1, 4000), (8, 1000), (8, 4000))


def compile_share(index, count):
    bench = Bench(torch.device("cuda"), torch.bfloat16, 1, 80, Launcher.of(torch.device("cuda")))
    for way in list(ways())[index::count]:
        try:
            check(bench, way, [0, 70, 130])
        except Exception as failure:
            print("does not run:", way.name, str(failure)[-300:], flush=True)
    torch.cuda.synchronize()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=95)
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    started = time.time()
    results = {"checks": {}, "us": {}, "touch": {}, "failures": {}}

    def save():
        args.out.write_text(json.dumps(results, indent=1))

    if args.tiny:
        from dataclasses import replace

        launcher = Launcher(replace(Card.of(torch.device("cpu")), dependent_launch=False))
        bench = Bench(torch.device("cpu"), torch.float32, 1, 80, launcher)
        for way in ways():
            if way.ahead == 1 or way.solo == 0:
                continue
            results["checks"][way.name] = check(bench, way, [0, 5, 64, 130], tiny=True)
            print(way.name, results["checks"][way.name], f"{time.time() - started:.0f} s", flush=True)
        timer = Timer(Bench(torch.device("cpu"), torch.float32, 1, 256 * 17, launcher), 1 << 14)
        launch, *_ = timer.launches(Way(), 1, 200, 2)
        launch()
        return
    processes = [multiprocessing.Process(target=compile_share, args=(index, 12)) for index in range(12)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(max(1.0, 60 - (time.time() - started)))
        if process.is_alive():
            process.kill()
    print(f"compiled in {time.time() - started:.0f} s", flush=True)
    device = torch.device("cuda")
    small = Bench(device, torch.bfloat16, 1, 400, Launcher.of(device))
    good = []
    for way in ways():
        try:
            results["checks"][way.name] = check(small, way, LENGTHS)
            good.append(way)
        except Exception as failure:
            results["failures"][way.name] = str(failure)[-500:]
        save()
    print(f"checked in {time.time() - started:.0f} s", flush=True)
    timer = Timer(Bench(device, torch.bfloat16, 8, 256 * 17 + 1, Launcher.of(device)))
    for tokens, context in SIZES:
        for way in good:
            if time.time() - started > args.seconds:
                break
            try:
                results["us"].setdefault(way.name, {})[f"{tokens}x{context}"] = timer.attention_us(way, tokens, context)
            except Exception as failure:
                results["failures"][f"{way.name} {tokens}x{context}"] = str(failure)[-500:]
        results["touch"] = timer.touched
        save()
        print(f"{tokens}x{context} in {time.time() - started:.0f} s", flush=True)
    print("us a launch".ljust(38), *(f"{tokens}x{context}".rjust(9) for tokens, context in SIZES), "error, equal, stored")
    for way in good:
        line, seen = results["us"].get(way.name, {}), results["checks"][way.name]
        print(way.name.ljust(38), *(str(line.get(f"{t}x{c}", "")).rjust(9) for t, c in SIZES),
              f"{seen['error']:.1e}", "".join("y" if one else "N" for one in seen["equal"]), seen["stored"], seen["arrived"])  # fmt: skip
    print("failures", json.dumps(results["failures"], indent=1))


if __name__ == "__main__":
    main()
