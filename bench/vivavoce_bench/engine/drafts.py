"""Guesses of the codes behind the one drawn last, and how often the code predictor draws the same.

There are two kinds. Later heads are the checkpoint's own: the head of a later code, over the state that gave the last
one. They need no training, and do not see the code that was drawn. A linear draft is one matrix over that state and
the embeddings of the codes since, fitted to the code predictor's own logits.

A guess takes the noise of the code that it guesses. A Gumbel-max draw is the code with the largest sum of log
probability and Gumbel noise (Gumbel, Statistical Theory of Extreme Values, 1954): of two distributions that differ
little it mostly draws the same code.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from vivavoce_engine.checkpoint.networks import TalkerConfig
from vivavoce_engine.cpu.sampling import BatchSampling, SamplingTable, uniform
from vivavoce_engine.models.code_predictor import CodePredictor, Draw
from vivavoce_engine.models.layers import FrameView
from vivavoce_engine.request import RANDOM_BITS, SamplingParams

from vivavoce_bench.planning.speculation import Flags

RIDGE = 0.03
"""Penalty of the square of a linear draft's weight, as a share of the sum of its input's squares."""


@dataclass(frozen=True, slots=True, eq=False)
class Frames:
    """Frames of speech as the code predictor meets them.

    hidden [N, talker hidden], codes [N, groups] int64, seed and frame [N] int64.
    """

    hidden: Tensor
    codes: Tensor
    seed: Tensor
    frame: Tensor

    def __len__(self) -> int:
        return len(self.codes)

    def part(self, chosen: Tensor) -> "Frames":
        """Selects frames by `chosen`, [N] bool, or numbers in the wanted order."""
        return Frames(self.hidden[chosen], self.codes[chosen], self.seed[chosen], self.frame[chosen])


def gumbel_noise(seed: Tensor, frame: Tensor, codebook: int, vocab: int) -> Tensor:
    """Gumbel noise of each code, float32 [N, vocab]: a function of (seed, frame, codebook). seed, frame [N] int64."""
    counter = frame[:, None] * vocab + torch.arange(vocab, device=frame.device)
    share = uniform(seed[:, None], counter, codebook) + 0.5 / (1 << RANDOM_BITS)
    return -(-share.log()).log()


def gumbel_draws(seed: Tensor, frame: Tensor, params: SamplingParams) -> Draw:
    """Draws by Gumbel-max. seed, frame [N] int64 are the frames'."""
    sampling = _sampling(params, seed)

    def draw(codebook: int, logits: Tensor) -> Tensor:
        noise = gumbel_noise(seed, frame, codebook, logits.shape[-1])
        return (sampling.probabilities(logits).log() + noise).argmax(-1)

    return draw


def engine_draws(seed: Tensor, frame: Tensor, params: SamplingParams) -> Draw:
    """Draws as the engine does, by the inverse cumulative distribution. seed, frame [N] int64 are the frames'."""
    sampling = _sampling(params, seed)
    return lambda codebook, logits: sampling.draw(logits, uniform(seed, frame, codebook))


def _sampling(params: SamplingParams, like: Tensor) -> BatchSampling:
    if params.temperature == 0:
        raise ValueError("greedy codes take no noise")
    table = SamplingTable(1, like.device)
    table.set(0, params)
    return table.select([0] * len(like), torch.zeros_like(like))


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """Frames run through the code predictor again, all positions at once.

    states [N, groups, hidden]: the state that gave code p, at p; at 0 the talker's state as this model reads it.
    inputs [N, groups - 1, hidden]: the embedding of code p, at p.
    """

    frames: Frames
    states: Tensor
    inputs: Tensor


@torch.inference_mode()
def replay(predictor: CodePredictor, config: TalkerConfig, frames: Frames) -> Replay:
    """Runs `frames` with their codes given."""
    groups = predictor.groups
    first = predictor.projection(frames.hidden[:, None])
    inputs = torch.stack([predictor.input_embedding[p](frames.codes[:, p]) for p in range(groups - 1)], dim=1)
    view = FrameView(predictor.frame_cache(config, len(frames)), len(frames), 0, groups)
    states = predictor.transformer(torch.cat([first, inputs], dim=1), view).clone()
    states[:, 0] = first[:, 0]
    return Replay(frames, states, inputs)


def logits_of(predictor: CodePredictor, states: Tensor, codebook: int) -> Tensor:
    """Logits of `codebook`, float32 [N, vocab], from states [N, hidden]."""
    out: Tensor = predictor.lm_head[codebook - 1](states[:, None])[:, 0]
    return out.float()


class Draft(Protocol):
    """A way to guess codes."""

    def logits(self, run: Replay, last: int, ahead: int) -> Tensor | None:
        """Logits of code `last` + 1 + `ahead`, float32 [N, vocab], where code `last` was drawn last and those between
        are known; None if there is no such guess."""
        ...


class LaterHeads:
    """Guesses by the checkpoint's own heads. There are none before a frame's first pass."""

    def __init__(self, predictor: CodePredictor) -> None:
        self._predictor = predictor

    def logits(self, run: Replay, last: int, ahead: int) -> Tensor | None:
        if last == 0:
            return None
        return logits_of(self._predictor, run.states[:, last], last + 1 + ahead)


class LinearDraft:
    """Guesses by a matrix for each code drawn last and each code ahead, fitted to `run` by ridge regression of the
    code predictor's log probabilities."""

    def __init__(self, predictor: CodePredictor, run: Replay, guesses: int) -> None:
        self._weights = {
            (last, ahead): self._fit(predictor, run, last, ahead)
            for last in range(predictor.groups - 1)
            for ahead in range(min(guesses, predictor.groups - 1 - last))
        }

    def logits(self, run: Replay, last: int, ahead: int) -> Tensor | None:
        return _features(run, last, ahead) @ self._weights[last, ahead]

    @staticmethod
    def _fit(predictor: CodePredictor, run: Replay, last: int, ahead: int) -> Tensor:
        x = _features(run, last, ahead)
        codebook = last + 1 + ahead
        y = logits_of(predictor, run.states[:, codebook], codebook).log_softmax(-1)
        penalty = x.square().sum(0) * RIDGE + 1e-6
        penalty[-1] = 0.0  # the constant
        weights: Tensor = torch.linalg.solve(x.T @ x + torch.diag(penalty), x.T @ y)
        return weights


def _features(run: Replay, last: int, ahead: int) -> Tensor:
    """Inputs of a linear draft, float32 [N, features]: the state, the embeddings of codes since, and a constant."""
    known = run.inputs[:, last : last + ahead + 1].flatten(1)
    one = known.new_ones(len(known), 1)
    return torch.cat([run.states[:, last], known, one], dim=1).float()


@torch.inference_mode()
def right_guesses(draft: Draft, predictor: CodePredictor, run: Replay, draw: Draw, guesses: int) -> Flags:
    """Compares guesses with draws: [N, groups - 1, guesses], as `count_passes` reads them."""
    codes = predictor.groups - 1
    drawn = [draw(g, logits_of(predictor, run.states[:, g], g)) for g in range(1, predictor.groups)]
    right = np.zeros((len(run.frames), codes, guesses), np.bool_)
    for last in range(codes):
        for ahead in range(min(guesses, codes - last)):
            logits = draft.logits(run, last, ahead)
            if logits is not None:
                guess = draw(last + 1 + ahead, logits)
                right[:, last, ahead] = (guess == drawn[last + ahead]).cpu().numpy()
    return right


def rates(right: Flags) -> list[float]:
    """Rates at which the first, second, … guess is right where those before it are, over all codes behind which there
    is such a guess; a guess of the last code saves no pass and does not count. 0 where there is none."""
    _, codes, guesses = right.shape
    found = []
    for ahead in range(guesses):
        some = right[:, : codes - 1 - ahead]
        before = some[..., :ahead].all(-1)
        found.append(float(some[..., ahead][before].mean()) if before.any() else 0.0)
    return found
