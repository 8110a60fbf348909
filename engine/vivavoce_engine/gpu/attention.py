"""Attention of new tokens over a row's cached keys and values.

The kernels norm and rotate queries and keys, write the cache, and take the softmax in float32. They process a row's
earlier positions in tiles of TILE, and then the token's own position. Partial results are merged in this order, whether
one program walks through all tiles or several programs share them. So a token's result depends neither on the batch nor
on the split, nor on whether its prompt or a frame brought it. A page of the cache holds CHUNK positions, and pages lie
anywhere in it. A table lists each row's pages in order.
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

from vivavoce_engine.gpu.card import RESERVE_BYTES, Card
from vivavoce_engine.gpu.heads import AXES, load_rotation, norm_rotate, norm_weights
from vivavoce_engine.gpu.launch import Launcher
from vivavoce_engine.gpu.scores import Scores
from vivavoce_engine.pages import PAGE_POSITIONS, pages_of

CHUNK = PAGE_POSITIONS
TILE = 32
"""Positions of a step of the kernels' loops."""
QUERIES_MIN = tl.constexpr(8)
MERGED = tl.constexpr(8)
"""Parts that are loaded at once."""
NOTHING = tl.constexpr(-1.0e30)
"""A running maximum below every score. It is finite, so that the difference of two maxima is a number."""


@triton.jit
def shares(m, m_next):
    """Merges the maxima m and m_next of two parts of a softmax → their common maximum, and the factors that scale the
    sums of each part."""
    highest = tl.maximum(m, m_next)
    return highest, tl.exp(m - highest), tl.exp(m_next - highest)


@triton.jit
def merge_parts(part_ptr, out_ptr, count, G: tl.constexpr, D: tl.constexpr):
    """Merges the results of the tiles and of the token's own position, part [count, G * (D + 2)] float32 → out [G, D].

    A part has G * D weighted values, G maxima and G sums. The loads of several parts are in flight at once. They bypass
    the L1 cache, which does not see the stores of other programs.
    """
    g, d = tl.arange(0, triton.next_power_of_2(G)), tl.arange(0, D)
    real = g < G
    m = tl.full(g.shape, NOTHING, tl.float32)
    total = tl.zeros(g.shape, tl.float32)
    acc = tl.zeros((g.shape[0], D), tl.float32)
    first = count * 0
    while first < count:
        for number in tl.static_range(MERGED):  # in order; a part behind the last changes nothing
            there = real & (first + number < count)
            part = part_ptr + (first + number) * (G * (D + 2))
            next_acc = tl.load(part + g[:, None] * D + d[None, :], mask=there[:, None], other=0.0, cache_modifier=".cg")
            next_m = tl.load(part + G * D + g, mask=there, other=NOTHING, cache_modifier=".cg")
            next_total = tl.load(part + G * (D + 1) + g, mask=there, other=0.0, cache_modifier=".cg")
            m, left, right = shares(m, next_m)
            total = tl.fma(total, left, next_total * right)
            acc = tl.fma(acc, tl.broadcast_to(left[:, None], acc.shape), next_acc * right[:, None])
        first += MERGED
    value = acc / tl.where(real, total, 1.0)[:, None]
    tl.store(out_ptr + g[:, None] * D + d[None, :], value.to(out_ptr.dtype.element_ty), mask=real[:, None])


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
    axes_ptr,
    eps,
    chunks_max,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    CHUNK: tl.constexpr,
    HEIGHTS: tl.constexpr = 0,
    WIDTHS: tl.constexpr = 0,
    DEPENDENT: tl.constexpr = False,
) -> None:
    """Writes keys and values of a prompt's tokens to the cache, before any of them attends. Grid [tokens]."""
    token = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, D)
    head = tl.arange(0, triton.next_power_of_2(KV_HEADS))
    inside = head < KV_HEADS
    weight, turned = norm_weights(norm_ptr, HEADS + head, D, inside)
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.load(rows_ptr + token).to(tl.int64)
    position = tl.load(positions_ptr + token).to(tl.int64)
    page = tl.load(pages_ptr + row * chunks_max + position // CHUNK).to(tl.int64)
    cos, sin = load_rotation(cos_ptr, sin_ptr, axes_ptr, row, token, position, D, False, HEIGHTS, WIDTHS)
    base = qkv_ptr + token * (HEADS + 2 * KV_HEADS) * D
    dtype: tl.constexpr = k_ptr.dtype.element_ty
    k = norm_rotate(base, HEADS + head, weight, turned, cos, sin, eps, D, inside)
    source = base + (HEADS + KV_HEADS + head)[:, None] * D + d[None, :]
    v = tl.load(source, mask=inside[:, None], other=0.0)
    where = ((page * CHUNK + position % CHUNK) * KV_HEADS + head)[:, None] * D + d[None, :]
    tl.store(k_ptr + where, k.to(dtype), mask=inside[:, None])
    tl.store(v_ptr + where, v, mask=inside[:, None])


@triton.jit
def weigh(q, k, v, past, scale, PRECISION: tl.constexpr):
    """Softmax of one tile, for queries q [D, QUERIES], keys k [TILE, D] and values v [D, TILE] → scores before it
    [TILE, QUERIES], their maxima and sums [QUERIES], and the weighted values [D, QUERIES], all float32.

    The keys are the rows of the tensor cores' tiles, because a group has few queries. Where a position is not past, key
    and value are 0. A tile without past positions changes no sum.
    """
    # As an fma a product is rounded. The compiler might join it with the sum that follows, in some variants alone.
    score = tl.dot(k, q, input_precision=PRECISION)
    score = tl.fma(score, tl.full(score.shape, 1.0, tl.float32) * scale, 0.0)
    seen = tl.where(past[:, None], score, NOTHING)
    m = tl.max(seen, axis=0)
    weight = tl.where(past[:, None], tl.exp(seen - m[None, :]), 0.0)
    acc = tl.dot(v, weight.to(v.dtype), input_precision=PRECISION)
    return score, m, tl.sum(weight, axis=0), acc


@triton.jit
def store_part(part_ptr, m, total, acc, real, G: tl.constexpr, D: tl.constexpr):
    """Stores a part of the softmax of `merge_parts`: m, total [QUERIES] and acc [D, QUERIES], of `real` queries."""
    g, d = tl.arange(0, acc.shape[1]), tl.arange(0, D)
    tl.store(part_ptr + g[None, :] * D + d[:, None], acc, mask=real[None, :])
    tl.store(part_ptr + G * D + g, m, mask=real)
    tl.store(part_ptr + G * (D + 1) + g, total, mask=real)


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
    scores_ptr,
    axes_ptr,
    eps,
    scale,
    chunks_max,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    CHUNK: tl.constexpr,
    TILE: tl.constexpr,
    STAGES: tl.constexpr,
    SPLITS: tl.constexpr,
    BY_ROW: tl.constexpr,
    WRITE: tl.constexpr,
    PRECISION: tl.constexpr,
    SCORED_HEAD: tl.constexpr = -1,
    HEIGHTS: tl.constexpr = 0,
    WIDTHS: tl.constexpr = 0,
    DEPENDENT: tl.constexpr = False,
) -> None:
    """Attention of one token for the query heads of one group → out [tokens, HEADS * D].

    Grid [kv_heads, tokens, SPLITS]: programs side by side read the same pages. The token stands at positions[row] with
    BY_ROW, and at positions[token] otherwise; axes, HEIGHTS and WIDTHS are those of `load_rotation`.
    Page pages[row, chunk] of the cache k, v [pages, CHUNK, kv_heads, D] holds the row's positions from chunk * CHUNK
    on. The token's own key and value come from qkv. With WRITE they are also stored in the cache, which no program
    reads at this position.

    With several SPLITS the results of the tiles, and behind them of the token's own position, meet in part
    [tokens, kv_heads, chunks_max * CHUNK // TILE + 1, G, D + 2] float32, and the program that arrives last merges them.
    arrived [tokens, kv_heads] int32 is 0 before and after.

    The scores of query head SCORED_HEAD, unless it is -1, are also stored as they are before the softmax, in scores
    [rows, chunks_max * CHUNK] float32, up to the token's own position. No sum depends on this.
    """
    kv_head, token, split = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2)
    G: tl.constexpr = HEADS // KV_HEADS
    GROUP: tl.constexpr = triton.next_power_of_2(G)
    QUERIES: tl.constexpr = max(QUERIES_MIN, GROUP)
    REPEATS: tl.constexpr = QUERIES // GROUP  # a tile of the tensor cores repeats a small group's queries
    TILES: tl.constexpr = CHUNK // TILE
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    if DEPENDENT:
        gdc_launch_dependents()
        if not WRITE:
            gdc_wait()
    # A frame's position and its first tiles are asked for before the wait for the kernel that makes qkv, because the
    # kernels in front of this one do not change them. A prompt's keys come from those kernels, so a prompt waits first.
    row = tl.load(rows_ptr + token).to(tl.int64)
    position = tl.load(positions_ptr + (row if BY_ROW else token)).to(tl.int32)
    d, n, g = tl.arange(0, D), tl.arange(0, TILE), tl.arange(0, QUERIES)
    real = g < G
    group = tl.arange(0, GROUP)
    mine = group < G
    one = kv_head + tl.arange(0, 1)
    always = one >= 0
    pages = pages_ptr + row * chunks_max
    base = qkv_ptr + token * (HEADS + 2 * KV_HEADS) * D
    q = tl.zeros((D, QUERIES), dtype)
    new_score = tl.zeros((QUERIES,), tl.float32)
    m = tl.full((QUERIES,), NOTHING, tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    acc = tl.zeros((D, QUERIES), tl.float32)
    parts = part_ptr + (token * KV_HEADS + kv_head) * (chunks_max * TILES + 1) * (G * (D + 2))
    count = tl.cdiv(position, TILE)
    for tile in tl.range(split, tl.maximum(count, split + 1), SPLITS, num_stages=STAGES):
        past = tile * TILE + n < position  # behind it a page may hold anything
        page = tl.load(pages + tile // TILES).to(tl.int64)
        place = ((page * CHUNK + tile % TILES * TILE) * KV_HEADS + kv_head) * D
        k = tl.load(k_ptr + place + (n[:, None] * (KV_HEADS * D) + d[None, :]), mask=past[:, None], other=0.0)
        v = tl.load(v_ptr + place + (n[None, :] * (KV_HEADS * D) + d[:, None]), mask=past[None, :], other=0.0)
        if tile == split:  # the keys and values of the first tiles are on their way
            cos, sin = load_rotation(cos_ptr, sin_ptr, axes_ptr, row, token, position, D, BY_ROW, HEIGHTS, WIDTHS)
            q_weight, q_turned = norm_weights(norm_ptr, kv_head * G + group, D, mine)
            k_weight, k_turned = norm_weights(norm_ptr, HEADS + one, D, always)
            if DEPENDENT and WRITE:
                gdc_wait()
            queries = norm_rotate(base, kv_head * G + group, q_weight, q_turned, cos, sin, eps, D, mine)
            new_k = norm_rotate(base, HEADS + one, k_weight, k_turned, cos, sin, eps, D, always)
            new_scores = tl.fma(tl.sum(tl.fma(queries, new_k, 0.0), axis=1), scale, 0.0)
            new_score = tl.reshape(tl.broadcast_to(new_scores[None, :], (REPEATS, GROUP)), (QUERIES,))
            queries = tl.broadcast_to(queries.to(dtype)[None, :, :], (REPEATS, GROUP, D))
            q = tl.trans(tl.reshape(queries, (QUERIES, D)))
            if WRITE:
                own_page = tl.load(pages + position // CHUNK).to(tl.int64)
                here = ((own_page * CHUNK + position % CHUNK) * KV_HEADS + kv_head) * D + d
                new_v = tl.load(base + (HEADS + KV_HEADS + kv_head) * D + d)
                tl.store(k_ptr + here[None, :], new_k.to(dtype), mask=(split + 0 * d == 0)[None, :])
                tl.store(v_ptr + here, new_v, mask=split + 0 * d == 0)
        score, next_m, next_total, next_acc = weigh(q, k, v, past, scale, PRECISION)
        if SCORED_HEAD >= 0:  # noqa: SIM102 (it is decided when the kernel is compiled)
            if kv_head == SCORED_HEAD // G:
                kept = past[:, None] & (g == SCORED_HEAD % G)[None, :]
                line = scores_ptr + row * chunks_max * CHUNK + tile * TILE
                tl.store(line + n[:, None] + 0 * g[None, :], score, mask=kept)
        if SPLITS == 1:  # as in merge_parts, bit for bit
            m, left, right = shares(m, next_m)
            total = tl.fma(total, left, next_total * right)
            acc = tl.fma(acc, tl.broadcast_to(left[None, :], acc.shape), next_acc * right[None, :])
        else:
            store_part(parts + tile * (G * (D + 2)), next_m, next_total, next_acc, real & (tile < count), G, D)
    first = real & (split == 0)
    if SCORED_HEAD >= 0:
        line = scores_ptr + row * chunks_max * CHUNK + position
        tl.store(line + 0 * g, new_score, mask=first & (kv_head * G + g == SCORED_HEAD))
    new_acc = tl.load(base + (HEADS + KV_HEADS + kv_head) * D + d[:, None] + 0 * g[None, :]).to(tl.float32)
    if SPLITS == 1:
        m, left, right = shares(m, new_score)
        total = tl.where(real, tl.fma(total, left, right), 1.0)
        acc = tl.fma(acc, tl.broadcast_to(left[None, :], acc.shape), new_acc * right[None, :])
        out = out_ptr + (token * HEADS + kv_head * G + g)[None, :] * D + d[:, None]
        tl.store(out, (acc / total[None, :]).to(dtype), mask=real[None, :])
    else:
        ones = tl.full((QUERIES,), 1.0, tl.float32)
        store_part(parts + count * (G * (D + 2)), new_score, ones, new_acc, first, G, D)
        tl.debug_barrier()  # until every thread of this program has stored
        arrived = tl.atomic_add(arrived_ptr + token * KV_HEADS + kv_head, 1, sem="acq_rel")
        if arrived == SPLITS - 1:
            merge_parts(parts, out_ptr + (token * HEADS + kv_head * G) * D, count + 1, G, D)
            tl.store(arrived_ptr + token * KV_HEADS + kv_head, 0)


@dataclass(frozen=True)
class Cache:
    """Keys and values k, v [layers, places, length, kv_heads, D], for `heads` query heads. A place is a row or a page.

    cos, sin [positions, D] float32 are the rotations of all positions. With three axes, `sections` are the frequencies
    of time, height and width.
    """

    k: Tensor
    v: Tensor
    cos: Tensor
    sin: Tensor
    heads: int
    sections: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        assert self.v.shape == self.k.shape
        assert all(kept.is_contiguous() for kept in (self.k, self.v))
        assert self.heads % self.kv_heads == 0, "query heads share a key head in groups of one size"
        for table in (self.cos, self.sin):
            assert table.shape == (len(self.cos), self.head_dim)
            assert table.dtype == torch.float32
        assert self.sections is None or len(self.sections) == AXES

    @property
    def rotation(self) -> dict[str, int]:
        """The kernels' constants for rotary positions with three axes."""
        return {} if self.sections is None else {"HEIGHTS": self.sections[1], "WIDTHS": self.sections[2]}

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
    """A cache whose places are pages, the table of each row's pages, and the scratch memory of split attention."""

    def __init__(self, cache: Cache, rows: int, tokens: int, split_tokens: int) -> None:
        assert cache.length == CHUNK, "a page is a chunk of the kernels' loops"
        self.cache = cache
        self.chunks = pages_of(len(cache.cos))
        """Pages of the longest row."""
        device = cache.k.device
        self.last_page = cache.k.shape[1] - 1
        self.pages = torch.full((rows, self.chunks), self.last_page, dtype=torch.int32, device=device)
        """[rows, chunks] int32: each row's pages of the cache, in order. Entries without a page hold the last page."""
        assert split_tokens <= SPLIT_TOKENS
        self.split_tokens = split_tokens
        """Most tokens of a call that shares each token's positions among several programs."""
        shared = min(tokens, split_tokens)
        parts = self.chunks * CHUNK // TILE + 1
        size = (shared, cache.kv_heads, parts, cache.heads // cache.kv_heads, cache.head_dim + 2)
        self.part = torch.zeros(size if self.chunks > 1 else 1, dtype=torch.float32, device=device)
        self.arrived = torch.zeros(max(1, shared) * cache.kv_heads, dtype=torch.int32, device=device)

    def splits(self, tokens: int) -> int:
        """Returns the number of programs that share one token's positions, in a call of `tokens` tokens."""
        if self.chunks == 1 or tokens > self.split_tokens:
            return 1
        return min(self.chunks, next(count for most, count in SPLITS if tokens <= most))


SPLITS = ((2, 16), (8, 8), (16, 4))
"""Pairs of the most tokens of a call, and the number of programs that share each token's positions."""
SPLIT_TOKENS = SPLITS[-1][0]
WRITE_WARPS, WARPS = 4, 1
STAGES_MAX, STAGES_MIN = 7, 3


def held_bytes(stages: int, cache: Cache) -> int:
    """Returns the most shared memory that a program with `stages` pipeline stages has. Of every two stages one has a
    tile and the number of its page. The group's queries pass through shared memory as float32, beside the tiles."""
    tile_bytes = 2 * TILE * cache.head_dim * cache.k.element_size()
    queries = max(int(QUERIES_MIN.value), int(triton.next_power_of_2(cache.heads // cache.kv_heads)))
    return stages // 2 * (tile_bytes + torch.int32.itemsize) + queries * cache.head_dim * torch.float32.itemsize


def tile_stages(card: Card, programs: int, cache: Cache) -> int:
    """Returns the pipeline stages of `programs` programs: the more the better, while the card holds all at once."""
    fitting = card.shared_bytes // (held_bytes(STAGES_MAX, cache) + RESERVE_BYTES) * card.multiprocessors
    return STAGES_MAX if programs <= fitting else STAGES_MIN


@dataclass(frozen=True, slots=True)
class Projected:
    """One layer's input to attention, and the buffer of its result.

    qkv [T, (heads + 2 kv_heads) * D] holds T new tokens, neither normed nor rotated; out is [T, heads * D]. `qk_norm`
    is the norm of queries and keys: weights [heads + kv_heads, D] and epsilon.
    """

    layer: int
    qkv: Tensor
    qk_norm: tuple[Tensor, float]
    out: Tensor


@dataclass(frozen=True, slots=True)
class Places:
    """Rows and positions of the new tokens of a call. Token t belongs to row rows[t] of the cache, rows [T] int32.

    With `by_row` the token stands at positions[rows[t]], positions [all rows] int64. Otherwise it stands at
    positions[t], positions [T] int64. Rotary positions with three axes are in `axes` int64: [T, 3], or with `by_row`
    [all rows], by how much all three are behind the position.
    """

    paged: PagedCache
    rows: Tensor
    positions: Tensor
    by_row: bool
    axes: Tensor | None = None

    def __post_init__(self) -> None:
        assert self.rows.dtype == torch.int32
        assert self.positions.dtype == torch.int64
        assert len(self.positions) == len(self.paged.pages if self.by_row else self.rows)
        assert (self.axes is None) == (self.paged.cache.sections is None)
        if self.axes is not None:
            assert self.axes.dtype == torch.int64
            assert self.axes.is_contiguous()
            assert self.axes.shape == (self.positions.shape if self.by_row else (len(self.rows), AXES))


def attend(launch: Launcher, places: Places, given: Projected, scores: Scores | None = None) -> None:
    """Attention of one new token for each row. Writes the token's key and value to the cache, and in the layer of
    `scores` its scores."""
    kept = scores if scores is not None and scores.layer == given.layer else None
    _attention(launch, places, given, places.paged.splits(len(given.qkv)), write=True, scores=kept)


def attend_prompt(launch: Launcher, places: Places, given: Projected) -> None:
    """Attention of all tokens of some prompts. A token sees its prompt up to itself."""
    paged, cache = places.paged, places.paged.cache
    launch(
        write_kv_kernel,
        (len(given.qkv),),
        given.qkv,
        given.qk_norm[0],
        cache.cos,
        cache.sin,
        places.rows,
        places.positions,
        paged.pages,
        cache.k[given.layer],
        cache.v[given.layer],
        places.axes,
        given.qk_norm[1],
        paged.chunks,
        HEADS=cache.heads,
        KV_HEADS=cache.kv_heads,
        D=cache.head_dim,
        CHUNK=CHUNK,
        **cache.rotation,
        num_warps=WRITE_WARPS,
    )
    _attention(launch, places, given, splits=1, write=False)


def _attention(
    launch: Launcher, places: Places, given: Projected, splits: int, *, write: bool, scores: Scores | None = None
) -> None:
    paged, cache = places.paged, places.paged.cache
    scored: dict[str, int] = {}
    if scores is not None:
        assert scores.table.shape == (len(paged.pages), paged.chunks * CHUNK)
        assert 0 <= scores.head < cache.heads
        scored = {"SCORED_HEAD": scores.head}
    assert given.qkv.shape == (len(places.rows), (cache.heads + 2 * cache.kv_heads) * cache.head_dim)
    assert given.out.shape == (len(places.rows), cache.heads * cache.head_dim)
    launch(
        attention_kernel,
        (cache.kv_heads, len(given.qkv), splits),
        given.qkv,
        given.qk_norm[0],
        cache.cos,
        cache.sin,
        places.rows,
        places.positions,
        paged.pages,
        cache.k[given.layer],
        cache.v[given.layer],
        given.out,
        paged.part,
        paged.arrived,
        None if scores is None else scores.table,
        places.axes,
        given.qk_norm[1],
        cache.head_dim**-0.5,
        paged.chunks,
        HEADS=cache.heads,
        KV_HEADS=cache.kv_heads,
        D=cache.head_dim,
        CHUNK=CHUNK,
        TILE=TILE,
        STAGES=tile_stages(launch.card, cache.kv_heads * len(given.qkv) * splits, cache),
        SPLITS=splits,
        BY_ROW=places.by_row,
        WRITE=write,
        PRECISION="ieee" if given.qkv.dtype == torch.float32 else "tf32",
        **scored,
        **cache.rotation,
        num_warps=WARPS,
    )
