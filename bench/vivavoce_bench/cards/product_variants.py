"""Other ways to multiply a few dozen to a few hundred tokens by a large weight, to be timed beside gpu/linear.py's.

Operands come through tensor descriptors (TMA), and tokens may be the rows of the tensor cores' tiles instead of their
columns.
"""

# Triton reads the annotations of a kernel, so its pointers carry none.
# ruff: noqa: ANN001
# mypy: disable-error-code="untyped-decorator,no-untyped-def"

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.tools.tensor_descriptor import TensorDescriptor
from vivavoce_engine.gpu.launch import Launcher
from vivavoce_engine.gpu.linear import BIAS, GATED, PARTS, Blocks, largest_block, prefetch_rows, silu_product


@dataclass(frozen=True, slots=True)
class Way:
    """A way to multiply: blocks; whether tokens are the rows of a tile; whether tiles come through descriptors; whether
    weights are asked for before the wait."""

    blocks: Blocks
    swap: bool = False
    described: bool = True
    prefetch: bool = True

    def __str__(self) -> str:
        b = self.blocks
        kind = ("tma" if self.described else "cp") + " swap" * self.swap + " prefetch" * self.prefetch
        return f"{kind} t{b.t} n{b.n} k{b.k} w{b.warps} s{b.stages}"


@triton.jit(do_not_specialize=["tokens"])
def described_kernel(
    x_desc,
    w_desc,
    x_ptr,
    w_ptr,
    out_ptr,
    bias_ptr,
    tokens,
    N: tl.constexpr,
    K: tl.constexpr,
    MODE: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SWAP: tl.constexpr,
    DESCRIBED: tl.constexpr,
    PREFETCH: tl.constexpr,
    DEPENDENT: tl.constexpr = False,
) -> None:
    """gemm_kernel of gpu/linear.py with tiles from descriptors, or with SWAP as [tokens, outputs]."""
    n0, t0 = tl.program_id(0) * BLOCK_N, tl.program_id(1) * BLOCK_T
    split = tl.program_id(2)
    LENGTH: tl.constexpr = K // SPLITS
    n, t, k = n0 + tl.arange(0, BLOCK_N), t0 + tl.arange(0, BLOCK_T), tl.arange(0, BLOCK_K)
    inside, alive = n < N, t < tokens
    if DEPENDENT:
        if PREFETCH:
            SIZE: tl.constexpr = w_ptr.dtype.element_ty.primitive_bitwidth // 8
            if t0 == 0:
                begin = w_ptr + tl.program_id(0).to(tl.int64) * (BLOCK_N * K) + split * LENGTH
                count = tl.minimum(BLOCK_N, N - n0)
                prefetch_rows(begin, K * SIZE, LENGTH * SIZE, count)
                if MODE == GATED:
                    prefetch_rows(begin + N * K, K * SIZE, LENGTH * SIZE, count)
        gdc_launch_dependents()
        gdc_wait()
    if SWAP:
        acc = tl.zeros((BLOCK_T, BLOCK_N), tl.float32)
        up = tl.zeros((BLOCK_T, BLOCK_N), tl.float32)
    else:
        acc = tl.zeros((BLOCK_N, BLOCK_T), tl.float32)
        up = tl.zeros((BLOCK_N, BLOCK_T), tl.float32)
    rows = tl.where(inside, n, 0).to(tl.int64)[:, None] * K
    for step in range(0, LENGTH, BLOCK_K):
        at = split * LENGTH + step
        if DESCRIBED:
            x = x_desc.load([t0, at])
            w = w_desc.load([n0, at])
        else:
            x = tl.load(x_ptr + t[:, None] * K + (at + k)[None, :], mask=alive[:, None], other=0.0)
            w = tl.load(w_ptr + rows + (at + k)[None, :])
        if SWAP:
            acc = tl.dot(x, w.T, acc)
        else:
            acc = tl.dot(w, x.T, acc)
        if MODE == GATED:
            if DESCRIBED:
                w_up = w_desc.load([N + n0, at])
            else:
                w_up = tl.load(w_ptr + N * K + rows + (at + k)[None, :])
            if SWAP:
                up = tl.dot(x, w_up.T, up)
            else:
                up = tl.dot(w_up, x.T, up)
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    if SWAP:
        mask = alive[:, None] & inside[None, :]
        place = t[:, None] * N + n[None, :]
        if MODE == BIAS:
            acc = tl.fma(acc, 1.0, tl.load(bias_ptr + n, mask=inside, other=0.0).to(tl.float32)[None, :])
    else:
        mask = inside[:, None] & alive[None, :]
        place = t[None, :] * N + n[:, None]
        if MODE == BIAS:
            acc = tl.fma(acc, 1.0, tl.load(bias_ptr + n, mask=inside, other=0.0).to(tl.float32)[:, None])
    if MODE == GATED:
        acc = silu_product(acc, up, dtype)
    if MODE == PARTS:
        tl.store(out_ptr + split.to(tl.int64) * tokens * N + place, acc, mask=mask)
    else:
        tl.store(out_ptr + place, acc.to(dtype), mask=mask)


def multiply(
    launch: Launcher, x: Tensor, weight: Tensor, out: Tensor, way: Way, mode: int = 0, bias: Tensor | None = None
) -> None:
    """gemm of gpu/linear.py, in one of the other ways."""
    (tokens, k), n, blocks = x.shape, out.shape[-1], way.blocks
    parts = len(out) if mode == PARTS.value else 1
    block_k = largest_block(k // parts, blocks.k)
    x_desc = w_desc = None
    if way.described:
        x_desc = TensorDescriptor.from_tensor(x, [blocks.t, block_k])
        w_desc = TensorDescriptor.from_tensor(weight, [blocks.n, block_k])
    launch(
        described_kernel,
        (triton.cdiv(n, blocks.n), triton.cdiv(tokens, blocks.t), parts),
        x_desc,
        w_desc,
        x,
        weight,
        out,
        weight if bias is None else bias,
        tokens,
        N=n,
        K=k,
        MODE=mode,
        SPLITS=parts,
        BLOCK_T=blocks.t,
        BLOCK_N=blocks.n,
        BLOCK_K=block_k,
        SWAP=way.swap,
        DESCRIBED=way.described,
        PREFETCH=way.prefetch,
        num_warps=blocks.warps,
        num_stages=blocks.stages,
    )
    assert x.dtype == torch.bfloat16
