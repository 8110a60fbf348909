"""Critics of the codec decoder: four see complex spectrograms, five see the waveform folded by a period.

The longest window resolves the harmonics of a low voice, so it detects a decoder that blurs them.
"""

from __future__ import annotations

import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.parametrizations import weight_norm

from voice_recipe.audio_features import hann

FFT_SIZES = (2048, 1024, 512, 256)
PERIODS = (2, 3, 5, 7, 11)
QUIET_POWER = 1e-4  # no compression below it, where silence would dominate the gradients
Judgement = tuple[Tensor, list[Tensor]]  # score map, feature maps


def compressed_spectrogram(audio: Tensor, fft_size: int) -> Tensor:
    """audio [B, S] -> real and imaginary parts with magnitude to the power 0.3, [B, 2, T, F] channels last."""
    window = hann(fft_size, str(audio.device)) / math.sqrt(0.375 * fft_size)
    spectrum = torch.stft(audio.float(), fft_size, fft_size // 4, fft_size, window, return_complex=True)
    parts = torch.view_as_real(spectrum).permute(0, 3, 2, 1)
    scale = (parts.pow(2).sum(1, keepdim=True) + QUIET_POWER).pow(-0.35)
    return (parts * scale).contiguous(memory_format=torch.channels_last)


def folded(audio: Tensor, period: int) -> Tensor:
    """audio [B, S] -> [B, 1, S / period, period]."""
    padded = F.pad(audio, (0, -audio.shape[1] % period))
    return padded.view(audio.shape[0], 1, -1, period)


class ConvCritic(nn.Module):
    """A stack of 2-D convolutions with leaky ReLU. The last one gives the score."""

    def __init__(self, convs: list[nn.Conv2d], score: nn.Conv2d) -> None:
        super().__init__()
        self.convs = nn.ModuleList([weight_norm(conv) for conv in convs])
        self.score = weight_norm(score)

    def forward(self, x: Tensor) -> Judgement:
        maps = []
        for conv in self.convs:
            x = F.leaky_relu(conv(x), 0.1)
            maps.append(x)
        return self.score(x), maps


def spectrogram_critic(channels: int = 32) -> ConvCritic:
    convs = [nn.Conv2d(2, channels, (3, 9), (1, 2), (1, 4))]
    for dilation in (1, 2, 4):
        convs.append(nn.Conv2d(channels, channels, (3, 9), (1, 2), (dilation, 4), (dilation, 1)))
    convs.append(nn.Conv2d(channels, channels, 3, 1, 1))
    return ConvCritic(convs, nn.Conv2d(channels, 1, 3, 1, 1))


def period_critic(widths: tuple[int, ...] = (32, 128, 256)) -> ConvCritic:
    convs, c_in = [], 1
    for width in widths:
        convs.append(nn.Conv2d(c_in, width, (5, 1), (3, 1), (2, 0)))
        c_in = width
    convs.append(nn.Conv2d(c_in, c_in, (5, 1), 1, (2, 0)))
    return ConvCritic(convs, nn.Conv2d(c_in, 1, (3, 1), 1, (1, 0)))


class Discriminators(nn.Module):
    """All critics, numbered. Each takes its own view of the audio."""

    def __init__(self) -> None:
        super().__init__()
        self.spectral = nn.ModuleList([spectrogram_critic() for _ in FFT_SIZES])
        self.periodic = nn.ModuleList([period_critic() for _ in PERIODS])
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def __len__(self) -> int:
        return len(FFT_SIZES) + len(PERIODS)

    def critic(self, number: int) -> nn.Module:
        """Network of one critic, for its weights."""
        critics: list[nn.Module] = [*self.spectral, *self.periodic]
        return critics[number]

    def judge(self, number: int, audio: Tensor) -> Judgement:
        """audio [B, S] -> score and feature maps of one critic."""
        if number < len(FFT_SIZES):
            view = compressed_spectrogram(audio, FFT_SIZES[number])
        else:
            view = folded(audio, PERIODS[number - len(FFT_SIZES)])
        judgement: Judgement = self.critic(number)(view)
        return judgement


def critic_loss(real: Tensor, fake: Tensor) -> Tensor:
    """Least squares of one critic's scores."""
    return (1 - real.float()).pow(2).mean() + fake.float().pow(2).mean()


def generator_losses(real_maps: list[Tensor], fake: Judgement) -> tuple[Tensor, Tensor]:
    """Adversarial and feature-matching loss of one critic. The latter is relative to the size of the real features."""
    score, fake_maps = fake
    adversarial = (1 - score.float()).pow(2).mean()
    matching = torch.zeros_like(adversarial)
    for real, found in zip(real_maps, fake_maps, strict=True):
        size = real.abs().mean(dtype=torch.float32).clamp(min=1e-3) * len(real_maps)
        matching = matching + (found - real).abs().mean(dtype=torch.float32) / size
    return adversarial, matching
