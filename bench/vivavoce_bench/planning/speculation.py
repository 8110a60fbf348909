"""Passes of the code predictor that a frame takes when codes are guessed ahead, and the frame's time on a card.

A pass draws one code. With k guesses it reads the code drawn last and the k guesses behind it, and draws k + 1 codes.
It keeps the first, and each further one as long as the guesses before it equal the draws. A draw is a function of its
logits and of (seed, frame, codebook) alone, so the codes are the same with and without guesses.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vivavoce_bench.planning.step_times import Curve

Flags = NDArray[np.bool_]
ROWS = (1, 2, 4, 8)
"""Rows that are spoken at the same time, of the figures."""


def count_passes(right: Flags) -> NDArray[np.int64]:
    """Counts the passes of each frame.

    right [frames, codes, k] at (n, p, d): the guess of code p + d + 1, made when codes 0 to p are drawn and from those
    between, equals the draw. Guesses past the last code count for nothing. → passes [frames].
    """
    frames, codes, _ = right.shape
    drawn, passes = np.zeros(frames, np.int64), np.zeros(frames, np.int64)
    kept = np.logical_and.accumulate(right, axis=2).sum(2)
    while (going := drawn < codes).any():
        at = np.minimum(drawn, codes - 1)
        drawn += np.where(going, 1 + kept[np.arange(frames), at], 0)
        passes += going
    return passes


def pass_shares(codes: int, rates: Sequence[float]) -> NDArray[np.float64]:
    """Probability of each number of passes, [codes + 1], for `codes` codes to draw.

    `rates` are those at which the first, second, … guess of a pass is right where the guesses before it are.
    """
    assert codes >= 1
    assert all(0 <= rate <= 1 for rate in rates)
    reached = np.cumprod([1.0, *rates])
    kept = reached - np.append(reached[1:], 0.0)
    shares = np.zeros(codes + 1)
    at = np.zeros(codes)
    at[0] = 1.0
    for passes in range(1, codes + 1):
        after = np.zeros(codes)
        for drawn, share in enumerate(at):
            for right, chance in enumerate(kept):
                if drawn + right + 1 >= codes:
                    shares[passes] += share * chance
                else:
                    after[drawn + right + 1] += share * chance
        at = after
    return shares


def slowest_of(shares: NDArray[np.float64], rows: int) -> float:
    """Expected number of passes of the slowest of `rows` rows, which all others wait for: [codes + 1] → passes."""
    below = np.cumsum(shares) ** rows
    return float((1 - below[:-1]).sum())


@dataclass(frozen=True, slots=True)
class CardTimes:
    """Measured times of a card, in ms, from which a frame with guesses is calculated.

    frame_ms: a frame without Code2Wav, by rows. talker_ms: the talker's part of a frame of one row; the code
    predictor's share of a frame is taken to be that of one row. guess_ms: a guess, which is a product with a matrix as
    large as a head, and a draw. skip_ms: a pass that is not needed, in a graph that launches a frame's most passes:
    each of its kernels begins, and ends at once. `codes` of a frame are the code predictor's.
    """

    frame_ms: Curve
    talker_ms: float
    guess_ms: float
    skip_ms: float
    codes: int

    def frame(self, rows: int, rates: Sequence[float]) -> "GuessedFrame":
        """Calculates a frame of `rows` rows. A pass with k guesses is the work of a pass of k + 1 times the rows."""
        k, today = len(rates), self.frame_ms(rows)
        share = 1 - self.talker_ms / self.frame_ms(1)
        pass_ms = share * self.frame_ms(rows * (k + 1)) / self.codes
        passes = slowest_of(pass_shares(self.codes, rates), rows)
        looped = (1 - share) * today + passes * (pass_ms + k * self.guess_ms)
        return GuessedFrame(rows, k, passes, today, looped, looped + (self.codes - passes) * self.skip_ms)


@dataclass(frozen=True, slots=True)
class GuessedFrame:
    """A frame of `rows` rows with `guesses` in each of its passes, the slowest row's; times in ms.

    `loop_ms` is for a card that repeats passes until no row needs one, at no cost. `graph_ms` is for a CUDA graph of
    fixed launches.
    """

    rows: int
    guesses: int
    passes: float
    today_ms: float
    loop_ms: float
    graph_ms: float
