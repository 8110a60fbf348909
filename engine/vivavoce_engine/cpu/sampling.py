"""Draws codes from logits as the reference does, each row by its own parameters and its own random numbers.

The random number of a draw depends only on the request's seed, the frame and the codebook. An utterance therefore
sounds the same alone, in a batch of 64, and in any row. Operations are in the order of `generate` in transformers
4.57.3.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from vivavoce_engine.checkpoint.networks import CODEBOOKS_MAX
from vivavoce_engine.request import RANDOM_BITS, SamplingParams

GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15, as a signed integer
MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
MIX_2 = -7723592293110705685  # 0x94D049BB133111EB


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Shifts int64 right as if it were unsigned."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    """The finaliser of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014)."""
    x = (x ^ _shift_right(x, 30)) * MIX_1
    x = (x ^ _shift_right(x, 27)) * MIX_2
    return x ^ _shift_right(x, 31)


def uniform(seed: Tensor, frame: Tensor, codebook: int | Tensor) -> Tensor:
    """Random numbers, float32 in [0, 1), from int64 seed, frame and codebook (below CODEBOOKS_MAX) of one shape."""
    counter = frame * CODEBOOKS_MAX + codebook + 1
    bits = _shift_right(_mix(_mix(seed) + counter * GOLDEN), 64 - RANDOM_BITS)
    return bits.float() / (1 << RANDOM_BITS)


class SamplingTable:
    """The SamplingParams of all rows, as tensors [rows]."""

    def __init__(self, rows: int, device: torch.device) -> None:
        self._temperature = torch.ones(rows, device=device)
        self._top_k = torch.zeros(rows, dtype=torch.int64, device=device)
        self._top_p = torch.ones(rows, device=device)
        self._penalty = torch.ones(rows, device=device)
        self._host: dict[int, SamplingParams] = {}

    def set(self, row: int, params: SamplingParams) -> None:
        self._host[row] = params
        self._temperature[row] = params.temperature
        self._top_k[row] = params.top_k
        self._top_p[row] = params.top_p
        self._penalty[row] = params.repetition_penalty

    def select(self, rows: list[int], index: Tensor) -> "BatchSampling":
        """Selects the parameters of a batch. `index` [B] holds `rows` as a tensor."""
        return BatchSampling(
            [self._host[row] for row in rows],
            self._temperature[index],
            self._top_k[index],
            self._top_p[index],
            self._penalty[index],
        )


class BatchSampling:
    """Draws for the rows of one batch. Skips operations that would change no row of it."""

    def __init__(
        self, host: Iterable[SamplingParams], temperature: Tensor, top_k: Tensor, top_p: Tensor, penalty: Tensor
    ) -> None:
        params = list(host)
        self._all_greedy = all(p.temperature == 0 for p in params)
        self._any_greedy = any(p.temperature == 0 for p in params)
        self._max_k = max((p.top_k for p in params), default=0)
        self._any_unlimited = any(p.top_k == 0 for p in params)
        self._any_top_p = any(p.top_p < 1 for p in params)
        self._any_penalty = any(p.repetition_penalty != 1 for p in params)
        self._greedy = temperature == 0
        self._divisor = torch.where(self._greedy, 1.0, temperature)[:, None]
        self._top_k = top_k[:, None]
        self._top_p = top_p[:, None]
        self._penalty = penalty[:, None]

    def penalise(self, logits: Tensor, seen: Tensor) -> Tensor:
        """Applies the repetition penalty: logits [B, V] float32, seen [B, V] bool (codes drawn before) → [B, V]."""
        if not self._any_penalty:
            return logits
        penalised = torch.where(logits < 0, logits * self._penalty, logits / self._penalty)
        return torch.where(seen, penalised, logits)

    def draw(self, logits: Tensor, noise: Tensor) -> Tensor:
        """Draws a code for each row: logits [B, V] float32, noise [B] uniform in [0, 1) → codes [B] int64."""
        if self._all_greedy:
            return logits.argmax(-1)
        codes = _inverse_cdf(self.probabilities(logits), noise)
        return torch.where(self._greedy, logits.argmax(-1), codes) if self._any_greedy else codes

    def probabilities(self, logits: Tensor) -> Tensor:
        """Probabilities of the codes of each draw: logits [B, V] float32 → [B, V]. Meaningless for greedy rows."""
        logits = logits / self._divisor
        if self._max_k:
            logits = self._keep_top_k(logits)
        if self._any_top_p:
            logits = self._keep_top_p(logits)
        return logits.softmax(-1)

    def _keep_top_k(self, logits: Tensor) -> Tensor:
        """Drops all but the k most likely codes. Codes equal to the k-th stay."""
        count = min(self._max_k, logits.shape[-1])
        highest = logits.topk(count, dim=-1).values
        threshold = highest.gather(-1, (self._top_k - 1).clamp(0, count - 1))
        if self._any_unlimited:
            threshold = torch.where(self._top_k == 0, -torch.inf, threshold)
        return logits.masked_fill(logits < threshold, -torch.inf)

    def _keep_top_p(self, logits: Tensor) -> Tensor:
        """Drops the least likely codes whose probabilities sum to at most 1 - top_p. The most likely always stays."""
        ascending, order = logits.sort(dim=-1)
        drop = ascending.softmax(-1).cumsum(-1) <= 1 - self._top_p
        drop[..., -1] = False
        return logits.masked_fill(torch.zeros_like(drop).scatter(-1, order, drop), -torch.inf)


def _inverse_cdf(probabilities: Tensor, noise: Tensor) -> Tensor:
    """Returns the first code whose cumulative probability exceeds the noise.

    Uses one random number a draw and never picks a code of probability 0. Sums in float64, in which neither rounding
    nor order matters.
    """
    cumulative = probabilities.double().cumsum(-1)
    target = noise.double()[:, None] * cumulative[:, -1:]
    return (cumulative <= target).sum(-1)
