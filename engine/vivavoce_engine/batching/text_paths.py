"""Follows each row's speech through its text: a monotone path through the attention of one head, settled late.

A frame's attention over the text's tokens is a distribution over where the speech is. The path takes one token a frame:
it stays, or goes on by up to three tokens. Each frame is settled LAG frames later and never taken back, so a result
depends on the frames alone. All rows advance in one call.

A step is to cost a few microseconds a row, and a single row no more than a hundredth of a CPU's frame. So what all rows
do is done in few calls on small arrays, and the way by which a path came is found only for the tokens that it passed.
"""

import math
from collections import deque
from collections.abc import Sequence as SequenceOf
from functools import cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Masses = NDArray[np.float64]
WINDOW = 32
"""Tokens whose attention a step tells."""
BEHIND = 6
"""Tokens of the window that are settled already: the attention that is left on them is not yet that of the next."""
LAG = 2
"""Frames behind a frame when it is settled. A path keeps its tokens in as many frames before its end."""
EPS = 1e-4
"""Weight below which a token's attention makes no difference."""
LEAST = np.full(1, EPS, np.float32)
JUMPS = np.log(np.array([[1.0], [1.0], [0.3], [0.1]], np.float32))
"""Log weight of going on by 0 to 3 tokens, float32 [4, 1]."""
FRONT = len(JUMPS) - 1
"""Columns for none before those of the window, from which the longest step comes."""
WIDTH = FRONT + WINDOW
NEVER = np.float32(-1e9)
COLUMNS = np.arange(WINDOW)
KEPT = LAG + 3
"""Frames whose attention is kept: a token's begin takes that of two frames before its step and two from it on."""


def _first_state() -> Floats:
    """Log weights in frame 0, which is at token 0."""
    best = np.full(FRONT + 2 * WINDOW, NEVER, np.float32)
    best[FRONT] = 0.0
    return best


FIRST_STATE = _first_state()
FIRST_WAYS = np.zeros((len(JUMPS), WINDOW), np.float32)
FIRST_MASSES = np.array([0.0] + [1.0] * WINDOW)


class TextPath:
    """The path of one utterance. `starts[j]` is the frame, with its fraction, in which token j begins.

    `steps[j]` is the first frame whose token is j or a later one. The path's frame 0 is at token 0: its attention is
    not known, because the prompt makes it. Step m of the utterance tells that of frame m + 1.
    """

    def __init__(self) -> None:
        self.frames = 0
        """Frames behind frame 0 that have been fed: the last one's number."""
        self.token = 0
        """The token of the last settled frame."""
        self.starts = [0.0]
        self.steps = [0]
        self.log_weights: list[float] = []
        """Log weight of its token in each settled frame."""
        self.top = self.origin = 0
        """The token at which the best path ends, and its token in the frame before."""
        self.best = FIRST_STATE
        """Log weight of the best path that ends at each token of the last window, behind columns for none, and at as
        many tokens behind the window."""
        self._ways: Floats = FIRST_WAYS
        """Log weights of the ways to each column of the last window by each jump, float32 [JUMPS, WINDOW]."""
        self.fed_first = self.next_first = self._first = 0
        """The first tokens of the windows of the last frame, of the next one, and of the one behind it."""
        self._kept = deque([(0, FIRST_MASSES)], KEPT)
        """The last frames, of each the first token of its window, and the weight of all tokens before each one of
        the window, and of all, float64 [WINDOW + 1]."""

    def window_from(self, step: int) -> int:
        """The first token of the window of a step. It follows from the steps up to the last but one, which have ended
        on every device when this one begins."""
        return self._first if self.frames < step else self.next_first

    def feed(self, masses: Masses, best: Floats, ways: Floats, top: int, jump: int) -> None:
        """Takes a frame: weights, log weights, the ways that led there, and the column of this window at which the best
        path ends, with its last jump."""
        first = self.next_first
        self.frames += 1
        self._kept.append((first, masses))
        origin = first + top - jump
        token = self.origin if origin == self.top else self._origin_of(origin)
        self.best, self._ways = best, ways
        self.top, self.origin = first + top, origin
        if self.frames >= LAG:
            self._settle(self.frames - LAG, token)
        self.fed_first, self.next_first = first, self._first
        self._first = max(0, self.token - BEHIND)

    def _origin_of(self, token: int) -> int:
        """The token from which the best path came to this one in the last fed frame."""
        return token - int(self._ways[:, token - self.fed_first].argmax())

    def finish(self, text_tokens: int) -> None:
        """Settles the last frames, at the end of a text of `text_tokens`. Tokens that were not reached begin there."""
        if self.frames:
            self._settle(self.frames - 1, self.origin)
        self._settle(self.frames, self.top)
        self._begin_up_to(text_tokens, self.frames + 1)

    def _settle(self, frame: int, token: int) -> None:
        """Puts a frame on its token."""
        if token > self.token:
            self._begin_up_to(token, frame)
            self.token = token
        first, masses = self._kept[frame - self.frames - 1]
        column, mass = self.token - first, 0.0
        if column < WINDOW:
            mass = masses.item(column + 1) - masses.item(column)
        self.log_weights.append(math.log(mass + EPS))

    def _begin_up_to(self, token: int, step: int) -> None:
        """Notes where the tokens up to this one begin, which the path reaches in frame `step`."""
        begin, known = max(0, step - 2), self.frames + 1
        near = list(self._kept)[begin - known : min(known, step + 2) - known or None]
        for number in range(len(self.starts), token + 1):
            start = float(begin)
            for first, masses in near:
                start += masses.item(number - first if number - first < WINDOW else WINDOW)
            self.starts.append(max(start, self.starts[-1]))
            self.steps.append(step)


def feed(paths: SequenceOf[TextPath], scores: Floats, tokens: SequenceOf[int]) -> None:
    """Takes a further frame of each path.

    `scores` [paths, WINDOW] are those of each path's tokens from `next_first` on. `tokens` is the number of text
    tokens, with tts_eos, that have a position; the others count for nothing.
    """
    count = len(paths)
    firsts = [path.next_first for path in paths]
    shifts = [first - path.fed_first for first, path in zip(firsts, paths, strict=True)]
    weights = softmax(scores, [known - first for known, first in zip(tokens, firsts, strict=True)])
    masses = np.zeros((count, 1 + WINDOW))
    np.add.accumulate(weights, 1, None, masses[:, 1:])
    before = np.array([path.best[shift : shift + WIDTH] for shift, path in zip(shifts, paths, strict=True)])
    before[:, :FRONT] = NEVER
    come = ways_from(before)
    best = np.empty((count, WIDTH + WINDOW), np.float32)
    best.fill(NEVER)
    ends = best[:, FRONT:WIDTH]
    np.maximum.reduce(come, 1, None, ends)
    ends += np.log(weights + LEAST)
    tops = ends.argmax(1)
    ends -= np.maximum.reduce(ends, 1, None, None, True)
    jumps = come.take(sources_of(count) + tops[:, None]).argmax(1)
    told = zip(paths, masses, best, come, tops.tolist(), jumps.tolist(), strict=True)
    for path, mass, log_weights, ways, top, jump in told:
        path.feed(mass, log_weights, ways, top, jump)


def softmax(scores: Floats, counts: SequenceOf[int]) -> Floats:
    """The weights of the first `counts` scores of each row."""
    if min(counts) < WINDOW:
        scores = np.where(np.array(counts)[:, None] > COLUMNS, scores, -np.inf)
    weights: Floats = scores - np.maximum.reduce(scores, 1, None, None, True)
    np.exp(weights, weights)
    weights /= np.add.reduce(weights, 1, None, None, True)
    return weights


def ways_from(before: Floats) -> Floats:
    """Log weights of the ways to each column by each jump [paths, JUMPS, WINDOW], from `before` [paths, WIDTH]."""
    row, item = before.strides
    # Column c of jump j is column FRONT + c - j of `before`.
    shape, strides = (len(before), len(JUMPS), WINDOW), (row, -item, item)
    ways: Floats = np.ndarray(shape, np.float32, before, FRONT * item, strides) + JUMPS
    return ways


@cache
def sources_of(count: int) -> NDArray[np.intp]:
    """The places of the ways to column 0 in `count` rows of `ways_from`, [count, JUMPS]."""
    return np.arange(count * len(JUMPS)).reshape(count, len(JUMPS)) * WINDOW
