"""Losses of the waveform decoder: what each hears, and what it leaves to the others."""

import math

import pytest
import torch
from torch import Tensor
from voice_recipe.config import SAMPLE_RATE_HZ
from voice_recipe.decoder_losses import flatness, harmonic_loss, level_loss, mel_loss

SAMPLES = 23_040
NOISE_FLATNESS = -0.577
"""Mean logarithm of the power of a noise's bin against the logarithm of its mean: minus Euler's constant."""


def harmonics(phase: float = 0.0) -> Tensor:
    """A voice of 120 Hz with 40 harmonics of one size, each turned by its number times the phase."""
    angle = 2 * math.pi * 120 * torch.arange(SAMPLES) / SAMPLE_RATE_HZ
    return 0.02 * torch.stack([torch.cos(h * angle + h * phase) for h in range(1, 41)]).sum(0)[None]


def noise(seed: int) -> Tensor:
    return 0.09 * torch.randn(1, SAMPLES, generator=torch.Generator().manual_seed(seed))


def test_harmonics_are_far_from_flat_and_noise_is_flat() -> None:
    assert float(flatness(harmonics())[0].mean()) < -3
    assert float(flatness(noise(0))[0].mean()) == pytest.approx(NOISE_FLATNESS, abs=0.05)


def test_no_loss_without_a_difference() -> None:
    for loss in (mel_loss, harmonic_loss, level_loss):
        assert float(loss(noise(0), noise(0))) == 0


def test_the_harmonic_loss_hears_noise_in_place_of_harmonics_and_no_level() -> None:
    assert float(harmonic_loss(harmonics(), noise(0))) > 2.5
    assert float(harmonic_loss(harmonics(), harmonics(1.3))) < 0.3
    assert float(harmonic_loss(harmonics(), 0.8 * harmonics())) < 1e-3


def test_the_level_loss_hears_level_and_no_fine_structure() -> None:
    assert float(level_loss(noise(0), 0.8 * noise(0))) == pytest.approx(-2 * math.log(0.8), abs=0.01)
    assert float(level_loss(noise(0), noise(1))) < 0.25  # by chance, below the effect of 1 dB


def test_gradients_are_finite_for_silence() -> None:
    for loss in (mel_loss, harmonic_loss, level_loss):
        fake = torch.zeros(1, SAMPLES, requires_grad=True)
        (gradient,) = torch.autograd.grad(loss(harmonics(), fake), fake)
        assert torch.isfinite(gradient).all()
