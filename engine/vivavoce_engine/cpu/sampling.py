"""Drawing codes: the reference's logits processors, row by row, with random numbers that do not know the batch.

A draw's random number is a function of (the request's seed, frame, codebook) alone, so an utterance sounds the same
alone, in a batch of 64, and at any row. Order of operations as in transformers 4.57.3's `generate`.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from vivavoce_engine.checkpoint.files import CODEBOOKS_MAX
from vivavoce_engine.request import RANDOM_BITS, SamplingParams

GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15, as a signed integer
MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
MIX_2 = -7723592293110705685  # 0x94D049BB133111EB


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Unsigned shift of int64."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    """The finaliser of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014)."""
    x = (x ^ _shift_right(x, 30)) * MIX_1
    x = (x ^ _shift_right(x, 27)) * MIX_2
    return x ^ _shift_right(x, 31)


def uniform(seed: Tensor, frame: Tensor, codebook: int | Tensor) -> Tensor:
    """seed, frame, codebook below CODEBOOKS_MAX, int64 → float32 in [0, 1), of their common shape."""
    counter = frame * CODEBOOKS_MAX + codebook + 1
    bits = _shift_right(_mix(_mix(seed) + counter * GOLDEN), 64 - RANDOM_BITS)
    return bits.float() / (1 << RANDOM_BITS)


class SamplingTable:
    """SamplingParams of every row, as tensors [rows]."""

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
        """The parameters of a batch: `index` is `rows` as a tensor."""
        return BatchSampling(
            [self._host[row] for row in rows],
            self._temperature[index],
            self._top_k[index],
            self._top_p[index],
            self._penalty[index],
        )


class BatchSampling:
    """How each row of one batch draws. Steps that no row of the batch needs are left out; they would change nothing."""

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
        """Makes codes that a row has drawn before less likely. logits [B, V] float32, seen [B, V] bool."""
        if not self._any_penalty:
            return logits
        penalised = torch.where(logits < 0, logits * self._penalty, logits / self._penalty)
        return torch.where(seen, penalised, logits)

    def draw(self, logits: Tensor, noise: Tensor) -> Tensor:
        """logits [B, V] float32, noise [B] uniform in [0, 1) → codes [B] int64."""
        if self._all_greedy:
            return logits.argmax(-1)
        codes = _inverse_cdf(self.probabilities(logits), noise)
        return torch.where(self._greedy, logits.argmax(-1), codes) if self._any_greedy else codes

    def probabilities(self, logits: Tensor) -> Tensor:
        """logits [B, V] float32 → what a draw chooses by, [B, V]; a greedy row's values mean nothing."""
        logits = logits / self._divisor
        if self._max_k:
            logits = self._keep_top_k(logits)
        if self._any_top_p:
            logits = self._keep_top_p(logits)
        return logits.softmax(-1)

    def _keep_top_k(self, logits: Tensor) -> Tensor:
        """Codes that tie with the k-th stay."""
        count = min(self._max_k, logits.shape[-1])
        highest = logits.topk(count, dim=-1).values
        threshold = highest.gather(-1, (self._top_k - 1).clamp(0, count - 1))
        if self._any_unlimited:
            threshold = torch.where(self._top_k == 0, -torch.inf, threshold)
        return logits.masked_fill(logits < threshold, -torch.inf)

    def _keep_top_p(self, logits: Tensor) -> Tensor:
        """Drops the least likely codes whose probabilities sum to at most 1 - top_p; the likeliest always stays."""
        ascending, order = logits.sort(dim=-1)
        drop = ascending.softmax(-1).cumsum(-1) <= 1 - self._top_p
        drop[..., -1] = False
        return logits.masked_fill(torch.zeros_like(drop).scatter(-1, order, drop), -torch.inf)


def _inverse_cdf(probabilities: Tensor, noise: Tensor) -> Tensor:
    """The first code whose cumulative probability exceeds the noise: one random number a draw, never an impossible
    code. float64, so that neither the sum's rounding nor its order matters."""
    cumulative = probabilities.double().cumsum(-1)
    target = noise.double()[:, None] * cumulative[:, -1:]
    return (cumulative <= target).sum(-1)
