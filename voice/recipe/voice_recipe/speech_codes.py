"""The codes: a privileged encoder, the quantiser and a causal mel decoder give them their meaning.

The encoder sees the teacher's phoneme alignment and pitch, which only the recipe knows, and may look ahead. Code 0
quantises only the phonemes of a frame, so that a talker can predict it from text. Codes 1..7 quantise the rest of the
mel spectrum. The mel decoder is causal at the frame rate, like the checkpoint's waveform decoder, so that the codes of
a frame carry everything that its 80 ms need.
"""

# Items of a ModuleList have no types.
# mypy: disable-error-code="operator,arg-type"

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from voice_recipe.config import MEL_BINS, MELS_PER_FRAME, PHONEME_SYMBOLS, CodecSizes

PHONE_WIDTH, ACOUSTIC_WIDTH, FRAME_WIDTH, DECODER_WIDTH = 48, 256, 512, 512
FEATURES = MEL_BINS + 2  # mels, pitch, voicing
MEL_MEAN, MEL_STD = -5.0, 2.0
LOG_F0_MEAN, LOG_F0_STD = 5.0, 0.4


def features(mels: Tensor, log_f0: Tensor) -> Tensor:
    """mels [B, n, 8, 80], log_f0 [B, n, 8] -> normalised features [B, 8 n, 82]."""
    voiced = (log_f0 > 0).float()
    pitch = (log_f0.float() - LOG_F0_MEAN) / LOG_F0_STD * voiced
    parts = [(mels.float() - MEL_MEAN) / MEL_STD, pitch[..., None], voiced[..., None]]
    return torch.cat(parts, -1).flatten(1, 2)


class TimeConv(nn.Module):
    """Convolution over [B, T, C]; causal or centred."""

    def __init__(self, c_in: int, c_out: int, kernel: int, causal: bool = False) -> None:
        super().__init__()
        self.conv = nn.Conv1d(c_in, c_out, kernel)
        self.pad = (kernel - 1, 0) if causal else (kernel // 2, kernel // 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.conv(F.pad(x.transpose(1, 2), self.pad)).transpose(1, 2)
        return out


class ConvUnit(nn.Module):
    """x + W gelu(conv(norm(x)))."""

    def __init__(self, width: int, kernel: int, causal: bool = False) -> None:
        super().__init__()
        self.norm, self.conv = nn.LayerNorm(width), TimeConv(width, width, kernel, causal)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.out(F.gelu(self.conv(self.norm(x))))
        return out


class Codebook(nn.Module):
    """Codebook learnt by exponential moving averages. Rarely used entries move to random inputs."""

    vectors: Tensor
    usage: Tensor
    sums: Tensor

    def __init__(self, sizes: CodecSizes) -> None:
        super().__init__()
        shape = (sizes.codebook_size, sizes.codebook_dim)
        self.register_buffer("vectors", torch.zeros(shape))
        self.register_buffer("usage", torch.ones(sizes.codebook_size))
        self.register_buffer("sums", torch.zeros(shape))

    def nearest(self, x: Tensor) -> Tensor:
        """[M, D] -> [M] index of the nearest vector."""
        return (self.vectors.pow(2).sum(-1) - 2 * x @ self.vectors.t()).argmin(-1)

    @torch.no_grad()
    def kmeans(self, x: Tensor, rounds: int = 12) -> None:
        self.vectors.copy_(x[torch.randint(len(x), (len(self.vectors),), device=x.device)])
        for _ in range(rounds):
            self._accumulate(x, decay=0.0)
            self.revive(x)

    @torch.no_grad()
    def _accumulate(self, x: Tensor, decay: float) -> None:
        index = self.nearest(x)
        counts = torch.zeros_like(self.usage).index_add_(0, index, torch.ones_like(x[:, 0]))
        self.usage.mul_(decay).add_(counts, alpha=1 - decay)
        self.sums.mul_(decay).add_(torch.zeros_like(self.sums).index_add_(0, index, x), alpha=1 - decay)
        self.vectors.copy_(
            torch.where(self.usage[:, None] > 1e-3, self.sums / self.usage[:, None].clamp(min=1e-3), self.vectors)
        )

    def update(self, x: Tensor) -> None:
        self._accumulate(x, decay=0.98)

    @torch.no_grad()
    def revive(self, x: Tensor, threshold: float = 0.03) -> None:
        """Move entries that are used less than `threshold` of the mean to random inputs."""
        mean = self.usage.mean()
        dead = self.usage < threshold * mean
        fresh = x[torch.randint(len(x), (len(self.vectors),), device=x.device)]
        self.vectors.copy_(torch.where(dead[:, None], fresh, self.vectors))
        self.usage.copy_(torch.where(dead, mean, self.usage))
        self.sums.copy_(torch.where(dead[:, None], fresh * mean, self.sums))


class Quantized(NamedTuple):
    vectors: Tensor  # [B, n, D], straight-through
    codes: Tensor  # [B, n, books]
    commitment: Tensor


class Quantizer(nn.Module):
    """Residual vector quantiser over latents [B, n, D]."""

    def __init__(self, books: int, sizes: CodecSizes) -> None:
        super().__init__()
        self.books = nn.ModuleList([Codebook(sizes) for _ in range(books)])
        self.output_proj = nn.Linear(sizes.codebook_dim, sizes.quantizer_dim, bias=False)

    def forward(self, latents: Tensor, learn: bool = False) -> Quantized:
        rest = latents.flatten(0, 1).float()
        total, commitment, codes = torch.zeros_like(rest), rest.new_zeros(()), []
        for book in self.books:
            index = book.nearest(rest.detach())
            chosen = F.embedding(index, book.vectors)
            if learn:
                book.update(rest.detach())
            commitment = commitment + (rest - chosen).pow(2).mean()
            total, rest = total + chosen, rest - chosen
            codes.append(index.view(latents.shape[:2]))
        vectors = latents + (total.view_as(latents) - latents).detach()
        return Quantized(vectors, torch.stack(codes, -1), commitment)

    @torch.no_grad()
    def initialise(self, latents: Tensor) -> None:
        """k-means of every book on the residual of the books before it."""
        rest = latents.flatten(0, 1).float()
        for book in self.books:
            book.kmeans(rest)
            rest = rest - F.embedding(book.nearest(rest), book.vectors)

    @torch.no_grad()
    def revive(self, latents: Tensor) -> None:
        rest = latents.flatten(0, 1).float()
        for book in self.books:
            book.revive(rest)
            rest = rest - F.embedding(book.nearest(rest), book.vectors)


class SpeechCodes(nn.Module):
    """Features and phonemes -> codes -> mels, pitch and phonemes again."""

    def __init__(self, sizes: CodecSizes) -> None:
        super().__init__()
        self.phone_table = nn.Embedding(PHONEME_SYMBOLS, PHONE_WIDTH)
        self.phone_conv = TimeConv(PHONE_WIDTH, 96, 9)
        self.phone_out = nn.Sequential(
            nn.Linear(96 * MELS_PER_FRAME, 512), nn.GELU(), nn.Linear(512, sizes.codebook_dim)
        )
        self.acoustic_in = nn.Linear(FEATURES + PHONE_WIDTH, ACOUSTIC_WIDTH)
        self.acoustic_fine = nn.Sequential(*(ConvUnit(ACOUSTIC_WIDTH, 5) for _ in range(2)))
        self.acoustic_join = nn.Linear(ACOUSTIC_WIDTH * MELS_PER_FRAME, FRAME_WIDTH)
        self.acoustic_coarse = nn.Sequential(*(ConvUnit(FRAME_WIDTH, 5) for _ in range(3)))
        self.acoustic_out = nn.Sequential(nn.LayerNorm(FRAME_WIDTH), nn.Linear(FRAME_WIDTH, sizes.codebook_dim))
        self.semantic, self.acoustic = Quantizer(1, sizes), Quantizer(sizes.codebooks - 1, sizes)
        self.decoder_in = TimeConv(sizes.quantizer_dim, DECODER_WIDTH, 3, causal=True)
        self.decoder = nn.Sequential(*(ConvUnit(DECODER_WIDTH, 5, causal=True) for _ in range(4)))
        self.decoder_out = nn.Linear(DECODER_WIDTH, FEATURES * MELS_PER_FRAME)
        self.phone_head = nn.Sequential(
            nn.Linear(sizes.codebook_dim, 256), nn.GELU(), nn.Linear(256, MELS_PER_FRAME * PHONEME_SYMBOLS)
        )

    def latents(self, phones: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """phones [B, n, 8], inputs [B, 8 n, 82] -> semantic and acoustic latents [B, n, D]."""
        batch, frames, _ = phones.shape
        symbols = self.phone_table(phones.long()).flatten(1, 2)
        semantic = self.phone_out(F.gelu(self.phone_conv(symbols)).reshape(batch, frames, -1))
        fine = self.acoustic_fine(self.acoustic_in(torch.cat([inputs.to(symbols.dtype), symbols], -1)))
        joined = self.acoustic_join(fine.reshape(batch, frames, -1))
        return semantic, self.acoustic_out(self.acoustic_coarse(joined))

    def decode(self, semantic: Tensor, acoustic: Tensor) -> Tensor:
        """Quantised vectors [B, n, D] -> features [B, 8 n, 82]."""
        x = self.semantic.output_proj(semantic) + self.acoustic.output_proj(acoustic)
        out: Tensor = self.decoder_out(self.decoder(self.decoder_in(x)))
        return out.view(x.shape[0], -1, FEATURES)

    @torch.no_grad()
    def encode(self, phones: Tensor, inputs: Tensor) -> Tensor:
        """-> codes [B, n, 8]."""
        semantic, acoustic = self.latents(phones, inputs)
        return torch.cat([self.semantic(semantic).codes, self.acoustic(acoustic).codes], -1)


class PhoneProbe(nn.Module):
    """Recognises the phoneme of every 10 ms from mels alone, to measure how much speech a reconstruction keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            TimeConv(MEL_BINS, 256, 5),
            nn.GELU(),
            ConvUnit(256, 9),
            ConvUnit(256, 9),
            nn.LayerNorm(256),
            nn.Linear(256, PHONEME_SYMBOLS),
        )

    def forward(self, normalised_mels: Tensor) -> Tensor:
        """[B, T, 80] -> logits [B, T, symbols]."""
        out: Tensor = self.net(normalised_mels)
        return out
