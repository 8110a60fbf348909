"""Variants of the models' arithmetic that differ only in rounding: patches of loaded modules, for the study only.

The engine itself has weights and activations in its dtype, computes the variance of RMSNorm in float32 and casts before
the weight, and computes RoPE in float32.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from types import MethodType

import torch
from torch import Tensor, nn
from vivavoce_engine.models.layers import Attention, GatedMLP, RMSNorm, Rope

FP8_MAX = 448.0
"""Largest number of e4m3."""
INT8_MAX, INPUT_MAX, WHOLE_BLOCK = 127, 32767, 64
"""Largest weight, largest input, and inputs that share a scale, as the CPU's kernels have them for `--dtype int8`."""


def variance_in_dtype(norm: RMSNorm, x: Tensor) -> Tensor:
    """RMSNorm that rounds squares, mean and root to x's dtype, one after the other."""
    variance = x.square().mean(-1, keepdim=True)
    return norm.weight * (x * torch.rsqrt(variance + norm.eps))


def cast_folded(norm: RMSNorm, x: Tensor) -> Tensor:
    """RMSNorm with one rounding instead of two: it multiplies the weight in float32 and casts last."""
    wide = x.float()
    variance = wide.square().mean(-1, keepdim=True)
    return (norm.weight.float() * (wide * torch.rsqrt(variance + norm.eps))).to(x.dtype)


def rounded_rope(rope: Rope, positions: Tensor) -> tuple[Tensor, Tensor]:
    """RoPE whose cos and sin are rounded to bfloat16 after they are computed, as in the reference package."""
    cos, sin = Rope.forward(rope, positions)
    return cos.bfloat16(), sin.bfloat16()


def coarse_rope(rope: Rope, positions: Tensor) -> tuple[Tensor, Tensor]:
    """RoPE with the angle in bfloat16, which cannot represent odd positions above 256."""
    angle = (positions[..., None].bfloat16() * rope.inverse_frequency.bfloat16()).unsqueeze(2)
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)


def to_fp8(x: Tensor) -> Tensor:
    """Rounds x to e4m3 with one scale for each vector of the last axis. The result has x's dtype."""
    scale = x.abs().amax(-1, keepdim=True).float().clamp(min=1e-12) / FP8_MAX
    return ((x.float() / scale).to(torch.float8_e4m3fn).float() * scale).to(x.dtype)


def fp8_input(linear: nn.Linear, x: Tensor) -> Tensor:
    out: Tensor = nn.Linear.forward(linear, to_fp8(x))
    return out


Patch = Callable[[nn.Module], None]
"""Changes the arithmetic of one network."""


def patch_norms(forward: Callable[[RMSNorm, Tensor], Tensor], network: nn.Module) -> None:
    for module in network.modules():
        if isinstance(module, RMSNorm):
            module.forward = MethodType(forward, module)  # type: ignore[method-assign]


def patch_rope(forward: Callable[[Rope, Tensor], tuple[Tensor, Tensor]], network: nn.Module) -> None:
    for module in network.modules():
        if isinstance(module, Rope):
            module.forward = MethodType(forward, module)  # type: ignore[method-assign]


def patch_matmuls(activations: bool, network: nn.Module) -> None:
    """Rounds weights of the blocks' projections to e4m3, a scale per row, and optionally inputs, one per token."""
    for linear in projections(network):
        linear.weight.data = to_fp8(linear.weight.data)
        if activations:
            linear.forward = MethodType(fp8_input, linear)  # type: ignore[method-assign]


def to_whole(values: Tensor, most: int) -> Tensor:
    """Rounds values [..., inputs] to -most to most times a scale, one for each 64 inputs."""
    blocks = values.view(*values.shape[:-1], -1, math.gcd(values.shape[-1], WHOLE_BLOCK))
    scale = blocks.abs().amax(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny) / most
    return ((blocks / scale).round() * scale).flatten(-2)


def whole_input(linear: nn.Linear, x: Tensor) -> Tensor:
    out: Tensor = nn.Linear.forward(linear, to_whole(x, INPUT_MAX))
    return out


def patch_int8(network: nn.Module) -> None:
    """Rounds as `--dtype int8` does: weights of products, heads too, to int8, their inputs to 16 bits, and embeddings
    to bfloat16.

    Sums stay float32.
    """
    for module in network.modules():
        if isinstance(module, nn.Linear):
            module.weight.data = to_whole(module.weight.data, INT8_MAX)
            module.forward = MethodType(whole_input, module)  # type: ignore[method-assign]
        elif isinstance(module, nn.Embedding):
            module.weight.data = module.weight.data.bfloat16().float()


def projections(network: nn.Module) -> Iterable[nn.Linear]:
    for module in network.modules():
        if isinstance(module, Attention | GatedMLP):
            yield from (child for child in module.children() if isinstance(child, nn.Linear))


BOTH = ("talker", "code predictor")


@dataclass(frozen=True, slots=True)
class Variant:
    """A variant: the engine's `dtype`, and patches of some networks, by their names in `TorchRunner.models`."""

    name: str
    dtype: str
    patch: Patch | None = None
    networks: tuple[str, ...] = BOTH

    def apply(self, models: dict[str, nn.Module]) -> None:
        if self.patch is not None:
            for name in self.networks:
                self.patch(models[name])


VARIANTS = (
    Variant("float32", "float32"),
    Variant("bfloat16", "bfloat16"),
    Variant("bfloat16, norm variance in bfloat16", "bfloat16", partial(patch_norms, variance_in_dtype)),
    Variant(
        "bfloat16, the same in the code predictor alone",
        "bfloat16",
        partial(patch_norms, variance_in_dtype),
        ("code predictor",),
    ),
    Variant("bfloat16, norm casts folded", "bfloat16", partial(patch_norms, cast_folded)),
    Variant("bfloat16, rope's cos and sin in bfloat16", "bfloat16", partial(patch_rope, rounded_rope)),
    Variant("bfloat16, rope's angles in bfloat16", "bfloat16", partial(patch_rope, coarse_rope)),
    Variant("bfloat16, fp8 weights", "bfloat16", partial(patch_matmuls, False)),
    Variant("bfloat16, fp8 weights and activations", "bfloat16", partial(patch_matmuls, True)),
    Variant("float32, products of int8", "float32", patch_int8),
)
