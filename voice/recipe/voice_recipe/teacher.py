"""Kokoro-82M (Apache-2.0, StyleTTS 2 family) as a batched PyTorch module, for synthesis only.

Written for this project; the parameter names follow the published model so that its weights load directly.
Shapes: B sentences, T phonemes (with the boundary symbol 0 at both ends), F frames of 25 ms.
"""

# Parts that exist only for the published parameter names hang on bare modules, whose attributes have no types.
# mypy: disable-error-code="union-attr,operator,index,arg-type,attr-defined,no-any-return"

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from voice_recipe.config import PHONEME_SYMBOLS, TEACHER_HOP_SAMPLES
from voice_recipe.fused_adain import adain_activation

STYLE_HALF = 128  # a style vector is [timbre | prosody]


@dataclass
class TeacherSpeech:
    """The teacher's speech for a batch of sentences."""

    audio: Tensor  # [B, 600 F] float32, 24 kHz, zero padded
    frames: Tensor  # [B] int64, frames of 25 ms
    durations: Tensor  # [B, T] int64, frames of every phoneme
    f0_hz: Tensor  # [B, 2 F], one value for 12.5 ms, <= 10 where unvoiced


def length_mask(lengths: Tensor, times: int) -> Tensor:
    """[B] -> [B, 1, times] float, 1 inside."""
    return (torch.arange(times, device=lengths.device)[None] < lengths[:, None])[:, None].float()


class AdaptiveNorm(nn.Module):
    """Instance norm over time, with gain and shift from the style, and the activation after it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.fc = nn.Linear(STYLE_HALF, 2 * channels)

    def forward(self, x: Tensor, style: Tensor, lengths: Tensor, alpha: Tensor | None = None) -> Tensor:
        scale, shift = self.fc(style).float().chunk(2, 1)
        out_dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype
        return adain_activation(x, scale, shift, lengths, None if alpha is None else alpha.flatten(), out_dtype)


class ResidualBlock(nn.Module):
    """StyleTTS 2's AdainResBlk1d, optionally doubling the rate."""

    def __init__(self, c_in: int, c_out: int, upsample: bool = False) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(c_in, c_out, 3, 1, 1)
        self.conv2 = nn.Conv1d(c_out, c_out, 3, 1, 1)
        self.norm1, self.norm2 = AdaptiveNorm(c_in), AdaptiveNorm(c_out)
        self.conv1x1 = nn.Conv1d(c_in, c_out, 1, bias=False) if c_in != c_out else None
        self.pool = nn.ConvTranspose1d(c_in, c_in, 3, 2, 1, 1, groups=c_in) if upsample else None

    def forward(self, x: Tensor, style: Tensor, mask: Tensor, lengths: Tensor) -> Tensor:
        h = self.norm1(x, style, lengths)
        if self.pool is not None:
            h, x, lengths = self.pool(h), F.interpolate(x, scale_factor=2, mode="nearest"), lengths * 2
            mask = length_mask(lengths, h.shape[-1])
            h = h * mask
        h = self.norm2(self.conv1(h) * mask, style, lengths)
        h = self.conv2(h)
        if self.conv1x1 is not None:
            x = self.conv1x1(x)
        return (h + x) * (mask * math.sqrt(0.5))


class ReceptiveFieldBlock(nn.Module):
    """HiFi-GAN's residual block with adaptive norms and snake activations."""

    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()
        dilations = (1, 3, 5)

        def conv(dilation: int) -> nn.Conv1d:
            return nn.Conv1d(channels, channels, kernel, 1, (kernel - 1) * dilation // 2, dilation)

        self.convs1 = nn.ModuleList([conv(d) for d in dilations])
        self.convs2 = nn.ModuleList([conv(1) for _ in dilations])
        self.adain1 = nn.ModuleList([AdaptiveNorm(channels) for _ in dilations])
        self.adain2 = nn.ModuleList([AdaptiveNorm(channels) for _ in dilations])
        self.alpha1 = nn.ParameterList([nn.Parameter(torch.ones(1, channels, 1)) for _ in dilations])
        self.alpha2 = nn.ParameterList([nn.Parameter(torch.ones(1, channels, 1)) for _ in dilations])

    def forward(self, x: Tensor, style: Tensor, mask: Tensor, lengths: Tensor) -> Tensor:
        for i in range(len(self.convs1)):
            h = self.convs1[i](self.adain1[i](x, style, lengths, self.alpha1[i]))
            h = self.convs2[i](self.adain2[i](h, style, lengths, self.alpha2[i]))
            x = torch.addcmul(x, h, mask.to(h.dtype)) if x.dtype == h.dtype else x + h * mask
        return x


class Generator(nn.Module):
    """Harmonic source and upsampling network, with an inverse STFT at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.m_source = nn.Module()
        self.m_source.l_linear = nn.Linear(9, 1)
        self.noise_convs = nn.ModuleList([nn.Conv1d(22, 256, 12, 6, 3), nn.Conv1d(22, 128, 1)])
        self.noise_res = nn.ModuleList([ReceptiveFieldBlock(256, 7), ReceptiveFieldBlock(128, 11)])
        self.ups = nn.ModuleList([nn.ConvTranspose1d(512, 256, 20, 10, 5), nn.ConvTranspose1d(256, 128, 12, 6, 3)])
        self.resblocks = nn.ModuleList([ReceptiveFieldBlock(c, k) for c in (256, 128) for k in (3, 7, 11)])
        self.conv_post = nn.Conv1d(128, 22, 7, 1, 3)
        self.register_buffer("window", torch.hann_window(20), persistent=False)

    def source(self, f0_hz: Tensor) -> Tensor:
        """Nine harmonics of f0 with noise: [B, 2F] -> [B, 600 F]."""
        f0 = F.interpolate(f0_hz[:, None], scale_factor=300)
        harmonic = torch.arange(1, 10, device=f0.device, dtype=f0.dtype)[None, :, None]
        turns = (f0 * harmonic / 24000) % 1
        start = torch.rand(f0.shape[0], 9, device=f0.device)
        start[:, 0] = 0
        turns[:, :, 0] += start
        turns = F.interpolate(turns, scale_factor=1 / 300, mode="linear")
        phase = torch.cumsum(turns.double(), -1) * 2 * math.pi
        phase = F.interpolate(phase * 300, scale_factor=300, mode="linear")
        sine = torch.sin(phase).to(f0.dtype) * 0.1
        voiced = (f0 > 10).to(f0.dtype)
        noise = (voiced * 0.003 + (1 - voiced) * 0.1 / 3) * torch.randn_like(sine)
        mixed: Tensor = torch.tanh(self.m_source.l_linear((sine * voiced + noise).transpose(1, 2)))[..., 0]
        return mixed

    def forward(self, x: Tensor, style: Tensor, f0_hz: Tensor, lengths: Tensor) -> Tensor:
        """x [B, 512, 2F], lengths = 2 * frames -> audio [B, 600 F]."""
        with torch.autocast(x.device.type, enabled=False):
            spectrum = torch.stft(self.source(f0_hz.float()), 20, 5, 20, self.window, return_complex=True)
            harmonics = torch.cat([spectrum.abs(), spectrum.angle()], 1)
            harmonics = harmonics * length_mask(lengths * 60 + 1, harmonics.shape[-1])
        for i, rate in enumerate((10, 6)):
            x = self.ups[i](F.leaky_relu(x, 0.1))
            lengths = lengths * rate
            if i == 1:
                x, lengths = F.pad(x, (1, 0), mode="reflect"), lengths + 1
            mask = length_mask(lengths, x.shape[-1])
            noise = self.noise_res[i](self.noise_convs[i](harmonics) * mask, style, mask, lengths)
            x = (x + noise) * mask
            x = sum(self.resblocks[3 * i + j](x, style, mask, lengths) for j in range(3)) / 3
        x = self.conv_post(F.leaky_relu(x)).float()
        magnitude = torch.exp(x[:, :11]) * mask
        return torch.istft(torch.polar(magnitude, torch.sin(x[:, 11:])), 20, 5, 20, self.window)


class Decoder(nn.Module):
    """Aligned text features, pitch and energy -> audio."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = ResidualBlock(514, 1024)
        self.decode = nn.ModuleList([*(ResidualBlock(1090, 1024) for _ in range(3)), ResidualBlock(1090, 512, True)])
        self.F0_conv, self.N_conv = nn.Conv1d(1, 1, 3, 2, 1), nn.Conv1d(1, 1, 3, 2, 1)
        self.asr_res = nn.Sequential(nn.Conv1d(512, 64, 1))
        self.generator = Generator()

    def forward(self, text: Tensor, f0_hz: Tensor, energy: Tensor, style: Tensor, frames: Tensor) -> Tensor:
        mask = length_mask(frames, text.shape[-1])
        f0, energy = self.F0_conv(f0_hz[:, None]) * mask, self.N_conv(energy[:, None]) * mask
        x = self.encode(torch.cat([text, f0, energy], 1), style, mask, frames)
        residual = self.asr_res(text) * mask
        for block in self.decode:
            x = block(torch.cat([x, residual, f0, energy], 1), style, mask, frames)
        audio: Tensor = self.generator(x, style, f0_hz, frames * 2)
        return audio


def run_lstm(lstm: nn.Module, x: Tensor, lengths: Tensor) -> Tensor:
    """Bidirectional LSTM over padded rows [B, T, C]."""
    packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
    out: Tensor = pad_packed_sequence(lstm(packed)[0], batch_first=True, total_length=x.shape[1])[0]
    return out


def bidirectional_lstm(width: int) -> nn.LSTM:
    return nn.LSTM(width, 256, 1, batch_first=True, bidirectional=True)


class AdaptiveLayerNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(STYLE_HALF, 1024)

    def forward(self, x: Tensor, style: Tensor) -> Tensor:
        gain, shift = self.fc(style)[:, None].chunk(2, -1)
        return (1 + gain) * F.layer_norm(x, (512,)) + shift


class PhonemeBert(nn.Module):
    """ALBERT with 12 passes through one shared layer."""

    def __init__(self) -> None:
        super().__init__()
        tables = self.embeddings = nn.Module()
        tables.word_embeddings = nn.Embedding(PHONEME_SYMBOLS, 128)
        tables.position_embeddings = nn.Embedding(512, 128)
        tables.token_type_embeddings = nn.Embedding(2, 128)
        tables.LayerNorm = nn.LayerNorm(128, eps=1e-12)
        self.encoder, group, layer = nn.Module(), nn.Module(), nn.Module()
        self.encoder.embedding_hidden_mapping_in = nn.Linear(128, 768)
        self.encoder.albert_layer_groups = nn.ModuleList([group])
        group.albert_layers = nn.ModuleList([layer])
        attention = layer.attention = nn.Module()
        for name in ("query", "key", "value", "dense"):
            setattr(attention, name, nn.Linear(768, 768))
        attention.LayerNorm = nn.LayerNorm(768, eps=1e-12)
        layer.ffn, layer.ffn_output = nn.Linear(768, 2048), nn.Linear(2048, 768)
        layer.full_layer_layer_norm = nn.LayerNorm(768, eps=1e-12)

    def forward(self, ids: Tensor, keep: Tensor) -> Tensor:
        """ids [B, T], keep [B, T] bool -> [B, T, 768]."""
        tables, (batch, times) = self.embeddings, ids.shape
        x = tables.word_embeddings(ids) + tables.position_embeddings.weight[:times]
        x = tables.LayerNorm(x + tables.token_type_embeddings.weight[0])
        x = self.encoder.embedding_hidden_mapping_in(x)
        layer = self.encoder.albert_layer_groups[0].albert_layers[0]
        attention = layer.attention
        for _ in range(12):
            q, k, v = (
                part(x).view(batch, times, 12, 64).transpose(1, 2)
                for part in (attention.query, attention.key, attention.value)
            )
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=keep[:, None, None])
            x = attention.LayerNorm(x + attention.dense(mixed.transpose(1, 2).reshape(batch, times, 768)))
            inner = layer.ffn_output(F.gelu(layer.ffn(x), approximate="tanh"))
            x = layer.full_layer_layer_norm(x + inner)
        return x


class ChannelNorm(nn.Module):
    """Layer norm over the channels of [B, C, T]."""

    def __init__(self) -> None:
        super().__init__()
        self.gamma, self.beta = nn.Parameter(torch.ones(512)), nn.Parameter(torch.zeros(512))

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x.transpose(1, 2), (512,), self.gamma, self.beta).transpose(1, 2)


class Kokoro(nn.Module):
    """Phonemes and a style vector -> speech with its alignment and pitch."""

    def __init__(self) -> None:
        super().__init__()
        self.bert, self.bert_encoder = PhonemeBert(), nn.Linear(768, 512)
        predictor = self.predictor = nn.Module()
        predictor.text_encoder = nn.Module()
        layers: list[nn.Module] = []
        for _ in range(3):
            layers += [bidirectional_lstm(640), AdaptiveLayerNorm()]
        predictor.text_encoder.lstms = nn.ModuleList(layers)
        predictor.lstm, predictor.shared = bidirectional_lstm(640), bidirectional_lstm(640)
        predictor.duration_proj = nn.Module()
        predictor.duration_proj.linear_layer = nn.Linear(512, 50)
        for name in ("F0", "N"):
            blocks = [ResidualBlock(512, 512), ResidualBlock(512, 256, True), ResidualBlock(256, 256)]
            setattr(predictor, name, nn.ModuleList(blocks))
            setattr(predictor, f"{name}_proj", nn.Conv1d(256, 1, 1))
        encoder = self.text_encoder = nn.Module()
        encoder.embedding = nn.Embedding(PHONEME_SYMBOLS, 512)
        encoder.cnn = nn.ModuleList([nn.Sequential(nn.Conv1d(512, 512, 5, 1, 2), ChannelNorm()) for _ in range(3)])
        encoder.lstm, self.decoder = bidirectional_lstm(512), Decoder()

    def _durations(self, ids: Tensor, lengths: Tensor, prosody: Tensor, speed: Tensor) -> tuple[Tensor, Tensor]:
        """-> prosodic text features [B, T, 640], durations [B, T] in frames."""
        mask = length_mask(lengths, ids.shape[1])
        keep, predictor = mask.transpose(1, 2), self.predictor
        style = prosody[:, None].expand(-1, ids.shape[1], -1)
        text = self.bert_encoder(self.bert(ids, mask[:, 0].bool())) * keep
        x = torch.cat([text, style], -1) * keep
        for i in (0, 2, 4):
            h = run_lstm(predictor.text_encoder.lstms[i], x, lengths)
            x = torch.cat([predictor.text_encoder.lstms[i + 1](h, prosody), style], -1) * keep
        h = run_lstm(predictor.lstm, x, lengths)
        frames = torch.sigmoid(predictor.duration_proj.linear_layer(h)).sum(-1) / speed[:, None]
        return x, frames.round().clamp(min=1).long() * mask[:, 0].long()

    def _curves(self, features: Tensor, prosody: Tensor, frames: Tensor) -> list[Tensor]:
        """Pitch and energy [B, 2F] from the aligned features [B, F, 640]."""
        mask = length_mask(frames, features.shape[1])
        shared = run_lstm(self.predictor.shared, features, frames).transpose(1, 2) * mask
        curves = []
        for name in ("F0", "N"):
            blocks = getattr(self.predictor, name)
            h = blocks[1](blocks[0](shared, prosody, mask, frames), prosody, mask, frames)
            mask2 = length_mask(frames * 2, h.shape[-1])
            h = blocks[2](h, prosody, mask2, frames * 2)
            curves.append((getattr(self.predictor, f"{name}_proj")(h) * mask2)[:, 0])
        return curves

    @torch.no_grad()
    def forward(self, ids: Tensor, lengths: Tensor, style: Tensor, speed: Tensor) -> TeacherSpeech:
        """ids [B, T] padded with 0, lengths [B] with both boundary zeros, style [B, 256], speed [B]."""
        timbre, prosody = style[:, :STYLE_HALF], style[:, STYLE_HALF:]
        features, durations = self._durations(ids, lengths, prosody, speed)
        frames = durations.sum(1)
        total = int(frames.max())
        mask = length_mask(frames, total)
        at = align(durations, total)
        stretched = torch.gather(features, 1, at[..., None].expand(-1, -1, 640)) * mask.transpose(1, 2)
        f0_hz, energy = self._curves(stretched, prosody, frames)
        encoder, keep = self.text_encoder, length_mask(lengths, ids.shape[1])
        text = encoder.embedding(ids).transpose(1, 2) * keep
        for conv in encoder.cnn:
            text = F.leaky_relu(conv(text), 0.2) * keep
        text = run_lstm(encoder.lstm, text.transpose(1, 2), lengths) * keep.transpose(1, 2)
        text = torch.gather(text, 1, at[..., None].expand(-1, -1, 512)).transpose(1, 2) * mask
        with torch.autocast("cuda", torch.bfloat16, enabled=ids.is_cuda):
            audio = self.decoder(text, f0_hz, energy, timbre, frames)
        audio = audio * length_mask(frames * TEACHER_HOP_SAMPLES, audio.shape[-1])[:, 0]
        return TeacherSpeech(audio, frames, durations, f0_hz)


def align(durations: Tensor, frames: int) -> Tensor:
    """Index of the phoneme that sounds in every frame: [B, T] -> [B, frames]."""
    at = torch.arange(frames, device=durations.device)[None].expand(durations.shape[0], frames).contiguous()
    found = torch.searchsorted(durations.cumsum(1), at, right=True)
    return found.clamp(max=durations.shape[1] - 1)


def load_teacher(path: Path) -> Kokoro:
    """Read the packed int8 weights: `name|q` integers, `name|s` scales, `name|z` zero points, else plain arrays."""
    packed, state = np.load(path), {}
    for key in packed.files:
        if key.endswith("|q"):
            base = key[:-2]
            centred = packed[key].astype(np.float32) - packed[base + "|z"].astype(np.float32)
            state[base] = torch.from_numpy(np.asarray(centred * packed[base + "|s"]))
        elif "|" not in key:
            state[key] = torch.from_numpy(packed[key].astype(np.float32))
    model = Kokoro()
    model.load_state_dict(state)
    return model.eval()
