"""The code predictor's attention. A frame has few keys, and one program holds all of them in registers.

What its time depends on is the number of its instructions after the wait for qkv. Heads are loaded as two halves, each
value once, and products with earlier tokens are made by tensor cores: queries and keys are rounded to the dtype anyway.
"""

# Triton reads the annotations of a kernel, so its pointers carry none.
# ruff: noqa: ANN001, ANN201
# mypy: disable-error-code="untyped-decorator,no-untyped-def"

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from vivavoce_engine.gpu.attention import NOTHING, Cache, Projected
from vivavoce_engine.gpu.launch import Launcher

WARPS = 1
"""A single warp waits for no other. With 1, 2, 4 the kernel took 3.1, 4.3, 8.0 µs at 256 rows of an H200."""


@triton.jit
def load_halves(heads_ptr, head, h, inside, D: tl.constexpr):
    """Loads heads `head` [H] of heads_ptr [heads, D] → their first and their second half, both [H, len(h)]."""
    at = heads_ptr + head[:, None] * D + h[None, :]
    return tl.load(at, mask=inside, other=0.0), tl.load(at + D // 2, mask=inside, other=0.0)


@triton.jit
def norm_rotate_halves(x, y, x_weight, y_weight, cos, sin, eps, D: tl.constexpr):
    """Norms and rotates heads, given as halves x and y [H, half of D] → the same, in their dtype.

    Intermediate results are rounded to that dtype, as in the PyTorch modules. cos and sin are float32.
    """
    dtype: tl.constexpr = x.dtype
    x, y = x.to(tl.float32), y.to(tl.float32)
    rstd = tl.rsqrt(tl.sum(x * x + y * y, axis=1) / D + eps)[:, None]
    x = ((x * rstd).to(dtype).to(tl.float32) * x_weight.to(tl.float32)).to(dtype).to(tl.float32)
    y = ((y * rstd).to(dtype).to(tl.float32) * y_weight.to(tl.float32)).to(dtype).to(tl.float32)
    return (x * cos - y * sin).to(dtype), (y * cos + x * sin).to(dtype)


@triton.jit
def dot_halves(x, y, other_x, other_y):
    """Products of heads, given as halves → [H] float32."""
    products = x.to(tl.float32) * other_x.to(tl.float32) + y.to(tl.float32) * other_y.to(tl.float32)
    return tl.sum(products, axis=1)


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
    PRECISION: tl.constexpr,
    DEPENDENT: tl.constexpr = False,
) -> None:
    """Attention within a frame. Grid [batch, kv_heads]; cache k, v [batch, LENGTH, kv_heads, D].

    With FIRST each row has two new tokens: tokens 0 to batch - 1 at position 0, and tokens batch to 2 batch - 1 at
    position 1. Otherwise each row has one, at `position`.

    The new token's key and value are a term of their own, beside the products with those of earlier tokens. Every query
    head has a copy of the new key, so that the two have one layout. Weights are rounded to the dtype of the values, as
    in the reference.
    """
    b, kv_head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    G: tl.constexpr = HEADS // KV_HEADS
    GROUP: tl.constexpr = triton.next_power_of_2(G)
    WIDTH: tl.constexpr = (HEADS + 2 * KV_HEADS) * D
    HALF: tl.constexpr = D // 2
    PADDED: tl.constexpr = HALF if HALF > 16 else 16  # summands of a product on tensor cores
    PLACES: tl.constexpr = LENGTH if LENGTH > 16 else 16
    d, h, g = tl.arange(0, D), tl.arange(0, PADDED), tl.arange(0, GROUP)
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    real = g < G
    every = (g >= 0)[:, None] & (h < HALF)[None, :]
    q_head, k_head = kv_head * G + tl.where(real, g, 0), HEADS + kv_head + 0 * g
    q_weight_x, q_weight_y = load_halves(norm_ptr, q_head, h, every, D)
    k_weight_x, k_weight_y = load_halves(norm_ptr, k_head, h, every, D)
    at = 1 if FIRST else position
    turn = (0 * g)[:, None] + h[None, :]
    cos = tl.load(cos_ptr + at * D + turn, mask=every, other=0.0)
    sin = tl.load(sin_ptr + at * D + HALF + turn, mask=every, other=0.0)
    if DEPENDENT:
        gdc_launch_dependents()
    n = tl.arange(0, PLACES)
    past = n < position
    if FIRST:
        cos_0 = tl.load(cos_ptr + turn, mask=every, other=0.0)
        sin_0 = tl.load(sin_ptr + HALF + turn, mask=every, other=0.0)
    else:
        # The frame's earlier keys and values were stored before its last code was drawn. No kernel after a draw begins
        # before the draw does (sampler.py), so they need no wait.
        places = (b * LENGTH + n) * KV_HEADS + kv_head
        old_x, old_y = load_halves(k_ptr, places, h, past[:, None] & (h < HALF)[None, :], D)
        old_v = tl.load(v_ptr + places[:, None] * D + d[None, :], mask=past[:, None], other=0.0)
    if DEPENDENT:
        gdc_wait()
    # All loads come before their values are used, so that they are on their way together.
    token = (batch + b) if FIRST else b
    base = qkv_ptr + token * WIDTH
    q_x, q_y = load_halves(base, q_head, h, every, D)
    k_x, k_y = load_halves(base, k_head, h, every, D)
    v_head = (HEADS + KV_HEADS + kv_head) * D + d[None, :]
    new_v = tl.load(base + v_head)
    if FIRST:
        first_x, first_y = load_halves(qkv_ptr + b * WIDTH, k_head, h, every, D)
        first_v = tl.load(qkv_ptr + b * WIDTH + v_head)
    q_x, q_y = norm_rotate_halves(q_x, q_y, q_weight_x, q_weight_y, cos, sin, eps, D)
    k_x, k_y = norm_rotate_halves(k_x, k_y, k_weight_x, k_weight_y, cos, sin, eps, D)
    cache = ((b * LENGTH + at) * KV_HEADS + kv_head) * D
    one = (g == 0)[:, None] & (h < HALF)[None, :]
    tl.store(k_ptr + cache + turn, k_x, mask=one)
    tl.store(k_ptr + cache + HALF + turn, k_y, mask=one)
    tl.store(v_ptr + cache + d[None, :], new_v)
    own = dot_halves(q_x, q_y, k_x, k_y) * scale
    if FIRST:
        first_x, first_y = norm_rotate_halves(first_x, first_y, k_weight_x, k_weight_y, cos_0, sin_0, eps, D)
        cache = (b * LENGTH * KV_HEADS + kv_head) * D
        tl.store(k_ptr + cache + turn, first_x, mask=one)
        tl.store(k_ptr + cache + HALF + turn, first_y, mask=one)
        tl.store(v_ptr + cache + d[None, :], first_v)
        out = out_ptr + (b * HEADS + kv_head * G + g)[:, None] * D + d[None, :]
        tl.store(out, tl.broadcast_to(first_v, (GROUP, D)), mask=real[:, None])
        score = dot_halves(q_x, q_y, first_x, first_y) * scale
        highest = tl.maximum(score, own)
        weight = tl.exp(score - highest)
        own_weight = tl.exp(own - highest)
        total = weight + own_weight
        acc = (weight / total).to(dtype).to(tl.float32)[:, None] * first_v.to(tl.float32)
    else:
        # Two sums, each half as long as one over all D, are ready earlier.
        score = tl.dot(q_x, old_x.T, input_precision=PRECISION) * scale
        score += tl.dot(q_y, old_y.T, input_precision=PRECISION) * scale
        score = tl.where(past[None, :], score, NOTHING)
        highest = tl.maximum(tl.max(score, axis=1), own)
        weight = tl.exp(score - highest[:, None])
        own_weight = tl.exp(own - highest)
        total = tl.sum(weight, axis=1) + own_weight
        acc = tl.dot((weight / total[:, None]).to(dtype), old_v, input_precision=PRECISION)
    acc += (own_weight / total).to(dtype).to(tl.float32)[:, None] * new_v.to(tl.float32)
    out = out_ptr + (token * HEADS + kv_head * G + g)[:, None] * D + d[None, :]
    tl.store(out, acc.to(dtype), mask=real[:, None])


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
        PRECISION="ieee" if given.qkv.dtype == torch.float32 else "tf32",
        num_warps=WARPS,
    )
