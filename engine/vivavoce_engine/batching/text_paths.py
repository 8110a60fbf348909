"""Follows each row's speech through its text: a monotone path through the attention of one head, settled late.

A frame's attention over the text's tokens is a distribution over where the speech is. The path takes one token a frame:
it stays, or goes on by up to three tokens. Each frame is settled LAG frames later and never taken back, so a result
depends on the frames alone. All rows advance in one call.

A step of one row is to cost a hundredth of a CPU's frame. So arrays are few and small here, sums over a few values are
made of Python's floats, and the way by which a path came is found only for the tokens that it has passed.
"""

import math
from collections import deque
from collections.abc import Sequence as SequenceOf
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
WINDOW = 32
"""Tokens whose attention a step tells."""
BEHIND = 6
"""Tokens of the window that are settled already: the attention that is left on them is not yet that of the next."""
LAG = 2
EPS = 1e-4
"""Weight below which a token's attention makes no difference."""
LEAST = np.full(1, EPS, np.float32)
JUMP_2, JUMP_3 = np.log(np.array([[0.3], [0.1]], np.float32))
"""Log weight of going on by 2 and 3 tokens, float32 [1]. That of going on by fewer is 0."""
FRONT = 3
"""Columns for none before those of the window, from which the longest step comes."""
NEVER = np.float32(-1e9)
KEPT = LAG + 3
"""Frames whose attention is kept: a token's begin takes that of two frames before its step and two from it on."""


def _first_state() -> Floats:
    """Log weights in frame 0, which is at token 0."""
    best = np.full(FRONT + WINDOW, NEVER, np.float32)
    best[FRONT] = 0.0
    return best


FIRST_STATE = _first_state()


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
        self.best = FIRST_STATE
        """Log weight of the best path that ends at each token of the last window, behind columns for none."""
        self.top = 0
        """The token at which the best of them ends."""
        self._first = self._previous_first = 0
        self._firsts = deque([0], KEPT)
        """The first tokens of the windows of the last frames."""
        self._masses = deque([[0.0] + [1.0] * WINDOW], KEPT)
        """Weight of all tokens before each one of the window, and of all, in each of these frames."""
        self._sources = deque[tuple[Floats, Floats, Floats]]([], LAG)
        """For the last frames: log weights before the frame by the column they go to, and by jumps of 2 and 3."""

    def window_from(self, step: int) -> int:
        """The first token of the window of a step. It follows from the steps up to the last but one, which have ended
        on every device when this one begins."""
        return self._first if self.frames < step else self._previous_first

    @property
    def fed_first(self) -> int:
        """The first token of the window of the last fed frame."""
        return self._firsts[-1]

    def feed(
        self, first: int, weights: list[float], best: Floats, top: int, sources: tuple[Floats, Floats, Floats]
    ) -> None:
        """Takes a frame: its window and the weights there, the best paths, and what they came from."""
        self.frames += 1
        self._firsts.append(first)
        self._masses.append(list(accumulate(weights, initial=0.0)))
        self.best, self.top = best, top
        self._sources.append(sources)
        if self.frames >= LAG:
            self._settle(self.frames - LAG, self.trace()[LAG], self.frames)
        self._previous_first, self._first = self._first, max(0, self.token - BEHIND)

    def trace(self) -> list[int]:
        """The tokens of the best path in the last frame, in the one before it, and in the one before that."""
        tokens = [self.top]
        for age in range(1, min(LAG, self.frames) + 1):
            before, two, three = self._sources[-age]
            column = tokens[-1] - self._firsts[-age]
            come = before.item(FRONT + column), before.item(FRONT - 1 + column), two.item(column), three.item(column)
            tokens.append(tokens[-1] - come.index(max(come)))
        return tokens

    def finish(self, text_tokens: int) -> None:
        """Settles the last frames, at the end of a text of `text_tokens`. Tokens that were not reached begin there."""
        tokens = self.trace()[min(LAG - 1, self.frames) :: -1]
        end = self.frames + 1
        for frame, token in enumerate(tokens, end - len(tokens)):
            self._settle(frame, token, min(end, frame + 2))
        self._begin_up_to(text_tokens, end, end)

    def _settle(self, frame: int, token: int, end: int) -> None:
        """Puts a frame on its token. Frames before `end` have told their weights."""
        token = max(self.token, token)
        self._begin_up_to(token, frame, end)
        self.token = token
        at, mass = self._at(frame), 0.0
        column = token - self._firsts[at]
        if 0 <= column < WINDOW:
            masses = self._masses[at]
            mass = masses[column + 1] - masses[column]
        self.log_weights.append(math.log(mass + EPS))

    def _begin_up_to(self, token: int, step: int, end: int) -> None:
        """Notes where the tokens up to this one begin, which the path reaches in frame `step`."""
        if token < len(self.starts):
            return
        begin = max(0, step - 2)
        frames = [(self._firsts[at], self._masses[at]) for at in map(self._at, range(begin, min(end, self.frames + 1)))]
        for number in range(len(self.starts), token + 1):
            start = float(begin)
            for first, mass in frames:
                start += mass[min(max(number - first, 0), WINDOW)]
            self.starts.append(max(start, self.starts[-1]))
            self.steps.append(step)

    def _at(self, frame: int) -> int:
        """The place of a frame among those that are kept."""
        return frame - self.frames - 1 + len(self._firsts)


def feed(paths: SequenceOf[TextPath], scores: SequenceOf[Floats], tokens: SequenceOf[int]) -> None:
    """Takes a further frame of each path.

    `scores` [WINDOW] of each are those of the tokens from `window_from` on. `tokens` is the number of text tokens, with
    tts_eos, that have a position; the others count for nothing.
    """
    firsts = [path.window_from(path.frames) for path in paths]
    weights = softmax(np.array(scores), [known - first for known, first in zip(tokens, firsts, strict=True)])
    before = np.array([path.best for path in paths])
    for at, path in enumerate(paths):
        if shift := firsts[at] - path.fed_first:
            before[at, FRONT:-shift] = before[at, FRONT + shift :]
            before[at, -shift:] = NEVER
    two, three = before[:, 1:-2] + JUMP_2, before[:, :-3] + JUMP_3
    best = np.full(before.shape, NEVER)
    ends = best[:, FRONT:]
    np.maximum(before[:, FRONT:], before[:, FRONT - 1 : -1], ends)
    np.maximum(ends, two, ends)
    np.maximum(ends, three, ends)
    ends += np.log(weights + LEAST)
    tops = ends.argmax(1)
    ends -= _picked(ends, tops)
    for at, (path, first, top, weight) in enumerate(zip(paths, firsts, tops.tolist(), weights.tolist(), strict=True)):
        path.feed(first, weight, best[at], first + top, (before[at], two[at], three[at]))


def softmax(scores: Floats, counts: SequenceOf[int]) -> Floats:
    """The weights of the first `counts` scores of each row, in place."""
    for at, count in enumerate(counts):
        if count < WINDOW:
            scores[at, max(0, count) :] = -np.inf
    scores -= _picked(scores, scores.argmax(1))
    weights: Floats = np.exp(scores, scores)
    weights /= np.add.reduce(weights, 1, keepdims=True)
    return weights


def _picked(values: Floats, columns: NDArray[np.intp]) -> Floats:
    """The value of one column of each row, [rows, 1]."""
    if len(values) == 1:
        column = columns.item()
        return values[:, column : column + 1].copy()
    picked: Floats = values[np.arange(len(values)), columns][:, None]
    return picked
