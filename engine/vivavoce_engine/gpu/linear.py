"""Matrix products of a few tokens with a large weight, which are most of a step, and the norms between them.

Reading the weight bounds the time of both ways to multiply. The first, for up to GEMV_TOKENS tokens, is a matrix-vector
kernel. A program holds its rows of the weight in registers, with all loads in flight at once, and the kernel also does
norm, residual, activation and bias. The second, for more tokens, uses tensor cores on blocks of tokens. It splits long
sums over programs, and the norm that follows adds up the parts. Sums run over K in one order there, so a token's result
does not depend on the number of tokens.
"""

# Triton reads the annotations of a kernel, so its pointers carry none.
# ruff: noqa: ANN001, ANN201
# mypy: disable-error-code="untyped-decorator,no-untyped-def"

from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.tools.tensor_descriptor import TensorDescriptor

from vivavoce_engine.gpu.card import Card
from vivavoce_engine.gpu.launch import Launcher
from vivavoce_engine.gpu.prefetch import prefetch_rows

PLAIN = tl.constexpr(0)
"""out = x · Wᵀ."""
ADD = tl.constexpr(1)
"""out += x · Wᵀ: adds to the residual stream."""
GATED = tl.constexpr(2)
"""out = silu(x · Wgateᵀ) * (x · Wupᵀ)."""
BIAS = tl.constexpr(3)
"""out = x · Wᵀ + bias."""
PARTS = tl.constexpr(4)
"""out = parts of the sums of x · Wᵀ, float32. `norm` adds them up."""

GEMV_TOKENS = 2
"""Most tokens of a matrix-vector kernel. From three tokens on, tensor cores are faster."""


@triton.jit
def silu_product(gate, up, dtype: tl.constexpr):
    """silu(gate) * up in float32; each operation is rounded to `dtype`, as in the reference."""
    gate = gate.to(dtype).to(tl.float32)
    silu = (gate / (1.0 + tl.exp(-gate))).to(dtype).to(tl.float32)
    return silu * up.to(dtype).to(tl.float32)


@triton.jit
def gemv_kernel(
    x_ptr,
    w_ptr,
    out_ptr,
    bias_ptr,
    norm_ptr,
    eps,
    TOKENS: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    MODE: tl.constexpr,
    NORM: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    DEPENDENT: tl.constexpr = False,
) -> None:
    """x [TOKENS, K], w [N or 2N, K], bias [N], norm [K] → out [TOKENS, N]. Grid [N / BLOCK_N]."""
    if DEPENDENT:
        # Behind the loads, Triton would first unpack what they bring, and the next kernel would begin later.
        gdc_launch_dependents()
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    inside = n < N
    exists = k < K
    mask = inside[:, None] & exists[None, :]
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    rows = n.to(tl.int64)[:, None] * K + k[None, :]
    w = tl.load(w_ptr + rows, mask=mask, other=0.0)
    if MODE == GATED:
        w_up = tl.load(w_ptr + N * K + rows, mask=mask, other=0.0)
    if NORM:
        weight = tl.load(norm_ptr + k, mask=exists, other=0.0).to(tl.float32)
    if MODE == BIAS:
        bias = tl.load(bias_ptr + n, mask=inside, other=0.0).to(tl.float32)
    if DEPENDENT:
        # No kernel writes the weights: their loads are in flight while the kernel in front ends.
        gdc_wait()
    for t in tl.static_range(TOKENS):
        where = t * N + n
        x = tl.load(x_ptr + t * K + k, mask=exists, other=0.0).to(tl.float32)
        if MODE == ADD:
            residual = tl.load(out_ptr + where, mask=inside, other=0.0).to(tl.float32)
        if NORM:
            # The cast comes before the product with the weight, as in the reference.
            unit = (x * tl.rsqrt(tl.sum(x * x) / K + eps)).to(dtype).to(tl.float32)
            x = (unit * weight).to(dtype).to(tl.float32)
        out = tl.sum(w.to(tl.float32) * x[None, :], axis=1)
        if MODE == ADD:
            out = out.to(dtype).to(tl.float32) + residual
        if MODE == BIAS:
            out += bias
        if MODE == GATED:
            out = silu_product(out, tl.sum(w_up.to(tl.float32) * x[None, :], axis=1), dtype)
        tl.store(out_ptr + where, out.to(dtype), mask=inside)


@triton.jit
def product(x, w, sums, TOKEN_ROWS: tl.constexpr, PRECISION: tl.constexpr):
    """Adds the product of tiles x [tokens, k] and w [outputs, k] to sums [tokens, outputs], or transposed ones."""
    if TOKEN_ROWS:
        sums = tl.dot(x, w.T, sums, input_precision=PRECISION)
    else:
        sums = tl.dot(w, x.T, sums, input_precision=PRECISION)
    return sums


@triton.jit
def places(t, n, alive, inside, bias, N: tl.constexpr, MODE: tl.constexpr, TOKEN_ROWS: tl.constexpr):
    """Offsets of tokens t and outputs n, which of them exist, and the outputs' bias, laid out as the sums are."""
    if TOKEN_ROWS:
        place, mask = t[:, None] * N + n[None, :], alive[:, None] & inside[None, :]
        if MODE == BIAS:
            bias = bias[None, :]
    else:
        place, mask = t[None, :] * N + n[:, None], inside[:, None] & alive[None, :]
        if MODE == BIAS:
            bias = bias[:, None]
    return place, mask, bias


@triton.jit(do_not_specialize=["tokens"])
def gemm_kernel(
    x_ptr,
    w_ptr,
    out_ptr,
    bias_ptr,
    tokens,
    x_tiles,
    w_tiles,
    N: tl.constexpr,
    K: tl.constexpr,
    MODE: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    TOKEN_ROWS: tl.constexpr,
    PREFETCH: tl.constexpr,
    PRECISION: tl.constexpr,
    DEPENDENT: tl.constexpr = False,
) -> None:
    """x [tokens, K], w [N or 2N, K], bias [N] → out [tokens, N], or [SPLITS, tokens, N] float32 for PARTS.

    Grid [N / BLOCK_N, tokens / BLOCK_T, SPLITS]. A program sums K / SPLITS products. `x_tiles` and `w_tiles`, if they
    are given, are descriptors of x and w in tiles of BLOCK_K columns, which the card's copying unit then fetches. With
    TOKEN_ROWS tokens are the rows of the tensor cores' tiles, otherwise outputs are. With PREFETCH the program's part
    of the weight is on its way to the L2 cache while the kernel in front ends. The sums are the same in all these ways.
    """
    n_0, t_0 = tl.program_id(0) * BLOCK_N, tl.program_id(1) * BLOCK_T
    split = tl.program_id(2)
    n, t, k = n_0 + tl.arange(0, BLOCK_N), t_0 + tl.arange(0, BLOCK_T), tl.arange(0, BLOCK_K)
    inside, alive = n < N, t < tokens
    rows = tl.where(inside, n, 0).to(tl.int64)[:, None] * K
    LENGTH: tl.constexpr = K // SPLITS
    first = split * LENGTH
    if DEPENDENT:
        if PREFETCH:
            SIZE: tl.constexpr = w_ptr.dtype.element_ty.primitive_bitwidth // 8
            if t_0 == 0:
                begin = w_ptr + tl.program_id(0).to(tl.int64) * (BLOCK_N * K) + first
                count = tl.minimum(BLOCK_N, N - n_0)
                prefetch_rows(begin, K * SIZE, LENGTH * SIZE, count)
                if MODE == GATED:
                    prefetch_rows(begin + N * K, K * SIZE, LENGTH * SIZE, count)
        gdc_launch_dependents()
        gdc_wait()
    acc = tl.zeros((BLOCK_T, BLOCK_N) if TOKEN_ROWS else (BLOCK_N, BLOCK_T), tl.float32)
    up = tl.zeros((BLOCK_T, BLOCK_N) if TOKEN_ROWS else (BLOCK_N, BLOCK_T), tl.float32)
    for step in range(0, LENGTH, BLOCK_K):
        at = first + step
        if x_tiles is None:
            x = tl.load(x_ptr + t[:, None] * K + (at + k)[None, :], mask=alive[:, None], other=0.0)
            w = tl.load(w_ptr + rows + (at + k)[None, :])
        else:
            x = x_tiles.load([t_0, at])
            w = w_tiles.load([n_0, at])
        acc = product(x, w, acc, TOKEN_ROWS, PRECISION)
        if MODE == GATED:
            w = tl.load(w_ptr + N * K + rows + (at + k)[None, :]) if x_tiles is None else w_tiles.load([N + n_0, at])
            up = product(x, w, up, TOKEN_ROWS, PRECISION)
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    bias = 0.0
    if MODE == BIAS:
        bias = tl.load(bias_ptr + n, mask=inside, other=0.0).to(tl.float32)
    place, mask, bias = places(t, n, alive, inside, bias, N, MODE, TOKEN_ROWS)
    if MODE == BIAS:
        # As an fma the bias comes last. Triton lets a product of a single step begin with a bias that is added to it.
        acc = tl.fma(acc, 1.0, bias)
    if MODE == GATED:
        acc = silu_product(acc, up, dtype)
    if MODE == PARTS:
        tl.store(out_ptr + split.to(tl.int64) * tokens * N + place, acc, mask=mask)
    else:
        tl.store(out_ptr + place, acc.to(dtype), mask=mask)


@triton.jit(do_not_specialize=["split_tokens"])
def norm_kernel(
    x_ptr,
    parts_ptr,
    norm_ptr,
    out_ptr,
    rows_ptr,
    table_ptr,
    split_tokens,
    eps,
    K: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLITS: tl.constexpr,
    KEEP: tl.constexpr,
    DEPENDENT: tl.constexpr = False,
) -> None:
    """x [tokens, K] += the sum of parts [SPLITS, tokens, K] float32; out [tokens, K] = norm(x). Grid [tokens].

    A part begins `split_tokens` tokens behind the one before it: whole tokens, so that Triton knows how its loads are
    aligned. With KEEP the result is also stored in table[rows[token]].
    """
    if DEPENDENT:
        gdc_launch_dependents()
    token = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, BLOCK_K)
    exists = k < K
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    weight = tl.load(norm_ptr + k, mask=exists, other=0.0).to(tl.float32)
    if DEPENDENT:
        gdc_wait()
    x = tl.load(x_ptr + token * K + k, mask=exists, other=0.0).to(tl.float32)
    if SPLITS > 0:
        total = tl.zeros((BLOCK_K,), tl.float32)
        for split in tl.static_range(SPLITS):
            total += tl.load(parts_ptr + (split * split_tokens + token) * K + k, mask=exists, other=0.0)
        x = (x + total.to(dtype).to(tl.float32)).to(dtype).to(tl.float32)
        tl.store(x_ptr + token * K + k, x.to(dtype), mask=exists)
    unit = (x * tl.rsqrt(tl.sum(x * x) / K + eps)).to(dtype).to(tl.float32)
    out = (unit * weight).to(dtype)
    tl.store(out_ptr + token * K + k, out, mask=exists)
    if KEEP:
        row = tl.load(rows_ptr + token).to(tl.int64)
        tl.store(table_ptr + row * K + k, out, mask=exists)


@dataclass(frozen=True, slots=True)
class Blocks:
    """Tiling of a product: tokens `t`, outputs `n` and summands `k` of a block; warps; pipeline stages.

    `token_rows`, `described` and `prefetch` are gemm_kernel's TOKEN_ROWS, tiles by descriptors, and PREFETCH.
    """

    t: int
    n: int
    k: int
    warps: int
    stages: int
    token_rows: bool = False
    described: bool = False
    prefetch: bool = False

    def stage_bytes(self, mode: int, itemsize: int) -> int:
        """Returns the shared memory that one pipeline stage of a tensor-core product takes."""
        return (self.n * (2 if mode == GATED.value else 1) + self.t) * self.k * itemsize


VALUES_MAX = 256
"""Most values of a weight in each thread of a matrix-vector kernel. Registers limit it."""
TOKENS_MIN = 16
"""Fewest tokens of a block that tensor cores take."""
SPLITS_MAX = 8


def gemv_tokens(hidden: int) -> int:
    """Returns the most tokens for which matrix-vector kernels are faster, in a stack of width `hidden`.

    Measured in whole frames on an H200: two rows of the 0.6B model took 2.34 ms with them and 2.58 without; two rows of
    the 1.7B model took 3.43 and 3.03.
    """
    return GEMV_TOKENS if hidden <= 1024 else 1


def gemv_blocks(n: int, k: int, mode: int) -> Blocks:
    """Returns the tiling of a matrix-vector product, by whole frames on an H200 (vivavoce_bench/cards/tune.py).

    A program of one warp waits for no other warp when it adds up. A product with few outputs is faster with more warps.
    """
    wide, gated = triton.next_power_of_2(k), mode == GATED.value
    if mode == ADD.value:
        rows = 8 if wide > 4096 else max(2, min(4, wide // 1024))
        warps = 8 if wide > 4096 else 4 if n <= 1024 else 1
    elif wide <= 2048:
        rows, warps = (2 if gated else 4, 1) if wide <= 1024 else (4, 4 if gated else 2)
    else:
        rows, warps = 8, 4
    return Blocks(1, rows, k, max(warps, rows * wide * (1 + gated) // (32 * VALUES_MAX)), 1)


def block_tokens(tokens: int) -> int:
    """Returns the tokens in a block of a tensor-core product that takes all of up to 64 tokens at once."""
    return max(TOKENS_MIN, int(triton.next_power_of_2(tokens)))


def gemm_blocks(tokens: int, k: int, mode: int, itemsize: int, card: Card) -> Blocks:
    """Returns the tiling of a tensor-core product with k summands a program, with as many of the stages below as the
    card's memory holds.

    Measured in whole frames on an H200 (vivavoce_bench/cards/tune.py), without descriptors above 64 tokens on an H100.
    Results do not depend on it: sums run over K in the same order.
    """
    if card.descriptors and itemsize == 2:
        blocks = _described_blocks(tokens, k, mode)
    elif tokens > 64:
        blocks = Blocks(128, 64, largest_block(k, 128 // itemsize), 8, 4)
    else:
        block_t = block_tokens(tokens)
        # Six stages of a gated product fit into an H200's shared memory only with the smallest block of tokens.
        deep = block_t == TOKENS_MIN and k <= 1024 if mode == GATED.value else block_t <= 2 * TOKENS_MIN
        blocks = Blocks(block_t, 64, largest_block(k, 256 // itemsize), 4, 6 if deep else 4)
    return replace(blocks, stages=card.stages(blocks.stages, blocks.stage_bytes(mode, itemsize)))


def _described_blocks(tokens: int, k: int, mode: int) -> Blocks:
    """The tiling where tiles come through descriptors. Narrow tiles make more programs of a small weight. A weight as
    large as the L2 cache is not asked for early."""
    gated, parts, early = mode == GATED.value, mode == PARTS.value, k <= 1024
    if tokens <= 64:
        if gated and early and tokens > TOKENS_MIN:
            return Blocks(64, 32, 128, 4, 4, token_rows=True, described=True, prefetch=True)
        if tokens > 32 and not gated and not (parts and k < 512):
            return Blocks(64, 32, 128, 4, 4, token_rows=True, described=True, prefetch=early)
        if gated and tokens <= TOKENS_MIN:
            return Blocks(TOKENS_MIN, 64, 256, 4, 3, described=True, prefetch=early)
        stages = 6 if tokens <= 32 and (parts or not early) else 4
        return Blocks(block_tokens(tokens), 64, 128, 4, stages, described=True, prefetch=early)
    if tokens <= 128:
        if early and not parts:
            return Blocks(128, 32, 128, 4, 4, token_rows=True, described=True, prefetch=True)
        return Blocks(128, 64, 64, 4, 5, token_rows=True, described=True, prefetch=early)
    if not early and (gated or parts):
        return Blocks(128, 128, 64, 8, 4, described=True)
    stages = 4 if gated or (parts and k > 256) else 5
    return Blocks(128, 64, 64, 4, stages, token_rows=True, described=True, prefetch=early)


def splits(n: int, k: int, multiprocessors: int) -> int:
    """Returns the number of parts that a product's sums are split into, for at most one program a multiprocessor.

    A product with few outputs would otherwise leave most of the card idle. More programs than that would write and
    read more parts, and gain nothing.
    """
    count = 1
    while 2 * count * triton.cdiv(n, 64) <= multiprocessors and k % (2 * count * 64) == 0 and count < SPLITS_MAX:
        count *= 2
    return count


def largest_block(k: int, limit: int) -> int:
    """Returns the largest power of two up to `limit` that divides k and is less than it, but at least 16.

    A sum takes two steps or more, because Triton gives the summands of a single step another order.
    """
    block = min(limit, k & -k)
    return block if block < k else max(TOKENS_MIN, block // 2)


def gemv(
    launch: Launcher,
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    *,
    mode: int = 0,
    bias: Tensor | None = None,
    norm: tuple[Tensor, float] | None = None,
    blocks: Blocks | None = None,
) -> None:
    """Multiplies at most GEMV_TOKENS tokens: x [T, K], weight [N or 2N, K] → out [T, N].

    `norm` (weight [K], epsilon) is applied to x first. `mode`: PLAIN, ADD, GATED or BIAS.
    """
    (tokens, k), n = x.shape, out.shape[1]
    assert tokens <= GEMV_TOKENS, "a program holds every token's sums"
    assert weight.shape == (2 * n if mode == GATED.value else n, k)
    assert len(out) == tokens
    blocks = blocks or gemv_blocks(n, k, mode)
    norm_weight, eps = norm or (weight, 0.0)
    launch(
        gemv_kernel,
        (triton.cdiv(n, blocks.n),),
        x,
        weight,
        out,
        weight if bias is None else bias,
        norm_weight,
        eps,
        TOKENS=tokens,
        N=n,
        K=k,
        MODE=mode,
        NORM=norm is not None,
        BLOCK_N=blocks.n,
        BLOCK_K=triton.next_power_of_2(k),
        num_warps=blocks.warps,
    )


def gemm(
    launch: Launcher,
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    *,
    mode: int = 0,
    bias: Tensor | None = None,
    blocks: Blocks | None = None,
) -> None:
    """Multiplies any number of tokens: x [T, K], weight [N or 2N, K] → out [T, N].

    `mode`: PLAIN, GATED, BIAS, or PARTS with out [splits, T, N] float32.
    """
    (tokens, k), n = x.shape, out.shape[-1]
    parts = len(out) if mode == PARTS.value else 1
    assert weight.shape == (2 * n if mode == GATED.value else n, k)
    assert out.shape == ((parts, tokens, n) if mode == PARTS.value else (tokens, n))
    assert k % parts == 0, "every program sums equally many products"
    assert mode != PARTS.value or out.dtype == torch.float32
    blocks = blocks or gemm_blocks(tokens, k // parts, mode, x.itemsize, launch.card)
    block_k = largest_block(k // parts, blocks.k)
    launch(
        gemm_kernel,
        (triton.cdiv(n, blocks.n), triton.cdiv(tokens, blocks.t), parts),
        x,
        weight,
        out,
        weight if bias is None else bias,
        tokens,
        TensorDescriptor.from_tensor(x, [blocks.t, block_k]) if blocks.described else None,
        TensorDescriptor.from_tensor(weight, [blocks.n, block_k]) if blocks.described else None,
        N=n,
        K=k,
        MODE=mode,
        SPLITS=parts,
        BLOCK_T=blocks.t,
        BLOCK_N=blocks.n,
        BLOCK_K=block_k,
        TOKEN_ROWS=blocks.token_rows,
        PREFETCH=blocks.prefetch,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        num_warps=blocks.warps,
        num_stages=blocks.stages,
    )


def norm(
    launch: Launcher,
    x: Tensor,
    weight: Tensor,
    eps: float,
    out: Tensor,
    *,
    parts: Tensor | None = None,
    keep: tuple[Tensor, Tensor] | None = None,
) -> None:
    """x [T, K] += the sum of parts [splits, T, K] float32, if given; out [T, K] = norm(x).

    With `keep` (rows [T] int32, table [all rows, K]) the result is also stored in those rows of the table.
    """
    tokens, k = x.shape
    rows, table = keep or (x, x)
    assert weight.shape == (k,)
    assert out.shape == x.shape
    assert parts is None or parts.shape[1:] == x.shape
    assert parts is None or parts.stride()[1:] == x.stride() == (k, 1)
    assert keep is None or (rows.shape == (tokens,) and rows.dtype == torch.int32)
    assert keep is None or table.shape[1:] == (k,)
    launch(
        norm_kernel,
        (tokens,),
        x,
        x if parts is None else parts,
        weight,
        out,
        rows,
        table,
        0 if parts is None else parts.stride(0) // k,
        eps,
        K=k,
        BLOCK_K=triton.next_power_of_2(k),
        SPLITS=0 if parts is None else len(parts),
        KEEP=keep is not None,
        num_warps=max(1, min(16, triton.next_power_of_2(k) // 128)),  # a thread loads four values of each part at once
    )
