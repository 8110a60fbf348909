"""The speaker encoder: 24 kHz audio → one speaker embedding, in the talker's width.

ECAPA-TDNN (arXiv 2005.07143) without batch norm, over a log-mel spectrum. Reference: qwen-tts 0.1.1,
core/models/modeling_qwen3_tts.py, `mel_spectrogram` and Qwen3TTSSpeakerEncoder.
"""

import math

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from vivavoce_engine.checkpoint.files import REFERENCE_SAMPLE_RATE
from vivavoce_engine.checkpoint.networks import SpeakerEncoderConfig

WINDOW, HOP = 1024, 256  # samples
POWER_MIN, MEL_MIN, VARIANCE_MIN = 1e-9, 1e-5, 1e-12
LINEAR_HZ, LINEAR_MELS = 1000.0, 15.0  # Slaney's scale is linear up to here,
HZ_PER_MEL = LINEAR_HZ / LINEAR_MELS
LOG_STEP = math.log(6.4) / 27  # and logarithmic above


def mel_filters(bins: int) -> NDArray[np.float32]:
    """Returns triangular filters on Slaney's mel scale, from 0 Hz to half the sample rate, as librosa 0.11 does.

    [bins, WINDOW / 2 + 1] float32; each filter has area 1.
    """
    top_hz = REFERENCE_SAMPLE_RATE / 2
    top = LINEAR_MELS + math.log(top_hz / LINEAR_HZ) / LOG_STEP
    mels = np.linspace(0.0, top, bins + 2)
    log_hz = LINEAR_HZ * np.exp(LOG_STEP * (mels - LINEAR_MELS))
    edges_hz = np.where(mels < LINEAR_MELS, HZ_PER_MEL * mels, log_hz)
    ramps = edges_hz[:, None] - np.linspace(0.0, top_hz, WINDOW // 2 + 1)
    widths = np.diff(edges_hz)[:, None]
    slopes = np.minimum(-ramps[:-2] / widths[:-1], ramps[2:] / widths[1:])
    filters: NDArray[np.float32] = np.maximum(0.0, slopes).astype(np.float32)
    filters *= 2.0 / (edges_hz[2:] - edges_hz[:-2])[:, None]
    return filters


class LogMel(nn.Module):
    """Log-mel spectrum. The ends are padded by reflection, so that n samples give n // HOP frames."""

    filters: Tensor
    window: Tensor

    def __init__(self, bins: int) -> None:
        super().__init__()
        # On the CPU even if modules are built without storage, because no checkpoint fills these buffers.
        self.register_buffer("filters", torch.from_numpy(mel_filters(bins)), persistent=False)
        self.register_buffer("window", torch.hann_window(WINDOW, device="cpu"), persistent=False)

    def forward(self, audio: Tensor) -> Tensor:
        """audio [B, samples] float32 → [B, bins, samples // HOP]."""
        overlap = (WINDOW - HOP) // 2
        padded = F.pad(audio[:, None], (overlap, overlap), mode="reflect")[:, 0]
        spectrum = torch.stft(padded, WINDOW, HOP, window=self.window, center=False, return_complex=True)
        magnitude = (torch.view_as_real(spectrum).square().sum(-1) + POWER_MIN).sqrt()
        return (self.filters @ magnitude).clamp(min=MEL_MIN).log()


class Convolution(nn.Conv1d):
    """A convolution that keeps the length, by reflection at both ends."""

    def __init__(self, shape: tuple[int, int], kernel_size: int = 1, dilation: int = 1) -> None:
        super().__init__(*shape, kernel_size, dilation=dilation, padding="same", padding_mode="reflect")


class TimeDelay(nn.Module):
    """A convolution and a ReLU."""

    def __init__(self, shape: tuple[int, int], kernel_size: int = 1, dilation: int = 1) -> None:
        super().__init__()
        self.conv = Convolution(shape, kernel_size, dilation)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.conv(x))


class Res2Net(nn.Module):
    """Convolves channels in `scale` groups. The first group passes unchanged. To each group from the third on, the
    result of the one before it is added first."""

    def __init__(self, channels: int, scale: int, kernel_size: int, dilation: int) -> None:
        super().__init__()
        width = channels // scale
        self.blocks = nn.ModuleList(TimeDelay((width, width), kernel_size, dilation) for _ in range(scale - 1))

    def forward(self, x: Tensor) -> Tensor:
        first, *others = x.chunk(len(self.blocks) + 1, dim=1)
        outputs = [first]
        for number, (block, part) in enumerate(zip(self.blocks, others, strict=True)):
            outputs.append(block(part if number == 0 else part + outputs[-1]))
        return torch.cat(outputs, dim=1)


class SqueezeExcitation(nn.Module):
    """Scales channels by a gate, which is computed from their means over time."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.conv1 = Convolution((channels, squeezed))
        self.conv2 = Convolution((squeezed, channels))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.conv2(F.relu(self.conv1(x.mean(2, keepdim=True)))))


class SqueezeExcitationRes2Net(nn.Module):
    """A residual block: pointwise layer, Res2Net, pointwise layer, squeeze-excitation."""

    def __init__(self, config: SpeakerEncoderConfig, layer: int) -> None:
        super().__init__()
        inputs, channels = config.channels[layer - 1], config.channels[layer]
        self.tdnn1 = TimeDelay((inputs, channels))
        self.res2net_block = Res2Net(
            channels, config.res2net_scale, config.kernel_sizes[layer], config.dilations[layer]
        )
        self.tdnn2 = TimeDelay((channels, channels))
        self.se_block = SqueezeExcitation(channels, config.se_channels)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.se_block(self.tdnn2(self.res2net_block(self.tdnn1(x))))
        return out


class AttentiveStatistics(nn.Module):
    """Mean and deviation over time, weighted by an attention that sees the unweighted ones."""

    def __init__(self, channels: int, attention_channels: int) -> None:
        super().__init__()
        self.tdnn = TimeDelay((3 * channels, attention_channels))
        self.conv = Convolution((attention_channels, channels))

    def forward(self, x: Tensor) -> Tensor:
        """x [B, channels, T] → [B, 2 * channels, 1]."""
        plain = statistics(x, torch.full_like(x[:, :1], 1 / x.shape[2]))
        context = torch.cat([x, *(value.expand_as(x) for value in plain)], dim=1)
        weights = self.conv(torch.tanh(self.tdnn(context))).softmax(2)
        return torch.cat(statistics(x, weights), dim=1)


def statistics(x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Returns weighted mean and standard deviation over time of x [B, channels, T], each [B, channels, 1]."""
    mean = (weights * x).sum(2, keepdim=True)
    variance = (weights * (x - mean).square()).sum(2, keepdim=True)
    return mean, variance.clamp(min=VARIANCE_MIN).sqrt()


class SpeakerEncoder(nn.Module):
    """The whole encoder, from audio to the embedding."""

    def __init__(self, config: SpeakerEncoderConfig) -> None:
        super().__init__()
        self.mel = LogMel(config.mel_bins)
        first = TimeDelay((config.mel_bins, config.channels[0]), config.kernel_sizes[0], config.dilations[0])
        layers = range(1, len(config.channels) - 1)
        self.blocks = nn.ModuleList([first, *(SqueezeExcitationRes2Net(config, layer) for layer in layers)])
        merged = config.channels[-1]
        self.mfa = TimeDelay((merged, merged), config.kernel_sizes[-1], config.dilations[-1])
        self.asp = AttentiveStatistics(merged, config.attention_channels)
        self.fc = Convolution((2 * merged, config.embedding_size))

    def forward(self, audio: Tensor) -> Tensor:
        """audio [B, samples] float32 at 24 kHz → speaker embeddings [B, embedding_size], not normalised."""
        x = self.blocks[0](self.mel(audio))
        outputs = []
        for block in self.blocks[1:]:
            x = block(x)
            outputs.append(x)
        out: Tensor = self.fc(self.asp(self.mfa(torch.cat(outputs, dim=1))))
        return out.squeeze(2)
