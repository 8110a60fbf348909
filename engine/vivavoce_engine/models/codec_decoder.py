"""Code2Wav: codec frames → 24 kHz audio, frame by frame, exactly as if the whole sequence were decoded at once.

Every convolution and the windowed attention are causal, so a row's state is the last inputs of each of them. Rows are
decoded in any batch and in pieces of any length. Reference: qwen-tts 0.1.1, core/tokenizer_12hz/
modeling_qwen3_tts_tokenizer_v2.py, whose `chunked_decode` recomputes 25 frames of context instead.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vivavoce_engine.checkpoint import CodecDecoderConfig
from vivavoce_engine.models.layers import GatedMLP, RMSNorm, Rope, rotate

UNIT_DILATIONS = (1, 3, 9)
KERNEL_HISTORY = 6
"""Inputs that a kernel of 7, at dilation 1, sees before the current one."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A module's place in a row's state: its last `keep` inputs of `channels` values."""

    index: int
    offset: int
    channels: int
    keep: int


class StateLayout:
    """Collects the slots while the decoder is built; `size` values a row in the end."""

    def __init__(self) -> None:
        self.slots: list[Slot] = []
        self.size = 0

    def add(self, channels: int, keep: int) -> Slot:
        slot = Slot(len(self.slots), self.size, channels, keep)
        self.slots.append(slot)
        self.size += channels * keep
        return slot


class StreamState:
    """The state of a batch of rows during one call: gathered before, scattered after.

    flat [B, layout.size]; `position` [B] counts the frames that each row has decoded before.
    """

    def __init__(self, layout: StateLayout, flat: Tensor, position: Tensor) -> None:
        self.position = position
        self._flat = flat
        self._next: list[Tensor | None] = [None] * len(layout.slots)

    def join(self, slot: Slot, x: Tensor) -> Tensor:
        """Puts the slot's history before x [B, channels, T] → [B, channels, keep + T], and keeps the new end."""
        if slot.keep == 0:
            return x
        end = slot.offset + slot.channels * slot.keep
        history = self._flat[:, slot.offset : end].view(-1, slot.channels, slot.keep)
        joined = torch.cat([history, x], dim=-1)
        self._next[slot.index] = joined[..., -slot.keep :].flatten(1)
        return joined

    def flat(self) -> Tensor:
        """The state after the call, [B, layout.size]."""
        return torch.cat([part for part in self._next if part is not None], dim=1)


class CausalConv(nn.Module):
    def __init__(
        self, layout: StateLayout, shape: tuple[int, int], kernel_size: int, dilation: int = 1, groups: int = 1
    ) -> None:
        super().__init__()
        self.conv = nn.Conv1d(*shape, kernel_size, dilation=dilation, groups=groups)
        self.slot = layout.add(shape[0], (kernel_size - 1) * dilation)

    def forward(self, x: Tensor, state: StreamState) -> Tensor:
        out: Tensor = self.conv(state.join(self.slot, x))
        return out


class FrameConv(nn.Module):
    """A causal convolution near the frame rate, as one matrix product: for a few time steps a convolution kernel
    spends its time rearranging the weights."""

    def __init__(self, layout: StateLayout, shape: tuple[int, int], kernel_size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(shape[0] * kernel_size, shape[1])
        self.slot = layout.add(shape[0], kernel_size - 1)
        self.kernel_size = kernel_size

    def forward(self, x: Tensor, state: StreamState) -> Tensor:
        windows = state.join(self.slot, x).unfold(2, self.kernel_size, 1).transpose(1, 2).flatten(2)
        out: Tensor = self.linear(windows)
        return out.transpose(1, 2)


class CausalTransposedConv(nn.Module):
    """Transposed convolution that upsamples by `stride`; `taps` = kernel_size / stride inputs make an output sample,
    the latest one included. As one matrix product (see FrameConv): input windows → `stride` samples each."""

    def __init__(self, layout: StateLayout, shape: tuple[int, int], kernel_size: int, stride: int) -> None:
        super().__init__()
        assert kernel_size % stride == 0
        self.taps = kernel_size // stride
        self.channels = shape[1]
        self.linear = nn.Linear(shape[0] * self.taps, stride * shape[1])
        self.slot = layout.add(shape[0], self.taps - 1)

    def forward(self, x: Tensor, state: StreamState) -> Tensor:
        windows = state.join(self.slot, x).unfold(2, self.taps, 1).transpose(1, 2).flatten(2)
        out: Tensor = self.linear(windows)
        return out.view(x.shape[0], -1, self.channels).transpose(1, 2)


class SnakeBeta(nn.Module):
    """x + sin²(a·x) / b per channel (arXiv 2006.08195, with a magnitude of its own as in BigVGAN).

    The checkpoint holds log a and log b; they are turned into a and 1/b once, in float32, when it is loaded.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.frequency = nn.Parameter(torch.ones(channels, 1))
        self.magnitude = nn.Parameter(torch.ones(channels, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addcmul(x, self.magnitude, torch.sin(x * self.frequency).square())


class ResidualUnit(nn.Module):
    def __init__(self, layout: StateLayout, channels: int, dilation: int) -> None:
        super().__init__()
        self.act1 = SnakeBeta(channels)
        self.conv1 = CausalConv(layout, (channels, channels), 7, dilation)
        self.act2 = SnakeBeta(channels)
        self.conv2 = CausalConv(layout, (channels, channels), 1)

    def forward(self, x: Tensor, state: StreamState) -> Tensor:
        hidden = self.conv1(self.act1(x), state)
        out: Tensor = x + self.conv2(self.act2(hidden), state)
        return out


class UpsamplingBlock(nn.Module):
    def __init__(self, layout: StateLayout, shape: tuple[int, int], rate: int) -> None:
        super().__init__()
        self.act = SnakeBeta(shape[0])
        self.upsample = CausalTransposedConv(layout, shape, 2 * rate, rate)
        self.units = nn.ModuleList(ResidualUnit(layout, shape[1], dilation) for dilation in UNIT_DILATIONS)

    def forward(self, x: Tensor, state: StreamState) -> Tensor:
        x = self.upsample(self.act(x), state)
        for unit in self.units:
            x = unit(x, state)
        return x


class ConvNeXtBlock(nn.Module):
    """Depthwise causal convolution and a pointwise MLP (arXiv 2201.03545)."""

    def __init__(self, layout: StateLayout, channels: int) -> None:
        super().__init__()
        self.dwconv = CausalConv(layout, (channels, channels), 7, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.pwconv1 = nn.Linear(channels, 4 * channels)
        self.pwconv2 = nn.Linear(4 * channels, channels)
        self.gamma = nn.Parameter(torch.ones(channels))

    def forward(self, x: Tensor, state: StreamState) -> Tensor:
        hidden = self.norm(self.dwconv(x, state).transpose(1, 2))
        hidden = self.gamma * self.pwconv2(F.gelu(self.pwconv1(hidden)))
        return torch.add(x, hidden.transpose(1, 2))


class LatentUpsampling(nn.Module):
    def __init__(self, layout: StateLayout, channels: int, ratio: int) -> None:
        super().__init__()
        self.conv = CausalTransposedConv(layout, (channels, channels), ratio, ratio)
        self.block = ConvNeXtBlock(layout, channels)

    def forward(self, x: Tensor, state: StreamState) -> Tensor:
        out: Tensor = self.block(self.conv(x, state), state)
        return out


class WindowAttention(nn.Module):
    """Each frame sees itself and the `sliding_window` - 1 frames before it."""

    def __init__(self, layout: StateLayout, config: CodecDecoderConfig) -> None:
        super().__init__()
        size, self.heads = config.transformer.hidden_size, config.transformer.num_attention_heads
        self.head_dim = config.transformer.head_dim
        width = self.heads * self.head_dim
        self.qkv_proj = nn.Linear(size, 3 * width, bias=False)
        self.o_proj = nn.Linear(width, size, bias=False)
        self.key_slot = layout.add(width, config.sliding_window - 1)
        self.value_slot = layout.add(width, config.sliding_window - 1)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, visible: Tensor, state: StreamState) -> Tensor:
        batch, steps, _ = x.shape
        qkv = self.qkv_proj(x).view(batch, steps, 3 * self.heads, self.head_dim)
        q, k = rotate(qkv[:, :, : 2 * self.heads], cos, sin).chunk(2, dim=2)
        v = qkv[:, :, 2 * self.heads :]
        keys, values = (
            state.join(slot, new.flatten(2).transpose(1, 2)).view(batch, self.heads, self.head_dim, -1).transpose(2, 3)
            for slot, new in ((self.key_slot, k), (self.value_slot, v))
        )
        out = F.scaled_dot_product_attention(q.transpose(1, 2), keys, values, attn_mask=visible)
        result: Tensor = self.o_proj(out.transpose(1, 2).flatten(2))
        return result


class WindowBlock(nn.Module):
    """Pre-norm block whose residual branches are scaled by channel (arXiv 2103.17239)."""

    def __init__(self, layout: StateLayout, config: CodecDecoderConfig) -> None:
        super().__init__()
        shape = config.transformer
        self.input_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.self_attn = WindowAttention(layout, config)
        self.self_attn_layer_scale = nn.Parameter(torch.ones(shape.hidden_size))
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.mlp = GatedMLP(shape.hidden_size, shape.intermediate_size)
        self.mlp_layer_scale = nn.Parameter(torch.ones(shape.hidden_size))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, visible: Tensor, state: StreamState) -> Tensor:
        x = x + self.self_attn_layer_scale * self.self_attn(self.input_layernorm(x), cos, sin, visible, state)
        out: Tensor = x + self.mlp_layer_scale * self.mlp(self.post_attention_layernorm(x))
        return out


class WindowTransformer(nn.Module):
    def __init__(self, layout: StateLayout, config: CodecDecoderConfig) -> None:
        super().__init__()
        shape = config.transformer
        self.history = config.sliding_window - 1
        self.input_proj = nn.Linear(config.latent_dim, shape.hidden_size)
        self.rope = Rope(shape.rope)
        self.layers = nn.ModuleList(WindowBlock(layout, config) for _ in range(shape.num_hidden_layers))
        self.norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.output_proj = nn.Linear(shape.hidden_size, config.latent_dim)

    def forward(self, x: Tensor, state: StreamState) -> Tensor:
        """x [B, T, latent_dim] → [B, T, latent_dim]."""
        steps = torch.arange(x.shape[1], device=x.device)
        cos, sin = self.rope(state.position[:, None] + steps)
        # Key j of the joined sequence is frame position - history + j: in the query's window, and not before frame 0.
        keys = torch.arange(self.history + x.shape[1], device=x.device)
        in_window = (keys >= steps[:, None]) & (keys <= steps[:, None] + self.history)
        exists = keys >= self.history - state.position[:, None]
        visible = (in_window & exists[:, None])[:, None]
        x = self.input_proj(x)
        for layer in self.layers:
            x = layer(x, cos, sin, visible, state)
        out: Tensor = self.output_proj(self.norm(x))
        return out


class Dequantizer(nn.Module):
    """Split RVQ: semantic and acoustic codebooks are summed apart, projected, and added (as in Mimi, arXiv 2410.00037).

    A codebook vector is embedding_sum / cluster_usage, computed when the checkpoint is loaded.
    """

    def __init__(self, config: CodecDecoderConfig) -> None:
        super().__init__()
        width = config.codebook_dim // 2
        self.semantic = config.num_semantic_quantizers
        self.codebooks = nn.ParameterList(
            nn.Parameter(torch.zeros(config.codebook_size, width)) for _ in range(config.num_quantizers)
        )
        self.semantic_proj = nn.Linear(width, config.codebook_dim, bias=False)
        self.acoustic_proj = nn.Linear(width, config.codebook_dim, bias=False)

    def forward(self, codes: Tensor) -> Tensor:
        """codes [B, T, groups], at most num_quantizers of them → [B, T, codebook_dim]."""
        vectors = [F.embedding(codes[..., group], self.codebooks[group]) for group in range(codes.shape[-1])]
        semantic = torch.stack(vectors[: self.semantic]).sum(0)
        acoustic = torch.stack(vectors[self.semantic :]).sum(0)
        out: Tensor = self.semantic_proj(semantic) + self.acoustic_proj(acoustic)
        return out


class CodecDecoder(nn.Module):
    """The whole decoder; `layout` tells how large a row's state is."""

    def __init__(self, config: CodecDecoderConfig) -> None:
        super().__init__()
        self.layout = layout = StateLayout()
        latent = config.latent_dim
        self.quantizer = Dequantizer(config)
        self.pre_conv = FrameConv(layout, (config.codebook_dim, latent), 3)
        self.pre_transformer = WindowTransformer(layout, config)
        self.upsample = nn.ModuleList(LatentUpsampling(layout, latent, ratio) for ratio in config.upsampling_ratios)
        widths = [config.decoder_dim >> stage for stage in range(len(config.upsample_rates) + 1)]
        self.head = FrameConv(layout, (latent, widths[0]), 7)
        self.blocks = nn.ModuleList(
            UpsamplingBlock(layout, (widths[stage], widths[stage + 1]), rate)
            for stage, rate in enumerate(config.upsample_rates)
        )
        self.final_act = SnakeBeta(widths[-1])
        self.final_conv = CausalConv(layout, (widths[-1], 1), 7)
        self.memory_frames = memory_frames(config)

    def forward(self, codes: Tensor, state: StreamState) -> Tensor:
        """codes [B, T, groups] → audio [B, T * samples_per_frame] in [-1, 1]; moves `state` on by T frames."""
        return self._waveform(self._latents(codes, state), state)

    def prime(self, codes: Tensor, state: StreamState) -> None:
        """Moves fresh rows on by codes [B, T, groups] without their audio: the convolutions that make it remember
        the last `memory_frames` alone, so no more of them are computed."""
        self._waveform(self._latents(codes, state)[..., -self.memory_frames :], state)

    def _latents(self, codes: Tensor, state: StreamState) -> Tensor:
        """codes [B, T, groups] → [B, latent_dim, T]."""
        x = self.pre_conv(self.quantizer(codes).transpose(1, 2), state)
        out: Tensor = self.pre_transformer(x.transpose(1, 2), state).transpose(1, 2)
        return out

    def _waveform(self, x: Tensor, state: StreamState) -> Tensor:
        """x [B, latent_dim, T] → audio [B, T * samples_per_frame]."""
        for stage in self.upsample:
            x = stage(x, state)
        x = self.head(x, state)
        for block in self.blocks:
            x = block(x, state)
        out: Tensor = self.final_conv(self.final_act(x), state)
        return out.squeeze(1).clamp(-1, 1)


def memory_frames(config: CodecDecoderConfig) -> int:
    """How many frames before it the convolutions after the transformer need for a sample: the sum of the inputs that
    each of them keeps, at its rate."""
    rate, frames = 1, 0.0  # of samples a frame
    for ratio in config.upsampling_ratios:
        rate *= ratio
        frames += KERNEL_HISTORY / rate
    frames += KERNEL_HISTORY / rate
    for ratio in config.upsample_rates:
        frames += 1 / rate
        rate *= ratio
        frames += KERNEL_HISTORY * sum(UNIT_DILATIONS) / rate
    return math.ceil(frames + KERNEL_HISTORY / rate)


class CodecRows:
    """Decoder state of every row, in one tensor [rows, layout.size]."""

    def __init__(self, decoder: CodecDecoder, rows: int, like: Tensor) -> None:
        self._decoder = decoder
        self._flat = torch.zeros(rows, decoder.layout.size, dtype=like.dtype, device=like.device)
        self._position = torch.zeros(rows, dtype=torch.int64, device=like.device)

    def reset(self, rows: Tensor) -> None:
        """Makes `rows` fresh for other utterances."""
        self._flat[rows] = 0
        self._position[rows] = 0

    def prime(self, row: int, codes: Tensor) -> None:
        """Makes a fresh row go on after `codes` [T, groups], whose audio nobody hears."""
        rows = slice(row, row + 1)
        state = StreamState(self._decoder.layout, self._flat[rows], self._position[rows])
        self._decoder.prime(codes[None], state)
        self._flat[rows] = state.flat()
        self._position[rows] = len(codes)

    def decode(self, rows: Tensor, codes: Tensor, at_once: int | None = None) -> Tensor:
        """codes [B, T, groups] of `rows` [B] → audio [B, T * samples_per_frame]; other rows are untouched.

        `at_once` frames go through the decoder in a call, all of them by default. The result is the same but for the
        last bits of sums, which depend on the size of a call.
        """
        flat, position = self._flat[rows], self._position[rows]
        audio: list[Tensor] = []
        for piece in torch.split(codes, at_once or codes.shape[1], dim=1):
            state = StreamState(self._decoder.layout, flat, position)
            audio.append(self._decoder(piece, state))
            flat, position = state.flat(), position + piece.shape[1]
        self._flat[rows] = flat
        self._position[rows] = position
        return torch.cat(audio, dim=1)
