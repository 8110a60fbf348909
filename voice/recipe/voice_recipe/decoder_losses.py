"""Losses of the waveform decoder that need no critic. All compare spectra without their phase, which codes do not hold.

| loss | compares | is for |
|---|---|---|
| mel | log mels of five window lengths | what is said, and by whom |
| harmonic | flatness of bands of 85 ms spectra | harmonics that blur into noise |
| level | energy of bands over 64 ms | quiet speech: an L1 of logarithms is least at the median, below the mean |
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from voice_recipe.audio_features import hann, mel_filters

MEL_RESOLUTIONS = ((2048, 128), (1024, 80), (512, 48), (256, 24), (128, 12))
HARMONIC_FFT_SIZE = 2048  # 85 ms
BAND_BINS, BAND_STEP, LAST_BIN = 36, 18, 440  # 422 Hz hold two harmonics of every voice; up to 5.2 kHz
VALLEY_POWER = 1e-3  # of the band's mean: deeper valleys between harmonics are not heard
LEVEL_FFT_SIZE, LEVEL_BANDS, LEVEL_FRAMES = 1024, 24, 6
# Bins and bands below these powers count as silence. The mean bin of the teacher's speech has about 5e-6, a band 1e-4.
QUIET_BIN, QUIET_BAND = 5e-9, 1e-8


def spectrum(audio: Tensor, fft_size: int) -> Tensor:
    """audio [B, S] -> real and imaginary parts [B, F, T, 2], with a hop of a quarter window."""
    window = hann(fft_size, str(audio.device)) / (fft_size / 2)
    return torch.view_as_real(torch.stft(audio, fft_size, fft_size // 4, fft_size, window, return_complex=True))


def power(audio: Tensor, fft_size: int) -> Tensor:
    """audio [B, S] -> power spectrum [B, T, F]."""
    return spectrum(audio, fft_size).pow(2).sum(-1).transpose(1, 2)


def mel_distance(real: Tensor, fake: Tensor, fft_size: int, bins: int) -> Tensor:
    """L1 of log10 mels at one window length."""
    filters, mels = mel_filters(fft_size, bins, str(fake.device)), []
    for audio in (real, fake):
        magnitude = power(audio, fft_size).add(1e-10).sqrt()
        mels.append((magnitude @ filters).clamp(min=1e-5).log10())
    return (mels[0] - mels[1]).abs().mean()


def mel_loss(real: Tensor, fake: Tensor) -> Tensor:
    """Mean of the distances at all window lengths."""
    return torch.stack([mel_distance(real, fake, *resolution) for resolution in MEL_RESOLUTIONS]).mean()


def flatness(audio: Tensor) -> tuple[Tensor, Tensor]:
    """audio [B, S] -> spectral flatness (ln, 0 is flat) and mean power of bands, [B, T, bands]."""
    bands = power(audio, HARMONIC_FFT_SIZE)[..., :LAST_BIN].unfold(-1, BAND_BINS, BAND_STEP)
    mean = bands.mean(-1)
    floor = VALLEY_POWER * mean.detach() + 1e-12
    return (bands + floor[..., None]).log().mean(-1) - (mean + floor).log(), mean


def harmonic_loss(real: Tensor, fake: Tensor) -> Tensor:
    """L1 of the flatness, ln, in the bands in which the real speech is heard."""
    (target, loudness), (found, _) = flatness(real), flatness(fake)
    heard = (loudness > QUIET_BIN).float()
    return ((target - found).abs() * heard).sum() / heard.sum().clamp(min=1)


def level_loss(real: Tensor, fake: Tensor) -> Tensor:
    """L1 of the logarithm (ln) of power in wide bands, averaged over 64 ms first."""
    filters, levels = mel_filters(LEVEL_FFT_SIZE, LEVEL_BANDS, str(fake.device)), []
    for audio in (real, fake):
        bands = (power(audio, LEVEL_FFT_SIZE) @ filters).transpose(1, 2)
        levels.append((F.avg_pool1d(bands, LEVEL_FRAMES, LEVEL_FRAMES // 2) + QUIET_BAND).log())
    return (levels[0] - levels[1]).abs().mean()
