"""Log-mel features, teacher shards and small helpers of the training stages."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from voice_recipe.config import MEL_BINS, MEL_HOP_SAMPLES, SAMPLE_RATE_HZ

FFT_SIZE = 1024
LOG_FLOOR = 1e-4


@lru_cache(maxsize=16)
def mel_filters(fft_size: int, bins: int, device: str) -> Tensor:
    """Triangular filters on the HTK mel scale, [fft_size / 2 + 1, bins]."""
    frequency = torch.linspace(0, SAMPLE_RATE_HZ / 2, fft_size // 2 + 1)
    top = 2595 * math.log10(1 + SAMPLE_RATE_HZ / 2 / 700)
    edges = 700 * (10 ** (torch.linspace(0, top, bins + 2) / 2595) - 1)
    rising = (frequency[:, None] - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - frequency[:, None]) / (edges[2:] - edges[1:-1])
    return torch.minimum(rising, falling).clamp(min=0).to(device)


@lru_cache(maxsize=16)
def hann(size: int, device: str) -> Tensor:
    return torch.hann_window(size).to(device)


def frame_mels(audio: Tensor) -> Tensor:
    """audio [B, 1920 N] -> natural-log mels [B, 8 N, 80], every 10 ms centred in its window."""
    side = (FFT_SIZE - MEL_HOP_SAMPLES) // 2
    padded = F.pad(audio, (side, FFT_SIZE - MEL_HOP_SAMPLES - side))
    window = hann(FFT_SIZE, str(audio.device))
    spectrum = torch.stft(padded, FFT_SIZE, MEL_HOP_SAMPLES, FFT_SIZE, window, center=False, return_complex=True)
    magnitude = torch.view_as_real(spectrum).pow(2).sum(-1).clamp(min=1e-10).sqrt().transpose(1, 2)
    return (magnitude @ mel_filters(FFT_SIZE, MEL_BINS, str(audio.device)) / 16).clamp(min=LOG_FLOOR).log()


@dataclass
class Speech:
    """Shards of teacher speech on one device. They hold N frames in total."""

    audio: Tensor | None  # [N, 1920] int16, on the device
    mels: Tensor  # [N, 8, 80] float16
    phones: Tensor  # [N, 8] uint8
    log_f0: Tensor  # [N, 8] float16

    @staticmethod
    def load(folders: list[Path], device: str, with_audio: bool = False) -> Speech:
        def join(name: str) -> Tensor:
            parts = [torch.from_numpy(np.load(folder / f"{name}.npy")) for folder in folders]
            return torch.cat([part.to(device) for part in parts])

        return Speech(
            join("audio") if with_audio else None,
            join("mels"),
            join("phones"),
            join("log_f0"),
        )

    def waveform(self, index: Tensor) -> Tensor:
        """Frame numbers [B, n] -> float audio [B, 1920 n]."""
        assert self.audio is not None
        return self.audio[index].flatten(1).float() / 32767


def wait_for(path: Path, seconds: float) -> None:
    """Wait until another stage has written a file."""
    deadline = time.time() + seconds
    while not path.exists():
        if time.time() > deadline:
            raise TimeoutError(f"{path} did not appear within {seconds:.0f} s")
        time.sleep(0.2)


def random_windows(total: int, length: int, batch: int, device: str) -> Tensor:
    """Frame numbers [batch, length] of random runs of consecutive frames."""
    start = torch.randint(
        0, total - length, (batch, 1)
    )  # on the host, because a CUDA graph would fix the state of a generator on the device
    return start.to(device, non_blocking=True) + torch.arange(length, device=device)


def cosine_rate(progress: float, warmup: float = 0.02, floor: float = 0.02) -> float:
    """Factor of the learning rate at progress 0..1: linear warm-up, cosine to the floor."""
    if progress < warmup:
        return max(progress / warmup, 0.01)
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * (progress - warmup) / (1 - warmup)))
