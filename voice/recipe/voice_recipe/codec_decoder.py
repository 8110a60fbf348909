"""The codec's decoder: codebook vectors at 12.5 Hz -> 24 kHz audio, strictly causal.

All tensors are [B, T, C], and every convolution is a matrix product over shifted copies, which compiles to few and wide
kernels. A channels-first 1-D convolution of 32..256 channels would leave a GPU mostly idle.
"""

# Parts that exist only for the published parameter names hang on bare modules, whose attributes have no types.
# mypy: disable-error-code="union-attr,operator,index,arg-type,attr-defined,no-any-return"

from __future__ import annotations

import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from voice_recipe.config import CodecSizes
from voice_recipe.layers import GatedMLP, LayerScale, RMSNorm, rope_tables, rotate


class CausalConv(nn.Module):
    """Dilated convolution that only looks back."""

    def __init__(self, c_in: int, c_out: int, kernel: int, dilation: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv1d(c_in, c_out, kernel, dilation=dilation)
        self.kernel, self.dilation = kernel, dilation

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, C_in] -> [B, T, C_out]."""
        weight, bias, times = self.conv.weight, self.conv.bias, x.shape[1]
        if self.kernel == 1:
            return F.linear(x, weight[..., 0], bias)
        x = F.pad(x, (0, 0, (self.kernel - 1) * self.dilation, 0))
        if weight.shape[0] == 1:  # one output channel: multiply first, shift after
            parts = F.linear(x, weight[0].t())  # [B, T + pad, K]
            taps = [parts[:, k * self.dilation : k * self.dilation + times, k] for k in range(self.kernel)]
            return torch.stack(taps).sum(0)[..., None] + bias
        taps = [x[:, k * self.dilation : k * self.dilation + times] for k in range(self.kernel)]
        return F.linear(torch.cat(taps, -1), weight.permute(0, 2, 1).flatten(1), bias)


class CausalUpsample(nn.Module):
    """Transposed convolution with stride r and kernel r or 2 r. Output past the last frame is cut."""

    def __init__(self, c_in: int, c_out: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose1d(c_in, c_out, kernel, stride=stride)
        self.stride, self.overlap = stride, kernel // stride

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, C_in] -> [B, T * stride, C_out]."""
        weight, bias = self.conv.weight, self.conv.bias  # [C_in, C_out, K]
        c_in, c_out, _ = weight.shape
        if self.overlap == 2:
            x = torch.cat([x, F.pad(x, (0, 0, 1, 0))[:, :-1]], -1)
            weight = torch.cat([weight[..., : self.stride], weight[..., self.stride :]], 0)
        matrix = weight.permute(2, 1, 0).reshape(self.stride * c_out, self.overlap * c_in)
        out = F.linear(x, matrix).view(x.shape[0], x.shape[1] * self.stride, c_out)
        return out + bias.to(out.dtype)


class DepthwiseConv(nn.Module):
    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(channels, channels, kernel, groups=channels)
        self.kernel = kernel

    def forward(self, x: Tensor) -> Tensor:
        padded = F.pad(x, (0, 0, self.kernel - 1, 0))
        out = self.conv.bias.to(x.dtype)
        for k in range(self.kernel):
            out = out + padded[:, k : k + x.shape[1]] * self.conv.weight[:, 0, k].to(x.dtype)
        return out


class ConvNeXtBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.dwconv, self.norm = DepthwiseConv(channels, 7), nn.LayerNorm(channels, eps=1e-6)
        self.pwconv1, self.pwconv2 = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)
        self.gamma = nn.Parameter(torch.full((channels,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.gamma * self.pwconv2(F.gelu(self.pwconv1(self.norm(self.dwconv(x)))))
        return out


def sine_squared(x: Tensor) -> Tensor:
    """sin(x)^2. Compiled code uses a polynomial on [-pi/2, pi/2] with an error below 1e-5.

    A GPU's exact sine spends so much time on reducing its argument that it would dominate the longest tensors.
    """
    if not torch.compiler.is_compiling():
        return torch.sin(x).square()
    r = x - math.pi * torch.round(x * (1 / math.pi))
    q = r * r
    s = r * (1 + q * (-1 / 6 + q * (1 / 120 + q * (-1 / 5040 + q / 362880))))
    return s * s


class SnakeBeta(nn.Module):
    """x + sin^2(x e^alpha) / e^beta."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha, self.beta = nn.Parameter(torch.zeros(channels)), nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        out = wide + sine_squared(wide * self.alpha.exp()) / (self.beta.exp() + 1e-9)
        return out.to(x.dtype)


class ResidualUnit(nn.Module):
    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.act1, self.conv1 = SnakeBeta(channels), CausalConv(channels, channels, 7, dilation)
        self.act2, self.conv2 = SnakeBeta(channels), CausalConv(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.conv2(self.act2(self.conv1(self.act1(x))))
        return out


class UpsampleBlock(nn.Module):
    def __init__(self, c_in: int, c_out: int, rate: int) -> None:
        super().__init__()
        units = [ResidualUnit(c_out, dilation) for dilation in (1, 3, 9)]
        self.block = nn.ModuleList([SnakeBeta(c_in), CausalUpsample(c_in, c_out, 2 * rate, rate), *units])

    def forward(self, x: Tensor) -> Tensor:
        for part in self.block:
            x = part(x)
        return x


class WindowAttention(nn.Module):
    def __init__(self, sizes: CodecSizes) -> None:
        super().__init__()
        inner = sizes.num_heads * sizes.head_dim
        self.heads, self.head_dim = sizes.num_heads, sizes.head_dim
        self.q_proj = nn.Linear(sizes.hidden_size, inner, bias=False)
        self.k_proj = nn.Linear(sizes.hidden_size, inner, bias=False)
        self.v_proj = nn.Linear(sizes.hidden_size, inner, bias=False)
        self.o_proj = nn.Linear(inner, sizes.hidden_size, bias=False)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        batch, times, _ = x.shape
        q, k, v = (
            part(x).view(batch, times, self.heads, self.head_dim).transpose(1, 2)
            for part in (self.q_proj, self.k_proj, self.v_proj)
        )
        mixed = F.scaled_dot_product_attention(rotate(q, *rope), rotate(k, *rope), v, attn_mask=mask)
        out: Tensor = self.o_proj(mixed.transpose(1, 2).reshape(batch, times, -1))
        return out


class TransformerLayer(nn.Module):
    def __init__(self, sizes: CodecSizes) -> None:
        super().__init__()
        width = sizes.hidden_size
        self.self_attn, self.mlp = WindowAttention(sizes), GatedMLP(width, sizes.intermediate_size)
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(width, 1e-5), RMSNorm(width, 1e-5)
        self.self_attn_layer_scale, self.mlp_layer_scale = LayerScale(width), LayerScale(width)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        x = x + self.self_attn_layer_scale(self.self_attn(self.input_layernorm(x), rope, mask))
        out: Tensor = x + self.mlp_layer_scale(self.mlp(self.post_attention_layernorm(x)))
        return out


class WindowTransformer(nn.Module):
    """Causal transformer whose queries see `sliding_window` frames, themselves included."""

    def __init__(self, sizes: CodecSizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.input_proj = nn.Linear(sizes.latent_dim, sizes.hidden_size)
        self.layers = nn.ModuleList([TransformerLayer(sizes) for _ in range(sizes.num_layers)])
        self.norm = RMSNorm(sizes.hidden_size, 1e-5)
        self.output_proj = nn.Linear(sizes.hidden_size, sizes.latent_dim)

    def forward(self, x: Tensor) -> Tensor:
        at = torch.arange(x.shape[1], device=x.device)
        back = at[:, None] - at[None]
        mask = (back >= 0) & (back < self.sizes.sliding_window)
        rope = rope_tables(at, self.sizes.head_dim, 10_000.0)
        x = self.input_proj(x)
        for layer in self.layers:
            x = layer(x, rope, mask)
        out: Tensor = self.output_proj(self.norm(x))
        return out


class ResidualCodebooks(nn.Module):
    """Frozen codebooks and the trained projection behind their sum ("rvq_first" or "rvq_rest" of the checkpoint)."""

    codebooks: Tensor

    def __init__(self, books: int, sizes: CodecSizes) -> None:
        super().__init__()
        self.register_buffer("codebooks", torch.zeros(books, sizes.codebook_size, sizes.codebook_dim))
        self.output_proj = nn.Conv1d(sizes.codebook_dim, sizes.quantizer_dim, 1, bias=False)

    def forward(self, codes: Tensor) -> Tensor:
        """codes [B, T, books] -> [B, T, quantizer_dim]."""
        vectors = sum(F.embedding(codes[..., i], book) for i, book in enumerate(self.codebooks))
        return F.linear(vectors, self.output_proj.weight[..., 0])


class CodecDecoder(nn.Module):
    def __init__(self, sizes: CodecSizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.rvq_first = ResidualCodebooks(1, sizes)
        self.rvq_rest = ResidualCodebooks(sizes.codebooks - 1, sizes)
        self.pre_conv = CausalConv(sizes.quantizer_dim, sizes.latent_dim, 3)
        self.pre_transformer = WindowTransformer(sizes)
        latent, width = sizes.latent_dim, sizes.decoder_dim
        self.upsample = nn.ModuleList(
            nn.ModuleList([CausalUpsample(latent, latent, ratio, ratio), ConvNeXtBlock(latent)])
            for ratio in sizes.upsampling_ratios
        )
        blocks: list[nn.Module] = [CausalConv(latent, width, 7)]
        for i, rate in enumerate(sizes.upsample_rates):
            blocks.append(UpsampleBlock(width >> i, width >> (i + 1), rate))
        last = width >> len(sizes.upsample_rates)
        self.decoder = nn.ModuleList([*blocks, SnakeBeta(last), CausalConv(last, 1, 7)])

    def forward(self, codes: Tensor, keep_frames: int | None = None) -> Tensor:
        """codes [B, T, 8] -> audio [B, 1920 T]. With keep_frames, only that many last frames pass the convolutions."""
        x = self.rvq_first(codes[..., :1]) + self.rvq_rest(codes[..., 1:])
        x = self.pre_transformer(self.pre_conv(x))
        if keep_frames is not None:
            x = x[:, -keep_frames:]
        for stage in self.upsample:
            for part in stage:
                x = part(x)
        for part in self.decoder:
            x = part(x)
        return x[..., 0]
