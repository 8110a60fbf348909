"""The code predictor's attention. A frame has few keys, and one program holds all of them in registers."""

# Triton reads the annotations of a kernel, so its pointers carry none.
# ruff: noqa: ANN001
# mypy: disable-error-code="untyped-decorator,no-untyped-def"

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from vivavoce_engine.gpu.attention import NOTHING, Cache, Projected
from vivavoce_engine.gpu.heads import norm_rotate, norm_weights
from vivavoce_engine.gpu.launch import Launcher

WARPS = 1
"""A single warp waits for no other. With two, 64 rows of the 0.6B model took 4.23 ms a frame instead of 4.13."""


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
    DEPENDENT: tl.constexpr = False,
) -> None:
    """Attention within a frame. Grid [batch, kv_heads]; cache k, v [batch, LENGTH, kv_heads, D].

    With FIRST each row has two new tokens: tokens 0 to batch - 1 at position 0, and tokens batch to 2 batch - 1 at
    position 1. Otherwise each row has one, at `position`.
    """
    b, kv_head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    G: tl.constexpr = HEADS // KV_HEADS
    GROUP: tl.constexpr = triton.next_power_of_2(G)
    WIDTH: tl.constexpr = (HEADS + 2 * KV_HEADS) * D
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    d = tl.arange(0, D)
    g = tl.arange(0, GROUP)
    real = g < G
    one = kv_head + tl.arange(0, 1)
    always = one >= 0
    cache = (b * LENGTH * KV_HEADS + one)[:, None] * D + d[None, :]
    q_weight, q_turned = norm_weights(norm_ptr, kv_head * G + g, D, real)
    k_weight, k_turned = norm_weights(norm_ptr, HEADS + one, D, always)
    at = 1 if FIRST else position
    cos, sin = tl.load(cos_ptr + at * D + d), tl.load(sin_ptr + at * D + d)
    if DEPENDENT:
        gdc_launch_dependents()
    if FIRST:
        cos_0, sin_0 = tl.load(cos_ptr + d), tl.load(sin_ptr + d)
    else:
        # The frame's earlier keys and values were stored before its last code was drawn. No kernel after a draw begins
        # before the draw does (sampler.py), so they need no wait.
        n = tl.arange(0, LENGTH)
        where = ((b * LENGTH + n) * KV_HEADS + kv_head)[:, None] * D + d[None, :]
        past = (n < position)[:, None]
        k = tl.load(k_ptr + where, mask=past, other=0.0).to(tl.float32)
        v = tl.load(v_ptr + where, mask=past, other=0.0).to(tl.float32)
    if DEPENDENT:
        gdc_wait()
    base = qkv_ptr + ((batch + b) if FIRST else b) * WIDTH
    new_v = tl.load(base + (HEADS + KV_HEADS + one)[:, None] * D + d[None, :])
    q = norm_rotate(base, kv_head * G + g, q_weight, q_turned, cos, sin, eps, D, real)
    new_k = norm_rotate(base, HEADS + one, k_weight, k_turned, cos, sin, eps, D, always)
    tl.store(k_ptr + cache + at * KV_HEADS * D, new_k.to(dtype))
    tl.store(v_ptr + cache + at * KV_HEADS * D, new_v)
    out = out_ptr + (((batch + b) if FIRST else b) * HEADS + kv_head * G + g)[:, None] * D + d[None, :]
    if FIRST:
        base = qkv_ptr + b * WIDTH
        k0 = norm_rotate(base, HEADS + one, k_weight, k_turned, cos_0, sin_0, eps, D, always)
        v0 = tl.load(base + (HEADS + KV_HEADS + one)[:, None] * D + d[None, :])
        tl.store(k_ptr + cache, k0.to(dtype))
        tl.store(v_ptr + cache, v0)
        out_0 = out_ptr + (b * HEADS + kv_head * G + g)[:, None] * D + d[None, :]
        tl.store(out_0, tl.broadcast_to(v0, (GROUP, D)), mask=real[:, None])
        score0 = tl.sum(q * k0, axis=1) * scale
        score1 = tl.sum(q * new_k, axis=1) * scale
        highest = tl.maximum(score0, score1)
        w0, w1 = tl.exp(score0 - highest), tl.exp(score1 - highest)
        acc = w0[:, None] * v0.to(tl.float32) + w1[:, None] * new_v.to(tl.float32)
        tl.store(out, (acc / (w0 + w1)[:, None]).to(dtype), mask=real[:, None])
    else:
        mine = (n == position)[:, None]
        k = tl.where(mine, new_k, k)
        v = tl.where(mine, new_v.to(tl.float32), v)
        score = tl.sum(q[:, None, :] * k[None, :, :], axis=2) * scale
        score = tl.where((n <= position)[None, :], score, NOTHING)
        weight = tl.exp(score - tl.max(score, axis=1)[:, None])
        acc = tl.sum(weight[:, :, None] * v[None, :, :], axis=1)
        tl.store(out, (acc / tl.sum(weight, axis=1)[:, None]).to(dtype), mask=real[:, None])


@triton.jit(do_not_specialize=["position"])
def attend_and_add_kernel(
    qkv_ptr,
    norm_ptr,
    cos_ptr,
    sin_ptr,
    k_ptr,
    v_ptr,
    w_ptr,
    x_ptr,
    eps,
    scale,
    position,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    LENGTH: tl.constexpr,
    N: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PRECISION: tl.constexpr,
    DEPENDENT: tl.constexpr = False,
) -> None:
    """Attention of one row's token at `position` of its frame, times w [N, HEADS * D], added to x [N].

    Grid [N / BLOCK_N]. Each program computes the attention of all heads; the first one writes cache k, v [LENGTH,
    kv_heads, D]. One product gives the scores of every query head with every key head, and most of them are masked.
    """
    G: tl.constexpr = HEADS // KV_HEADS
    KEYS: tl.constexpr = LENGTH * KV_HEADS
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    d = tl.arange(0, D)
    head, kv_head = tl.arange(0, HEADS), tl.arange(0, KV_HEADS)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    column = tl.arange(0, HEADS * D)
    w = tl.load(w_ptr + n[:, None] * (HEADS * D) + column[None, :])
    key = tl.arange(0, KEYS)
    past = (key // KV_HEADS < position)[:, None]
    k = tl.load(k_ptr + key[:, None] * D + d[None, :], mask=past, other=0.0)
    v = tl.load(v_ptr + key[:, None] * D + d[None, :], mask=past, other=0.0)
    q_weight, q_turned = norm_weights(norm_ptr, head, D, head < HEADS)
    k_weight, k_turned = norm_weights(norm_ptr, HEADS + kv_head, D, kv_head < KV_HEADS)
    cos, sin = tl.load(cos_ptr + position * D + d), tl.load(sin_ptr + position * D + d)
    if DEPENDENT:
        # Earlier keys and values need no wait, as in frame_attention_kernel.
        gdc_launch_dependents()
        gdc_wait()
    residual = tl.load(x_ptr + n).to(tl.float32)
    new_v = tl.load(qkv_ptr + (HEADS + KV_HEADS + kv_head)[:, None] * D + d[None, :])
    q = norm_rotate(qkv_ptr, head, q_weight, q_turned, cos, sin, eps, D, head < HEADS).to(dtype)
    new_k = norm_rotate(qkv_ptr, HEADS + kv_head, k_weight, k_turned, cos, sin, eps, D, kv_head < KV_HEADS).to(dtype)
    if tl.program_id(0) == 0:
        here = (position * KV_HEADS + kv_head)[:, None] * D + d[None, :]
        tl.store(k_ptr + here, new_k)
        tl.store(v_ptr + here, new_v)
    # Keys and values of earlier positions, and behind them the token's own.
    theirs = (key % KV_HEADS)[None, :] == (head // G)[:, None]
    score = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
    score = tl.where(theirs & (key // KV_HEADS < position)[None, :], score, NOTHING)
    own = tl.sum(q.to(tl.float32)[:, None, :] * new_k.to(tl.float32)[None, :, :], axis=2) * scale
    mine = kv_head[None, :] == (head // G)[:, None]
    own = tl.where(mine, own, NOTHING)
    highest = tl.maximum(tl.max(score, axis=1), tl.max(own, axis=1))
    weight = tl.where(theirs & (key // KV_HEADS < position)[None, :], tl.exp(score - highest[:, None]), 0.0)
    own = tl.where(mine, tl.exp(own - highest[:, None]), 0.0)
    total = tl.sum(weight, axis=1) + tl.sum(own, axis=1)
    acc = tl.dot(weight.to(dtype), v, input_precision=PRECISION)
    acc += tl.sum(own[:, :, None] * new_v.to(tl.float32)[None, :, :], axis=1)
    attended = (acc / total[:, None]).to(dtype).to(tl.float32)
    attended = tl.reshape(attended, (HEADS * D,))
    out = tl.sum(w.to(tl.float32) * attended[None, :], axis=1)
    tl.store(x_ptr + n, (out.to(dtype).to(tl.float32) + residual).to(dtype))


def attend_in_frame(launch: Launcher, cache: Cache, batch: int, position: int, given: Projected) -> None:
    """Attention of the next tokens of `batch` rows over their frame. Writes the cache.

    Position 1 means a frame's first two tokens, qkv [2 * batch, …]. A later one is a single token a row, qkv [batch,
    …].
    """
    assert 1 <= position < cache.length
    assert batch <= cache.k.shape[1]
    assert len(given.qkv) == len(given.out) == (2 * batch if position == 1 else batch)
    launch(
        frame_attention_kernel,
        (batch, cache.kv_heads),
        given.qkv,
        given.qk_norm[0],
        cache.cos,
        cache.sin,
        cache.k[given.layer],
        cache.v[given.layer],
        given.out,
        given.qk_norm[1],
        cache.head_dim**-0.5,
        batch,
        position,
        HEADS=cache.heads,
        KV_HEADS=cache.kv_heads,
        D=cache.head_dim,
        LENGTH=cache.length,
        FIRST=position == 1,
        num_warps=WARPS,
    )


OWN_ROWS, OWN_WARPS = 8, 8
"""Outputs of a program that attends and multiplies, and its warps."""


def attend_and_add(launch: Launcher, cache: Cache, position: int, given: Projected, weight: Tensor, x: Tensor) -> None:
    """x [1, hidden] += attention · weightᵀ, for the token at `position` ≥ 2 of one row's frame. Writes the cache."""
    assert 2 <= position < cache.length
    assert len(given.qkv) == len(x) == 1
    assert weight.shape == (x.shape[1], cache.heads * cache.head_dim)
    assert x.shape[1] % OWN_ROWS == 0
    launch(
        attend_and_add_kernel,
        (x.shape[1] // OWN_ROWS,),
        given.qkv,
        given.qk_norm[0],
        cache.cos,
        cache.sin,
        cache.k[given.layer],
        cache.v[given.layer],
        weight,
        x,
        given.qk_norm[1],
        cache.head_dim**-0.5,
        position,
        HEADS=cache.heads,
        KV_HEADS=cache.kv_heads,
        D=cache.head_dim,
        LENGTH=cache.length,
        N=x.shape[1],
        BLOCK_N=OWN_ROWS,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        num_warps=OWN_WARPS,
    )
