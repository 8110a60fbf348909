"""Attention of new tokens over a row's keys and values: norm and rotation of queries and keys, the cache write, the
softmax in float32.

Positions are taken in chunks of CHUNK, and the chunks' results are merged in their order, whether one program walks
through all of them or several share them: a token's result depends neither on the batch nor on the split. A chunk is a
page of the cache, which lies anywhere in it: a table tells each row's pages in their order.
"""

# Triton reads the annotations of a kernel, so its pointers carry none.
# ruff: noqa: ANN001, ANN201
# mypy: disable-error-code="untyped-decorator,no-untyped-def"

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from vivavoce_engine.gpu.linear import pdl_option
from vivavoce_engine.pages import PAGE_POSITIONS, pages_of

CHUNK = PAGE_POSITIONS
GROUP_MIN = tl.constexpr(16)
NOTHING = tl.constexpr(-1.0e30)
"""A maximum that no score falls below; finite, so that the difference of two is a number."""


@triton.jit
def norm_rotate(base_ptr, head, norm_ptr, cos, sin, eps, D: tl.constexpr, inside):
    """Heads `head` [H] of one token of qkv: normed with norm_ptr[head], rotated → float32 [H, D], as the dtype rounds.

    cos, sin [D] float32, sin negated in its first half (models/layers.py, Rope).
    """
    dtype: tl.constexpr = base_ptr.dtype.element_ty
    d = tl.arange(0, D)
    other = (d + D // 2) % D
    x = tl.load(base_ptr + head[:, None] * D + d[None, :], mask=inside[:, None], other=0.0).to(tl.float32)
    y = tl.load(base_ptr + head[:, None] * D + other[None, :], mask=inside[:, None], other=0.0).to(tl.float32)
    rstd = tl.rsqrt(tl.sum(x * x, axis=1) / D + eps)[:, None]
    wx = tl.load(norm_ptr + head[:, None] * D + d[None, :], mask=inside[:, None], other=0.0).to(tl.float32)
    wy = tl.load(norm_ptr + head[:, None] * D + other[None, :], mask=inside[:, None], other=0.0).to(tl.float32)
    x = ((x * rstd).to(dtype).to(tl.float32) * wx).to(dtype).to(tl.float32)
    y = ((y * rstd).to(dtype).to(tl.float32) * wy).to(dtype).to(tl.float32)
    return (x * cos[None, :] + y * sin[None, :]).to(dtype).to(tl.float32)


@triton.jit
def merge(m, total, acc, m_next, total_next, acc_next):
    """Two parts of a softmax as one: maxima [G], sums [G], weighted values [G, D]."""
    highest = tl.maximum(m, m_next)
    left, right = tl.exp(m - highest), tl.exp(m_next - highest)
    return highest, total * left + total_next * right, acc * left[:, None] + acc_next * right[:, None]


@triton.jit(do_not_specialize=["chunks_max"])
def write_kv_kernel(
    qkv_ptr,
    norm_ptr,
    cos_ptr,
    sin_ptr,
    rows_ptr,
    positions_ptr,
    pages_ptr,
    k_ptr,
    v_ptr,
    eps,
    chunks_max,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    CHUNK: tl.constexpr,
) -> None:
    """Keys and values of a prompt's tokens into the cache, before any of them attends. Grid [tokens]."""
    token = tl.program_id(0).to(tl.int64)
    row = tl.load(rows_ptr + token).to(tl.int64)
    position = tl.load(positions_ptr + token).to(tl.int64)
    page = tl.load(pages_ptr + row * chunks_max + position // CHUNK).to(tl.int64)
    d = tl.arange(0, D)
    head = tl.arange(0, triton.next_power_of_2(KV_HEADS))
    inside = head < KV_HEADS
    cos, sin = tl.load(cos_ptr + position * D + d), tl.load(sin_ptr + position * D + d)
    base = qkv_ptr + token * (HEADS + 2 * KV_HEADS) * D
    dtype: tl.constexpr = k_ptr.dtype.element_ty
    k = norm_rotate(base, HEADS + head, norm_ptr, cos, sin, eps, D, inside)
    source = base + (HEADS + KV_HEADS + head)[:, None] * D + d[None, :]
    v = tl.load(source, mask=inside[:, None], other=0.0)
    where = ((page * CHUNK + position % CHUNK) * KV_HEADS + head)[:, None] * D + d[None, :]
    tl.store(k_ptr + where, k.to(dtype), mask=inside[:, None])
    tl.store(v_ptr + where, v, mask=inside[:, None])


@triton.jit(do_not_specialize=["chunks_max"])
def attention_kernel(
    qkv_ptr,
    norm_ptr,
    cos_ptr,
    sin_ptr,
    rows_ptr,
    positions_ptr,
    pages_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    part_ptr,
    arrived_ptr,
    eps,
    scale,
    chunks_max,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    CHUNK: tl.constexpr,
    SPLITS: tl.constexpr,
    BY_ROW: tl.constexpr,
    WRITE: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """Grid [tokens, kv_heads, SPLITS]: the query heads of one group of one token → out [tokens, HEADS * D].

    The token is at its row's position: positions[row] with BY_ROW, positions[token] otherwise. The row's positions from
    chunk * CHUNK on are in page pages[row, chunk] of the cache k, v [pages, CHUNK, kv_heads, D]. With WRITE the token's
    own key and value go there; in any case they are taken from qkv.
    With several SPLITS the chunks' results meet in part [tokens, kv_heads, chunks_max, G, D + 2], and the program that
    comes last merges them; arrived [tokens, kv_heads] int32 is 0 before and after.
    """
    token, kv_head, split = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    G: tl.constexpr = HEADS // KV_HEADS
    ROWS: tl.constexpr = GROUP_MIN if G < GROUP_MIN else G  # a group's queries, filled up for the tensor cores
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.load(rows_ptr + token).to(tl.int64)
    position = tl.load(positions_ptr + (row if BY_ROW else token)).to(tl.int64)
    d = tl.arange(0, D)
    g = tl.arange(0, ROWS)
    real = g < G
    n = tl.arange(0, CHUNK)
    cos, sin = tl.load(cos_ptr + position * D + d), tl.load(sin_ptr + position * D + d)
    base = qkv_ptr + token * (HEADS + 2 * KV_HEADS) * D
    q = norm_rotate(base, kv_head * G + g, norm_ptr, cos, sin, eps, D, real).to(dtype)
    last = position // CHUNK
    m = tl.full((ROWS,), NOTHING, tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    acc = tl.zeros((ROWS, D), tl.float32)
    chunk = split
    while chunk <= last:
        at = chunk * CHUNK + n
        past = at < position
        page = tl.load(pages_ptr + row * chunks_max + chunk).to(tl.int64)
        where = ((page * CHUNK + n) * KV_HEADS + kv_head)[:, None] * D + d[None, :]
        k = tl.load(k_ptr + where, mask=past[:, None], other=0.0)
        v = tl.load(v_ptr + where, mask=past[:, None], other=0.0)
        if chunk == last:  # the token itself
            one = kv_head + tl.arange(0, 1)
            new_k = norm_rotate(base, HEADS + one, norm_ptr, cos, sin, eps, D, one >= 0).to(dtype)
            new_v = tl.load(base + (HEADS + KV_HEADS + one)[:, None] * D + d[None, :])
            if WRITE:
                here = ((page * CHUNK + position % CHUNK) * KV_HEADS + one)[:, None] * D + d[None, :]
                tl.store(k_ptr + here, new_k)
                tl.store(v_ptr + here, new_v)
            mine = (at == position)[:, None]
            k = tl.where(mine, new_k, k)
            v = tl.where(mine, new_v, v)
        score = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
        score = tl.where((at <= position)[None, :], score, NOTHING)
        chunk_m = tl.max(score, axis=1)
        weight = tl.where((at <= position)[None, :], tl.exp(score - chunk_m[:, None]), 0.0)
        chunk_total = tl.sum(weight, axis=1)
        chunk_acc = tl.dot(weight.to(dtype), v, input_precision=PRECISION)
        if SPLITS == 1:
            m, total, acc = merge(m, total, acc, chunk_m, chunk_total, chunk_acc)
        else:
            part = part_ptr + (((token * KV_HEADS + kv_head) * chunks_max + chunk) * G + g) * (D + 2)
            tl.store(part[:, None] + d[None, :], chunk_acc, mask=real[:, None])
            tl.store(part + D, chunk_m, mask=real)
            tl.store(part + D + 1, chunk_total, mask=real)
        chunk += SPLITS
    finish = SPLITS == 1
    if SPLITS > 1:
        tl.debug_barrier()  # all of this program's threads have stored
        arrived = tl.atomic_add(arrived_ptr + token * KV_HEADS + kv_head, 1, sem="acq_rel")
        finish = arrived == SPLITS - 1
        if finish:
            chunk = 0
            while chunk <= last:
                part = part_ptr + (((token * KV_HEADS + kv_head) * chunks_max + chunk) * G + g) * (D + 2)
                # Not from L1, which other programs' stores do not reach.
                chunk_acc = tl.load(part[:, None] + d[None, :], mask=real[:, None], other=0.0, cache_modifier=".cg")
                chunk_m = tl.load(part + D, mask=real, other=0.0, cache_modifier=".cg")
                chunk_total = tl.load(part + D + 1, mask=real, other=1.0, cache_modifier=".cg")
                m, total, acc = merge(m, total, acc, chunk_m, chunk_total, chunk_acc)
                chunk += 1
            tl.store(arrived_ptr + token * KV_HEADS + kv_head, 0)
    if finish:
        out = out_ptr + (token * HEADS + kv_head * G + g)[:, None] * D + d[None, :]
        tl.store(out, (acc / total[:, None]).to(dtype), mask=real[:, None])


@dataclass(frozen=True)
class Cache:
    """Keys and values [layers, places, length, kv_heads, D], of `heads` query heads, and the rotations of the positions
    that there are, cos and sin [positions, D]. A place is a row, or a page."""

    k: Tensor
    v: Tensor
    cos: Tensor
    sin: Tensor
    heads: int

    @property
    def length(self) -> int:
        return self.k.shape[2]

    @property
    def kv_heads(self) -> int:
        return self.k.shape[3]

    @property
    def head_dim(self) -> int:
        return self.k.shape[4]


class PagedCache:
    """A cache whose places are pages, the table of which row's they are, and what programs that share a token's
    positions need to meet."""

    def __init__(self, cache: Cache, rows: int, tokens: int, split_tokens: int) -> None:
        self.cache = cache
        self.chunks = pages_of(len(cache.cos))
        """Pages of the longest row."""
        device = cache.k.device
        self.pages = torch.full((rows, self.chunks), cache.k.shape[1] - 1, dtype=torch.int32, device=device)
        """[rows, chunks]: which page of the cache is a row's next; the last one where it has none."""
        self.split_tokens = split_tokens
        """Up to so many tokens several programs share one token's positions."""
        shared = min(tokens, split_tokens)
        size = (shared, cache.kv_heads, self.chunks, cache.heads // cache.kv_heads, cache.head_dim + 2)
        self.part = torch.zeros(size if self.chunks > 1 else 1, dtype=torch.float32, device=device)
        self.arrived = torch.zeros(max(1, shared) * cache.kv_heads, dtype=torch.int32, device=device)

    def splits(self, tokens: int) -> int:
        """Programs for one token's positions."""
        if self.chunks == 1 or tokens > self.split_tokens:
            return 1
        return min(self.chunks, SPLITS_MAX)


SPLITS_MAX = 8
SPLIT_TOKENS = 8
WARPS, FRAME_WARPS = 4, 2


def attend(
    qkv: Tensor,
    qk_norm: tuple[Tensor, float],
    paged: PagedCache,
    layer: int,
    rows: Tensor,
    positions: Tensor,
    out: Tensor,
    *,
    by_row: bool,
    pdl: bool = False,
) -> None:
    """One new token for each row: qkv [T, (heads + 2 kv_heads) * D] → out [T, heads * D]; writes the cache."""
    splits = paged.splits(len(qkv))
    _attention(qkv, qk_norm, paged, layer, rows, positions, out, splits, by_row=by_row, write=True, pdl=pdl)


def attend_prompt(
    qkv: Tensor,
    qk_norm: tuple[Tensor, float],
    paged: PagedCache,
    layer: int,
    rows: Tensor,
    positions: Tensor,
    out: Tensor,
) -> None:
    """All tokens of some prompts, each at `positions`[token] of `rows`[token]; a token sees those before it."""
    cache = paged.cache
    write_kv_kernel[(len(qkv),)](
        qkv,
        qk_norm[0],
        cache.cos,
        cache.sin,
        rows,
        positions,
        paged.pages,
        cache.k[layer],
        cache.v[layer],
        qk_norm[1],
        paged.chunks,
        HEADS=cache.heads,
        KV_HEADS=cache.kv_heads,
        D=cache.head_dim,
        CHUNK=CHUNK,
        num_warps=4,
    )
    _attention(qkv, qk_norm, paged, layer, rows, positions, out, 1, by_row=False, write=False, pdl=False)


def _attention(
    qkv: Tensor,
    qk_norm: tuple[Tensor, float],
    paged: PagedCache,
    layer: int,
    rows: Tensor,
    positions: Tensor,
    out: Tensor,
    splits: int,
    *,
    by_row: bool,
    write: bool,
    pdl: bool,
) -> None:
    cache = paged.cache
    attention_kernel[(len(qkv), cache.kv_heads, splits)](
        qkv,
        qk_norm[0],
        cache.cos,
        cache.sin,
        rows,
        positions,
        paged.pages,
        cache.k[layer],
        cache.v[layer],
        out,
        paged.part,
        paged.arrived,
        qk_norm[1],
        cache.head_dim**-0.5,
        paged.chunks,
        HEADS=cache.heads,
        KV_HEADS=cache.kv_heads,
        D=cache.head_dim,
        CHUNK=CHUNK,
        SPLITS=splits,
        BY_ROW=by_row,
        WRITE=write,
        PRECISION="ieee" if qkv.dtype == torch.float32 else "tf32",
        PDL=pdl,
        num_warps=WARPS,
        **pdl_option(pdl),
    )


@triton.jit(do_not_specialize=["batch", "position"])
def frame_attention_kernel(
    qkv_ptr,
    norm_ptr,
    cos_ptr,
    sin_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    eps,
    scale,
    batch,
    position,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    LENGTH: tl.constexpr,
    FIRST: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    """The code predictor's attention within a frame. Grid [batch, kv_heads]; cache k, v [batch, LENGTH, kv_heads, D].

    FIRST: two tokens a row, at positions 0 (tokens 0..batch-1) and 1 (batch..2 batch - 1). Otherwise one at `position`.
    """
    b, kv_head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    G: tl.constexpr = HEADS // KV_HEADS
    GROUP: tl.constexpr = triton.next_power_of_2(G)
    WIDTH: tl.constexpr = (HEADS + 2 * KV_HEADS) * D
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    d = tl.arange(0, D)
    g = tl.arange(0, GROUP)
    real = g < G
    one = kv_head + tl.arange(0, 1)
    always = one >= 0
    cache = (b * LENGTH * KV_HEADS + one)[:, None] * D + d[None, :]
    if FIRST:
        base = qkv_ptr + b * WIDTH
        cos, sin = tl.load(cos_ptr + d), tl.load(sin_ptr + d)
        k0 = norm_rotate(base, HEADS + one, norm_ptr, cos, sin, eps, D, always)
        v0 = tl.load(base + (HEADS + KV_HEADS + one)[:, None] * D + d[None, :])
        tl.store(k_ptr + cache, k0.to(dtype))
        tl.store(v_ptr + cache, v0)
        out = out_ptr + (b * HEADS + kv_head * G + g)[:, None] * D + d[None, :]
        tl.store(out, tl.broadcast_to(v0, (GROUP, D)), mask=real[:, None])
        base = qkv_ptr + (batch + b) * WIDTH
        cos, sin = tl.load(cos_ptr + D + d), tl.load(sin_ptr + D + d)
        q = norm_rotate(base, kv_head * G + g, norm_ptr, cos, sin, eps, D, real)
        k1 = norm_rotate(base, HEADS + one, norm_ptr, cos, sin, eps, D, always)
        v1 = tl.load(base + (HEADS + KV_HEADS + one)[:, None] * D + d[None, :])
        tl.store(k_ptr + cache + KV_HEADS * D, k1.to(dtype))
        tl.store(v_ptr + cache + KV_HEADS * D, v1)
        score0 = tl.sum(q * k0, axis=1) * scale
        score1 = tl.sum(q * k1, axis=1) * scale
        highest = tl.maximum(score0, score1)
        w0, w1 = tl.exp(score0 - highest), tl.exp(score1 - highest)
        acc = w0[:, None] * v0.to(tl.float32) + w1[:, None] * v1.to(tl.float32)
        out = out_ptr + ((batch + b) * HEADS + kv_head * G + g)[:, None] * D + d[None, :]
        tl.store(out, (acc / (w0 + w1)[:, None]).to(dtype), mask=real[:, None])
    else:
        # The frame's earlier keys and values are the slowest to come: they are asked for first.
        n = tl.arange(0, LENGTH)
        where = ((b * LENGTH + n) * KV_HEADS + kv_head)[:, None] * D + d[None, :]
        past = (n < position)[:, None]
        mine = (n == position)[:, None]
        k = tl.load(k_ptr + where, mask=past, other=0.0).to(tl.float32)
        v = tl.load(v_ptr + where, mask=past, other=0.0).to(tl.float32)
        base = qkv_ptr + b * WIDTH
        cos, sin = tl.load(cos_ptr + position * D + d), tl.load(sin_ptr + position * D + d)
        new_v = tl.load(base + (HEADS + KV_HEADS + one)[:, None] * D + d[None, :])
        q = norm_rotate(base, kv_head * G + g, norm_ptr, cos, sin, eps, D, real)
        new_k = norm_rotate(base, HEADS + one, norm_ptr, cos, sin, eps, D, always)
        tl.store(k_ptr + cache + position * KV_HEADS * D, new_k.to(dtype))
        tl.store(v_ptr + cache + position * KV_HEADS * D, new_v)
        k = tl.where(mine, new_k, k)
        v = tl.where(mine, new_v.to(tl.float32), v)
        score = tl.sum(q[:, None, :] * k[None, :, :], axis=2) * scale
        score = tl.where((n <= position)[None, :], score, NOTHING)
        weight = tl.exp(score - tl.max(score, axis=1)[:, None])
        acc = tl.sum(weight[:, :, None] * v[None, :, :], axis=1)
        out = out_ptr + (b * HEADS + kv_head * G + g)[:, None] * D + d[None, :]
        tl.store(out, (acc / tl.sum(weight, axis=1)[:, None]).to(dtype), mask=real[:, None])


def attend_in_frame(
    qkv: Tensor,
    qk_norm: tuple[Tensor, float],
    cache: Cache,
    layer: int,
    batch: int,
    position: int,
    out: Tensor,
    *,
    pdl: bool = False,
) -> None:
    """`position` 1 means the frame's first two tokens, [2 * batch]; a later one a single token for each row."""
    frame_attention_kernel[(batch, cache.kv_heads)](
        qkv,
        qk_norm[0],
        cache.cos,
        cache.sin,
        cache.k[layer],
        cache.v[layer],
        out,
        qk_norm[1],
        cache.head_dim**-0.5,
        batch,
        position,
        HEADS=cache.heads,
        KV_HEADS=cache.kv_heads,
        D=cache.head_dim,
        LENGTH=cache.length,
        FIRST=position == 1,
        PDL=pdl,
        num_warps=FRAME_WARPS,
        **pdl_option(pdl),
    )
