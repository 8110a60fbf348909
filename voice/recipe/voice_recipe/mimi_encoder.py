"""The checkpoint's audio encoder (Mimi layout): audio -> the latents that the quantisers read.

CustomVoice never encodes audio. The encoder exists because the layout has one.
"""

# Parts that exist only for the published parameter names hang on bare modules, whose attributes have no types.
# mypy: disable-error-code="union-attr,operator,index,arg-type,attr-defined"

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from voice_recipe.config import CODEC
from voice_recipe.layers import LayerScale, rope_tables, rotate


@dataclass(frozen=True)
class EncoderSizes:
    """Keys of encoder_config. Small, because nothing trains it: 0.14 MB.

    A hidden size equal to the codebooks' would leave out the projections before them.
    """

    filters: int = 4
    hidden_size: int = 32
    intermediate_size: int = 64
    num_heads: int = 1
    head_dim: int = 32
    num_layers: int = 1
    sliding_window: int = 250
    ratios: tuple[int, ...] = (4, 5, 6, 8)  # in the order of the layers; the config lists them reversed


ENCODER = EncoderSizes()


class EncoderConv(nn.Module):
    """Causal convolution over [B, C, T]; zeros on the right fill the last stride."""

    def __init__(
        self, c_in: int, c_out: int, kernel: int, stride: int = 1, bias: bool = True, pad: str = "constant"
    ) -> None:
        super().__init__()
        self.conv = nn.Conv1d(c_in, c_out, kernel, stride, bias=bias)
        self.left, self.stride, self.pad = kernel - stride, stride, pad

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.conv(F.pad(x, (self.left, -x.shape[-1] % self.stride), mode=self.pad))
        return out


class EncoderResidual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        half = channels // 2
        self.block = nn.ModuleList([nn.ELU(), EncoderConv(channels, half, 3), nn.ELU(), EncoderConv(half, channels, 1)])

    def forward(self, x: Tensor) -> Tensor:
        h = x
        for part in self.block:
            h = part(h)
        return x + h


class EncoderAttention(nn.Module):
    def __init__(self, sizes: EncoderSizes) -> None:
        super().__init__()
        self.heads, self.head_dim, width = sizes.num_heads, sizes.head_dim, sizes.hidden_size
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(self, name, nn.Linear(width, width, bias=False))

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
        batch, times, _ = x.shape
        q, k, v = (
            part(x).view(batch, times, self.heads, self.head_dim).transpose(1, 2)
            for part in (self.q_proj, self.k_proj, self.v_proj)
        )
        mixed = F.scaled_dot_product_attention(rotate(q, *rope), rotate(k, *rope), v, is_causal=True)
        out: Tensor = self.o_proj(mixed.transpose(1, 2).reshape(batch, times, -1))
        return out


class EncoderMLP(nn.Module):
    def __init__(self, sizes: EncoderSizes) -> None:
        super().__init__()
        self.fc1 = nn.Linear(sizes.hidden_size, sizes.intermediate_size, bias=False)
        self.fc2 = nn.Linear(sizes.intermediate_size, sizes.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc2(F.gelu(self.fc1(x)))
        return out


class EncoderLayer(nn.Module):
    def __init__(self, sizes: EncoderSizes) -> None:
        super().__init__()
        width = sizes.hidden_size
        self.self_attn, self.mlp = EncoderAttention(sizes), EncoderMLP(sizes)
        self.input_layernorm, self.post_attention_layernorm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.self_attn_layer_scale, self.mlp_layer_scale = LayerScale(width), LayerScale(width)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
        x = x + self.self_attn_layer_scale(self.self_attn(self.input_layernorm(x), rope))
        out: Tensor = x + self.mlp_layer_scale(self.mlp(self.post_attention_layernorm(x)))
        return out


class MimiEncoder(nn.Module):
    """Audio [B, 1920 N] -> semantic and acoustic latents [B, N, codebook_dim]."""

    def __init__(self, sizes: EncoderSizes) -> None:
        super().__init__()
        self.sizes, width = sizes, sizes.filters
        self.encoder = nn.Module()
        layers: list[nn.Module] = [EncoderConv(1, width, 7)]
        for ratio in sizes.ratios:
            layers += [EncoderResidual(width), nn.ELU(), EncoderConv(width, 2 * width, 2 * ratio, ratio)]
            width *= 2
        self.encoder.layers = nn.ModuleList([*layers, nn.ELU(), EncoderConv(width, sizes.hidden_size, 3)])
        self.encoder_transformer = nn.Module()
        self.encoder_transformer.layers = nn.ModuleList([EncoderLayer(sizes) for _ in range(sizes.num_layers)])
        self.downsample = EncoderConv(sizes.hidden_size, sizes.hidden_size, 4, 2, bias=False, pad="replicate")
        self.quantizer = nn.Module()
        for name in ("semantic", "acoustic"):
            side = nn.Module()
            side.input_proj = nn.Conv1d(sizes.hidden_size, CODEC.codebook_dim, 1, bias=False)
            side.output_proj = nn.Conv1d(CODEC.codebook_dim, sizes.hidden_size, 1, bias=False)  # unused when encoding
            setattr(self.quantizer, f"{name}_residual_vector_quantizer", side)

    def forward(self, audio: Tensor) -> tuple[Tensor, Tensor]:
        x = audio[:, None]
        for layer in self.encoder.layers:
            x = layer(x)
        x = x.transpose(1, 2)
        rope = rope_tables(torch.arange(x.shape[1], device=x.device), self.sizes.head_dim, 10_000.0)
        for layer in self.encoder_transformer.layers:
            x = layer(x, rope)
        x = self.downsample(x.transpose(1, 2))
        semantic = self.quantizer.semantic_residual_vector_quantizer.input_proj(x)
        acoustic = self.quantizer.acoustic_residual_vector_quantizer.input_proj(x)
        return semantic.transpose(1, 2), acoustic.transpose(1, 2)
