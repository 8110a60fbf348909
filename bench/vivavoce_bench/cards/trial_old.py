"""The code predictor's attention. A frame has few keys, and one program holds all of them in registers."""

# Triton reads the annotations of a kernel, so its pointers carry none.
# ruff: noqa: ANN001
# mypy: disable-error-code="untyped-decorator,no-untyped-def"

import triton
import triton.language as tl
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
