"""Code2Wav: codec frames → 24 kHz audio, frame by frame, exactly as if the whole sequence were decoded at once.

Every convolution and the windowed attention are causal, so a row's state is the last inputs of each of them. Rows are
decoded in any batch, and in pieces of any length. On a CPU the samples are the same bit for bit, because every sum has
the shape that it has for one frame of one row. Reference: qwen-tts 0.1.1, core/tokenizer_12hz/
modeling_qwen3_tts_tokenizer_v2.py; for Qwen3-Omni transformers 5.17.0, models/qwen3_omni_moe,
Qwen3OmniMoeCode2Wav. Their `chunked_decode` recomputes 25 frames of context instead.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vivavoce_engine.checkpoint.networks import CodecDecoderConfig
from vivavoce_engine.models.codec_state import StateLayout, StreamState, item_windows
from vivavoce_engine.models.layers import GatedMLP, RMSNorm, Rope, RowLinear, attend_each, in_turn, rotate

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
        layout.upsample(taps, stride)

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
        self.rope = Rope(shape.rope)
        self.layers = nn.ModuleList(WindowBlock(layout, config) for _ in range(shape.num_hidden_layers))
        self.norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)

    def forward(self, x: Tensor, state: StreamState) -> Tensor:
        """x [B, T, hidden] → [B, T, hidden], after the final norm."""
        shape = x.shape
        positions = state.position[:, None] + torch.arange(shape[1], device=x.device)
        cos, sin = self.rope(positions)
        # Key j of a frame's window is that of frame position - history + j. Frames exist from 0 on.
        keys = torch.arange(-self.history, 1, device=x.device)
        exists = (keys + positions.view(-1, 1, 1, 1)) >= 0
        x = x.view(state.items, -1, shape[2])
        for layer in self.layers:
            x = layer(x, cos, sin, exists, state)
        out: Tensor = self.norm(x)
        return out.view(shape)


class ProjectedTransformer(WindowTransformer):
    """A transformer narrower than the latents around it."""

    def __init__(self, layout: StateLayout, config: CodecDecoderConfig) -> None:
        super().__init__(layout, config)
        self.input_proj = RowLinear(config.latent_dim, config.transformer.hidden_size)
        self.output_proj = RowLinear(config.transformer.hidden_size, config.latent_dim)

    def forward(self, x: Tensor, state: StreamState) -> Tensor:
        """x [B, T, latent_dim] → [B, T, latent_dim]."""
        hidden = self.input_proj(x.view(state.items, -1, x.shape[2]))
        hidden = super().forward(hidden.view(*x.shape[:2], -1), state)
        out: Tensor = self.output_proj(hidden.view(state.items, -1, hidden.shape[2]))
        return out.view(x.shape)


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
        """codes [B, T, groups], at most num_quantizers of them → [B, T, codebook_dim]."""
        assert self.semantic < codes.shape[-1] <= len(self.codebooks)
        vectors = look_up(codes, [*self.codebooks])
        semantic, acoustic = in_turn(vectors[: self.semantic]), in_turn(vectors[self.semantic :])
        out: Tensor = self.semantic_proj(semantic) + self.acoustic_proj(acoustic)
        return out


class EmbeddingMean(nn.Module):
    """One embedding a code, of which the mean is taken over a frame (Qwen3-Omni)."""

    def __init__(self, config: CodecDecoderConfig) -> None:
        super().__init__()
        books, size = config.num_quantizers, config.codebook_size
        self.weight = nn.Parameter(torch.zeros(books, size, config.latent_dim))

    def forward(self, codes: Tensor) -> Tensor:
        """codes [B, T, groups], one for each codebook → [B, T, latent_dim]."""
        assert codes.shape[-1] == len(self.weight)
        return in_turn(look_up(codes, [*self.weight])) / len(self.weight)


def look_up(codes: Tensor, tables: list[Tensor]) -> list[Tensor]:
    """codes [B, T, groups] and tables [size, width] of as many groups, or more → their vectors, each [B, T, width].

    A value outside the codebook counts as its nearest code. Such a value is the end's id, in a frame that began before
    the end of its speech was known. No listener hears that frame, and its row must not fail.
    """
    codes = codes.clamp(0, len(tables[0]) - 1)
    return [F.embedding(codes[..., group], tables[group]) for group in range(codes.shape[-1])]


class Code2Wav(nn.Module):
    """The whole decoder, whose families differ in how codes become latents. A row's state has `layout.size` values."""

    def __init__(self, config: CodecDecoderConfig) -> None:
        super().__init__()
        self.layout = StateLayout(config.trims_start)
        self.lookahead_samples = config.lookahead_samples
        self.memory_frames = memory_frames(config)

    def add_waveform_stages(self, config: CodecDecoderConfig) -> None:
        """Adds the modules that turn latents into samples, behind those that make the latents."""
        layout, latent = self.layout, config.latent_dim
        self.upsample = nn.ModuleList(LatentUpsampling(layout, latent, ratio) for ratio in config.upsampling_ratios)
        widths = [config.decoder_dim >> stage for stage in range(len(config.upsample_rates) + 1)]
        self.head = CausalConv(layout, (latent, widths[0]), 7)
        self.blocks = nn.ModuleList(
            UpsamplingBlock(layout, (widths[stage], widths[stage + 1]), rate)
            for stage, rate in enumerate(config.upsample_rates)
        )
        self.final_act = SnakeBeta(widths[-1])
        self.final_conv = MonoConv(layout, widths[-1], 7)

    def forward(self, codes: Tensor, state: StreamState) -> Tensor:
        """codes [B, T, groups] → audio [B, T * samples_per_frame] in [-1, 1]; moves `state` on by T frames.

        The first `lookahead_samples` of a row's first frame are no audio.
        """
        return self._waveform(self._latents(codes, state), state)

    def prime(self, codes: Tensor, state: StreamState) -> None:
        """Moves fresh rows on by codes [B, T, groups] without their audio. The convolutions that make audio remember
        only the last `memory_frames`, so they compute no more of them."""
        latents = self._latents(codes, state)[:, -self.memory_frames :]
        state.position = state.position + (codes.shape[1] - latents.shape[1])
        self._waveform(latents, state)

    def _latents(self, codes: Tensor, state: StreamState) -> Tensor:
        """codes [B, T, groups] → [B, T, latent_dim]."""
        raise NotImplementedError

    def _waveform(self, x: Tensor, state: StreamState) -> Tensor:
        """x [B, T, latent_dim] → audio [B, T * samples_per_frame]."""
        for stage in self.upsample:
            x = stage(x, state)
        x = self.head(x, state)
        for block in self.blocks:
            x = block(x, state)
        audio: Tensor = self.final_conv(x, state, self.final_act)
        return audio.clamp_(-1, 1)


class CodecDecoder(Code2Wav):
    """The decoder of Qwen3-TTS: two groups of codebooks, a convolution, and a transformer between projections."""

    def __init__(self, config: CodecDecoderConfig) -> None:
        super().__init__(config)
        self.quantizer = Dequantizer(config)
        self.pre_conv = CausalConv(self.layout, (config.codebook_dim, config.latent_dim), 3)
        self.pre_transformer = ProjectedTransformer(self.layout, config)
        self.add_waveform_stages(config)

    def _latents(self, codes: Tensor, state: StreamState) -> Tensor:
        x = self.quantizer(codes.reshape(state.items, -1, codes.shape[2]))
        out: Tensor = self.pre_transformer(self.pre_conv(x.view(*codes.shape[:2], -1), state), state)
        return out


class OmniDecoder(Code2Wav):
    """The decoder of Qwen3-Omni: the mean of a frame's embeddings, and a transformer of the latents' width."""

    def __init__(self, config: CodecDecoderConfig) -> None:
        super().__init__(config)
        self.embedding = EmbeddingMean(config)
        self.pre_transformer = WindowTransformer(self.layout, config)
        self.add_waveform_stages(config)

    def _latents(self, codes: Tensor, state: StreamState) -> Tensor:
        x = self.embedding(codes.reshape(state.items, -1, codes.shape[2]))
        out: Tensor = self.pre_transformer(x.view(*codes.shape[:2], -1), state)
        return out


def decoder_of(config: CodecDecoderConfig) -> Code2Wav:
    """A decoder of the family that has this front, without weights."""
    return CodecDecoder(config) if config.front == "split_rvq" else OmniDecoder(config)


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

    def __init__(self, decoder: Code2Wav, rows: int, like: Tensor) -> None:
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

        The first `lookahead_samples` of the decoder are no audio in a row's first frame.
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
