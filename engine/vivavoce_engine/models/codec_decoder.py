"""Code2Wav: codec frames → 24 kHz audio, frame by frame, exactly as if the whole sequence were decoded at once.

Every convolution and the windowed attention are causal, so a row's state is the last inputs of each of them. Rows are
decoded in any batch, and in pieces of any length. On a CPU the samples are the same bit for bit, because every sum has
the shape that it has for one frame of one row. Reference: qwen-tts 0.1.1, core/tokenizer_12hz/
modeling_qwen3_tts_tokenizer_v2.py. Its `chunked_decode` recomputes 25 frames of context instead.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vivavoce_engine.checkpoint.networks import CodecDecoderConfig
from vivavoce_engine.models.layers import GatedMLP, RMSNorm, Rope, RowLinear, attend_each, rotate

UNIT_DILATIONS = (1, 3, 9)
KERNEL_HISTORY = 6
"""Inputs before the current one that a kernel of 7 sees, at dilation 1."""


class SnakeBeta(nn.Module):
    """x + sin²(a·x) / b for each channel (arXiv 2006.08195, with a separate magnitude as in BigVGAN).

    The checkpoint holds log a and log b. Loading turns them into a and 1/b, in float32.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.frequency = nn.Parameter(torch.ones(channels))
        self.magnitude = nn.Parameter(torch.ones(channels))

    def forward(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        sine = (x * self.frequency).sin_()
        return torch.addcmul(x, self.magnitude, sine.square_(), out=out)


@dataclass(frozen=True, slots=True)
class Slot:
    """A module's place in a row's state: its last `keep` inputs of `channels` values."""

    offset: int
    channels: int
    keep: int


class StateLayout:
    """Collects the slots while the decoder is built. A row's state then has `size` values."""

    def __init__(self) -> None:
        self.size = 0

    def add(self, channels: int, keep: int) -> Slot:
        slot = Slot(self.size, channels, keep)
        self.size += channels * keep
        return slot


class StreamState:
    """The state of a batch of rows during one call: gathered before it, scattered after it.

    flat [B, layout.size]; `position` [B] int64 counts the frames that each row has decoded before. `moved` is the state
    after the call, complete once every module has joined. The call's steps are computed as `items` products of one
    shape: one for each frame of each row, or fewer.
    """

    def __init__(self, flat: Tensor, position: Tensor, items: int) -> None:
        assert position.shape == flat.shape[:1]
        assert items % len(flat) == 0
        self.position = position
        self.items = items
        self.moved = torch.empty_like(flat)
        self._flat = flat

    def join(self, slot: Slot, x: Tensor, snake: SnakeBeta | None = None) -> Tensor:
        """Puts the slot's history in front of x [B, T, channels], or of snake(x), and keeps the new end.

        Returns [B, keep + T, channels].
        """
        if slot.keep == 0:
            return snake(x) if snake else x
        joined = x.new_empty(x.shape[0], slot.keep + x.shape[1], slot.channels)
        joined[:, : slot.keep] = self._part(self._flat, slot)
        new = joined[:, slot.keep :]
        if snake:
            snake(x, out=new)
        else:
            new.copy_(x)
        self._part(self.moved, slot).copy_(joined[:, -slot.keep :])
        return joined

    @staticmethod
    def _part(flat: Tensor, slot: Slot) -> Tensor:
        end = slot.offset + slot.keep * slot.channels
        return flat[:, slot.offset : end].view(-1, slot.keep, slot.channels)


class CausalConv(nn.Module):
    """A causal convolution as the sum of one matrix product for each tap. PyTorch's convolutions first rearrange
    weights or inputs, which takes longer than the products for a piece's few samples (LOG.md)."""

    def __init__(self, layout: StateLayout, shape: tuple[int, int], kernel_size: int, dilation: int = 1) -> None:
        super().__init__()
        inputs, outputs = shape
        self.weight = nn.Parameter(torch.zeros(kernel_size, inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.kernel_size = kernel_size
        self.dilation = dilation
        self.slot = layout.add(inputs, (kernel_size - 1) * dilation)

    def forward(
        self, x: Tensor, state: StreamState, snake: SnakeBeta | None = None, onto: Tensor | None = None
    ) -> Tensor:
        """x [B, T, inputs] → [B, T, outputs], added to `onto`; `snake` is applied to x first."""
        joined, (batch, steps, inputs) = state.join(self.slot, x, snake), x.shape
        weights = self.weight.unsqueeze(1).expand(-1, state.items, -1, -1).unbind()
        windows = [
            joined.narrow(1, tap * self.dilation, steps).reshape(state.items, -1, inputs)
            for tap in range(self.kernel_size)
        ]
        if onto is None:
            out = torch.baddbmm(self.bias, windows[0], weights[0])
        else:
            out = torch.add(onto, self.bias).view(state.items, -1, len(self.bias)).baddbmm_(windows[0], weights[0])
        for window, weight in zip(windows[1:], weights[1:], strict=True):
            out.baddbmm_(window, weight)
        return out.view(batch, steps, -1)


class CausalTransposedConv(nn.Module):
    """A transposed convolution that upsamples by `stride`.

    An output sample depends on `taps` = kernel_size / stride inputs, up to the latest one. So the layer is a
    convolution whose output holds `stride` samples.
    """

    def __init__(self, layout: StateLayout, shape: tuple[int, int], taps: int, stride: int) -> None:
        super().__init__()
        inputs, self.channels = shape
        self.stride = stride
        self.conv = CausalConv(layout, (inputs, stride * self.channels), taps)

    def forward(self, x: Tensor, state: StreamState, snake: SnakeBeta | None = None) -> Tensor:
        """x [B, T, inputs] → [B, T * stride, channels]."""
        out: Tensor = self.conv(x, state, snake)
        return out.view(len(x), -1, self.channels)


class DepthwiseConv(nn.Module):
    """A causal convolution of each channel separately."""

    def __init__(self, layout: StateLayout, channels: int, kernel_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(kernel_size, channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.kernel_size = kernel_size
        self.slot = layout.add(channels, kernel_size - 1)

    def forward(self, x: Tensor, state: StreamState) -> Tensor:
        joined = state.join(self.slot, x)
        windows = (joined.narrow(1, tap, x.shape[1]) for tap in range(self.kernel_size))
        out: Tensor = self.bias
        for window, weight in zip(windows, self.weight, strict=True):
            out = torch.addcmul(out, window, weight)
        return out


class MonoConv(nn.Module):
    """A causal convolution to one channel: one product for all taps, whose columns are added up."""

    def __init__(self, layout: StateLayout, channels: int, kernel_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(kernel_size, channels))
        self.bias = nn.Parameter(torch.zeros(1))
        self.kernel_size = kernel_size
        self.slot = layout.add(channels, kernel_size - 1)

    def forward(self, x: Tensor, state: StreamState, snake: SnakeBeta) -> Tensor:
        """x [B, T, channels] → [B, T]."""
        steps = x.numel() // x.shape[-1] // state.items
        windows = item_windows(state.join(self.slot, x, snake), state.items, steps)
        products = torch.bmm(windows, self.weight.t().expand(state.items, -1, -1))
        columns = [products[:, tap : tap + steps, tap] for tap in range(self.kernel_size)]
        return (in_turn(columns) + self.bias).view(len(x), -1)


def in_turn(parts: Sequence[Tensor]) -> Tensor:
    """The sum of equal shapes, in their order. PyTorch's own sum over them has an order that depends on the shape."""
    return reduce(torch.add, parts)


def item_windows(joined: Tensor, items: int, steps: int) -> Tensor:
    """joined [B, keep + T, channels], of which each of `items` has `steps` of the T and what stands before them →
    [items, keep + steps, channels]."""
    keep = joined.shape[1] - items // len(joined) * steps
    return joined.unfold(1, keep + steps, steps).transpose(2, 3).reshape(items, keep + steps, -1)


class ResidualUnit(nn.Module):
    """Two convolutions, each behind a snake, added to their input."""

    def __init__(self, layout: StateLayout, channels: int, dilation: int) -> None:
        super().__init__()
        self.act1 = SnakeBeta(channels)
        self.conv1 = CausalConv(layout, (channels, channels), 7, dilation)
        self.act2 = SnakeBeta(channels)
        self.conv2 = CausalConv(layout, (channels, channels), 1)

    def forward(self, x: Tensor, state: StreamState) -> Tensor:
        out: Tensor = self.conv2(self.conv1(x, state, self.act1), state, self.act2, onto=x)
        return out


class UpsamplingBlock(nn.Module):
    """A snake and a transposed convolution that upsamples by `rate`, then three residual units."""

    def __init__(self, layout: StateLayout, shape: tuple[int, int], rate: int) -> None:
        super().__init__()
        self.act = SnakeBeta(shape[0])
        self.upsample = CausalTransposedConv(layout, shape, 2, rate)
        self.units = nn.ModuleList(ResidualUnit(layout, shape[1], dilation) for dilation in UNIT_DILATIONS)

    def forward(self, x: Tensor, state: StreamState) -> Tensor:
        x = self.upsample(x, state, self.act)
        for unit in self.units:
            x = unit(x, state)
        return x


class ConvNeXtBlock(nn.Module):
    """Depthwise causal convolution and a pointwise MLP (arXiv 2201.03545)."""

    def __init__(self, layout: StateLayout, channels: int) -> None:
        super().__init__()
        self.dwconv = DepthwiseConv(layout, channels, 7)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.pwconv1 = RowLinear(channels, 4 * channels)
        self.pwconv2 = RowLinear(4 * channels, channels)
        self.gamma = nn.Parameter(torch.ones(channels))

    def forward(self, x: Tensor, state: StreamState) -> Tensor:
        hidden = self.norm(self.dwconv(x, state)).view(state.items, -1, x.shape[-1])
        hidden = self.pwconv2(F.gelu(self.pwconv1(hidden)))
        return torch.addcmul(x, self.gamma, hidden.view_as(x))


class LatentUpsampling(nn.Module):
    """A transposed convolution that upsamples by `ratio`, then a ConvNeXt block."""

    def __init__(self, layout: StateLayout, channels: int, ratio: int) -> None:
        super().__init__()
        self.conv = CausalTransposedConv(layout, (channels, channels), 1, ratio)
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
        self.qkv_proj = RowLinear(size, 3 * width, bias=False)
        self.o_proj = RowLinear(width, size, bias=False)
        self.key_slot = layout.add(width, config.sliding_window - 1)
        self.value_slot = layout.add(width, config.sliding_window - 1)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, exists: Tensor, state: StreamState) -> Tensor:
        """x [items, frames of each, hidden] → the same shape. exists [B * T, 1, 1, window]: the frames that there are
        in each frame's window."""
        (batch, steps), head_dim = cos.shape[:2], self.head_dim
        qkv = self.qkv_proj(x).view(batch, steps, 3 * self.heads, self.head_dim)
        q, k = rotate(qkv[:, :, : 2 * self.heads], cos, sin).chunk(2, dim=2)
        v = qkv[:, :, 2 * self.heads :]
        # A frame attends to its own window alone, so that its sums have one length and one order in any piece.
        keys, values = (
            item_windows(state.join(slot, new.flatten(2)), batch * steps, 1).view(
                batch * steps, -1, self.heads, head_dim
            )
            for slot, new in ((self.key_slot, k), (self.value_slot, v))
        )
        q = q.reshape(batch * steps, self.heads, 1, head_dim)
        out = attend_each(q, keys.transpose(1, 2), values.transpose(1, 2), exists)
        result: Tensor = self.o_proj(out.reshape(state.items, -1, self.heads * self.head_dim))
        return result


class WindowBlock(nn.Module):
    """A pre-norm block whose residual branches are scaled by channel (arXiv 2103.17239)."""

    def __init__(self, layout: StateLayout, config: CodecDecoderConfig) -> None:
        super().__init__()
        shape = config.transformer
        self.input_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.self_attn = WindowAttention(layout, config)
        self.self_attn_layer_scale = nn.Parameter(torch.ones(shape.hidden_size))
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.mlp = GatedMLP(shape.hidden_size, shape.intermediate_size)
        self.mlp_layer_scale = nn.Parameter(torch.ones(shape.hidden_size))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, exists: Tensor, state: StreamState) -> Tensor:
        x = x + self.self_attn_layer_scale * self.self_attn(self.input_layernorm(x), cos, sin, exists, state)
        out: Tensor = x + self.mlp_layer_scale * self.mlp(self.post_attention_layernorm(x))
        return out


class WindowTransformer(nn.Module):
    """The transformer in front of the convolutions. Its attention sees a sliding window of frames."""

    def __init__(self, layout: StateLayout, config: CodecDecoderConfig) -> None:
        super().__init__()
        shape = config.transformer
        self.history = config.sliding_window - 1
        self.input_proj = RowLinear(config.latent_dim, shape.hidden_size)
        self.rope = Rope(shape.rope)
        self.layers = nn.ModuleList(WindowBlock(layout, config) for _ in range(shape.num_hidden_layers))
        self.norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.output_proj = RowLinear(shape.hidden_size, config.latent_dim)

    def forward(self, x: Tensor, state: StreamState) -> Tensor:
        """x [B, T, latent_dim] → [B, T, latent_dim]."""
        shape = x.shape
        positions = state.position[:, None] + torch.arange(shape[1], device=x.device)
        cos, sin = self.rope(positions)
        # Key j of a frame's window is that of frame position - history + j. Frames exist from 0 on.
        keys = torch.arange(-self.history, 1, device=x.device)
        exists = (keys + positions.view(-1, 1, 1, 1)) >= 0
        x = self.input_proj(x.view(state.items, -1, shape[2]))
        for layer in self.layers:
            x = layer(x, cos, sin, exists, state)
        out: Tensor = self.output_proj(self.norm(x))
        return out.view(shape)


class Dequantizer(nn.Module):
    """Split RVQ: semantic and acoustic codebooks are summed separately, projected, and added (as in Mimi, arXiv
    2410.00037).

    A codebook vector is embedding_sum / cluster_usage, computed when the checkpoint is loaded.
    """

    def __init__(self, config: CodecDecoderConfig) -> None:
        super().__init__()
        width = config.codebook_dim // 2
        self.semantic = config.num_semantic_quantizers
        self.codebooks = nn.ParameterList(
            nn.Parameter(torch.zeros(config.codebook_size, width)) for _ in range(config.num_quantizers)
        )
        self.semantic_proj = RowLinear(width, config.codebook_dim, bias=False)
        self.acoustic_proj = RowLinear(width, config.codebook_dim, bias=False)

    def forward(self, codes: Tensor) -> Tensor:
        """codes [B, T, groups], at most num_quantizers of them → [B, T, codebook_dim].

        A value outside the codebook counts as its nearest code. Such a value is the end's id, in a frame that began
        before the end of its speech was known. No listener hears that frame, and its row must not fail.
        """
        assert self.semantic < codes.shape[-1] <= len(self.codebooks)
        codes = codes.clamp(0, self.codebooks[0].shape[0] - 1)
        vectors = [F.embedding(codes[..., group], self.codebooks[group]) for group in range(codes.shape[-1])]
        semantic, acoustic = in_turn(vectors[: self.semantic]), in_turn(vectors[self.semantic :])
        out: Tensor = self.semantic_proj(semantic) + self.acoustic_proj(acoustic)
        return out


class CodecDecoder(nn.Module):
    """The whole decoder. A row's state has `layout.size` values."""

    def __init__(self, config: CodecDecoderConfig) -> None:
        super().__init__()
        self.layout = layout = StateLayout()
        latent = config.latent_dim
        self.quantizer = Dequantizer(config)
        self.pre_conv = CausalConv(layout, (config.codebook_dim, latent), 3)
        self.pre_transformer = WindowTransformer(layout, config)
        self.upsample = nn.ModuleList(LatentUpsampling(layout, latent, ratio) for ratio in config.upsampling_ratios)
        widths = [config.decoder_dim >> stage for stage in range(len(config.upsample_rates) + 1)]
        self.head = CausalConv(layout, (latent, widths[0]), 7)
        self.blocks = nn.ModuleList(
            UpsamplingBlock(layout, (widths[stage], widths[stage + 1]), rate)
            for stage, rate in enumerate(config.upsample_rates)
        )
        self.final_act = SnakeBeta(widths[-1])
        self.final_conv = MonoConv(layout, widths[-1], 7)
        self.memory_frames = memory_frames(config)

    def forward(self, codes: Tensor, state: StreamState) -> Tensor:
        """codes [B, T, groups] → audio [B, T * samples_per_frame] in [-1, 1]; moves `state` on by T frames."""
        return self._waveform(self._latents(codes, state), state)

    def prime(self, codes: Tensor, state: StreamState) -> None:
        """Moves fresh rows on by codes [B, T, groups] without their audio. The convolutions that make audio remember
        only the last `memory_frames`, so they compute no more of them."""
        self._waveform(self._latents(codes, state)[:, -self.memory_frames :], state)

    def _latents(self, codes: Tensor, state: StreamState) -> Tensor:
        """codes [B, T, groups] → [B, T, latent_dim]."""
        x = self.quantizer(codes.reshape(state.items, -1, codes.shape[2]))
        out: Tensor = self.pre_transformer(self.pre_conv(x.view(*codes.shape[:2], -1), state), state)
        return out

    def _waveform(self, x: Tensor, state: StreamState) -> Tensor:
        """x [B, T, latent_dim] → audio [B, T * samples_per_frame]."""
        for stage in self.upsample:
            x = stage(x, state)
        x = self.head(x, state)
        for block in self.blocks:
            x = block(x, state)
        audio: Tensor = self.final_conv(x, state, self.final_act)
        return audio.clamp_(-1, 1)


def memory_frames(config: CodecDecoderConfig) -> int:
    """Returns the number of frames before a sample that the convolutions behind the transformer need: the sum of the
    inputs that each of them keeps, at its rate."""
    rate, frames = 1, 0.0  # rate: samples a frame
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
        """Makes `rows` [n] int64 fresh for other utterances."""
        self._flat[rows] = 0
        self._position[rows] = 0

    def prime(self, row: int, codes: Tensor) -> None:
        """Moves a fresh row on by codes [T, groups] int64, whose audio is not needed."""
        assert 0 <= row < len(self._flat)
        assert codes.ndim == 2
        rows = slice(row, row + 1)
        state = StreamState(self._flat[rows], self._position[rows], items=1)
        self._decoder.prime(codes[None], state)
        self._flat[rows] = state.moved
        self._position[rows] = len(codes)

    def decode(self, rows: Tensor, codes: Tensor) -> Tensor:
        """codes [B, T, groups] of `rows` [B] int64 → audio [B, T * samples_per_frame]. Other rows are untouched.

        On a CPU the samples depend neither on T nor on the other rows. Calls of one row, or of one frame, are fastest:
        others copy what each product reads.
        """
        assert rows.shape == codes.shape[:1]
        items = codes.shape[0] * codes.shape[1] if codes.is_cpu else codes.shape[0]
        state = StreamState(self._flat[rows], self._position[rows], items)
        audio: Tensor = self._decoder(codes, state)
        self._flat[rows] = state.moved
        self._position[rows] += codes.shape[1]
        return audio
