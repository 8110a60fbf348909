"""Norm and rotation of the heads of queries and keys, for the attention of a talker and of a frame."""

# Triton reads the annotations of a kernel, so its pointers carry none.
# ruff: noqa: ANN001, ANN201
# mypy: disable-error-code="untyped-decorator,no-untyped-def"

import triton
import triton.language as tl

AXES = 3
"""Axes of a rotary position, if it has several: time, height and width."""


@triton.jit
def norm_weights(norm_ptr, head, D: tl.constexpr, inside):
    """Loads the norm's weights of heads `head` [H], twice as [H, D] float32: the weight of each value, and the weight
    of the value that it is rotated with."""
    d = tl.arange(0, D)
    other = (d + D // 2) % D
    weight = tl.load(norm_ptr + head[:, None] * D + d[None, :], mask=inside[:, None], other=0.0).to(tl.float32)
    turned = tl.load(norm_ptr + head[:, None] * D + other[None, :], mask=inside[:, None], other=0.0).to(tl.float32)
    return weight, turned


@triton.jit
def norm_rotate(base_ptr, head, weight, turned, cos, sin, eps, D: tl.constexpr, inside):
    """Norms and rotates heads `head` [H] of one token of qkv → float32 [H, D].

    Intermediate results are rounded to qkv's dtype, as in the PyTorch modules. `weight` and `turned` come from
    `norm_weights`. cos, sin [D] are float32, and the first half of sin is negated (models/layers.py, Rope).
    """
    dtype: tl.constexpr = base_ptr.dtype.element_ty
    d = tl.arange(0, D)
    other = (d + D // 2) % D
    x = tl.load(base_ptr + head[:, None] * D + d[None, :], mask=inside[:, None], other=0.0).to(tl.float32)
    y = tl.load(base_ptr + head[:, None] * D + other[None, :], mask=inside[:, None], other=0.0).to(tl.float32)
    # As an fma a square is rounded, whatever the compiler makes of the sum.
    rstd = tl.rsqrt(tl.sum(tl.fma(x, x, 0.0), axis=1) / D + eps)[:, None]
    x = ((x * rstd).to(dtype).to(tl.float32) * weight).to(dtype).to(tl.float32)
    y = ((y * rstd).to(dtype).to(tl.float32) * turned).to(dtype).to(tl.float32)
    return (x * cos[None, :] + y * sin[None, :]).to(dtype).to(tl.float32)


@triton.jit
def load_rotation(
    cos_ptr,
    sin_ptr,
    axes_ptr,
    row,
    token,
    position,
    D: tl.constexpr,
    BY_ROW: tl.constexpr,
    HEIGHTS: tl.constexpr,
    WIDTHS: tl.constexpr,
):
    """Loads a token's rotation, cos and sin [D] float32.

    With HEIGHTS the rotary position has three axes, and of each three frequencies one is of height and one of width, up
    to HEIGHTS and WIDTHS of them. A prompt's tokens have their positions in axes [tokens, 3]. With BY_ROW all axes of a
    token are axes[row] behind its position.
    """
    d = tl.arange(0, D)
    at = position
    if HEIGHTS > 0:
        if BY_ROW:
            at = position + tl.load(axes_ptr + row)
        else:
            i = d % (D // 2)
            height = (i % 3 == 1) & (i < 3 * HEIGHTS)
            width = (i % 3 == 2) & (i < 3 * WIDTHS)
            at = tl.load(axes_ptr + token * 3 + tl.where(height, 1, tl.where(width, 2, 0)))
    return tl.load(cos_ptr + at * D + d), tl.load(sin_ptr + at * D + d)
