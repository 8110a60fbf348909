"""Follows each row's speech through its text: a monotone path through the attention of one head, settled late.

A frame's attention over the text's tokens is a distribution over where the speech is. The path takes one token a frame:
it stays, or goes on by up to three tokens. Each frame is settled LAG frames later and never taken back, so a result
depends on the frames alone. All rows advance in one call.
"""

import math
from collections import deque
from collections.abc import Sequence as SequenceOf

import numpy as np
from numpy.typing import NDArray

WINDOW = 32
"""Tokens whose attention a step tells."""
BEHIND = 6
"""Tokens of the window that are settled already: the attention that is left on them is not yet that of the next."""
LAG = 2
EPS = 1e-4
"""Weight below which a token's attention makes no difference."""
JUMPS = np.log(np.array([1.0, 1.0, 0.3, 0.1], np.float32))[:, None]
"""Log weight of going on by 0, 1, 2 and 3 tokens."""
MOVES = len(JUMPS)
NEVER = np.float32(-1e9)
COLUMNS = np.arange(WINDOW)
SOURCES = COLUMNS + (MOVES - 1) - np.arange(MOVES)[:, None]
"""[moves, tokens]: the state in a row of `_best` from which each move comes."""
KEPT = LAG + 3
"""Frames whose attention is kept: a token's begin takes that of two frames before its step and two from it on."""


class TextPath:
    """The path of one utterance. `starts[j]` is the frame, with its fraction, in which token j begins.

    `steps[j]` is the first frame whose token is j or a later one. The path's frame 0 is at token 0: its attention is
    not known, because the prompt makes it. Step m of the utterance tells that of frame m + 1.
    """

    def __init__(self, row: int) -> None:
        self.row = row
        self.frames = 0
        """Frames behind frame 0 that have been fed: the last one's number."""
        self.token = 0
        """The token of the last settled frame."""
        self.starts = [0.0]
        self.steps = [0]
        self.log_weights: list[float] = []
        """Log weight of its token in each settled frame."""
        self._first = self._previous_first = 0
        self.fed_first = 0
        """The first token of the window of the last fed frame."""
        self.firsts = deque([0], KEPT)
        self.masses = deque([np.array([0.0] + [1.0] * WINDOW)], KEPT)
        """Weight of all tokens before each one of the window, and of all, in each of the last frames."""

    def window_from(self, step: int) -> int:
        """The first token of the window of a step. It follows from the steps up to the last but one, which have ended
        on every device when this one begins."""
        return self._first if self.frames < step else self._previous_first

    def settle(self, token: int, mass: NDArray[np.float64]) -> None:
        """Takes the weights of a fed frame, and the token at which the path was LAG frames earlier."""
        self.frames += 1
        self.firsts.append(self.fed_first)
        self.masses.append(mass)
        if self.frames >= LAG:
            self._settle(self.frames - LAG, token, self.frames)
        self._previous_first, self._first = self._first, max(0, self.token - BEHIND)

    def finish(self, tokens: tuple[int, ...], text_tokens: int) -> None:
        """Settles the last frames, whose tokens these are. Tokens that the path has not reached begin at its end."""
        end = self.frames + 1
        first = end - len(tokens)
        for frame, token in enumerate(tokens, first):
            self._settle(frame, token, min(end, frame + 2))
        self._begin_up_to(text_tokens, end, end)

    def _settle(self, frame: int, token: int, end: int) -> None:
        """Puts a frame on its token. Frames before `end` have told their weights."""
        token = max(self.token, token)
        self._begin_up_to(token, frame, end)
        self.token = token
        at, mass = self._at(frame), 0.0
        column = token - self.firsts[at]
        if 0 <= column < WINDOW:
            mass = float(self.masses[at][column + 1] - self.masses[at][column])
        self.log_weights.append(math.log(mass + EPS))

    def _begin_up_to(self, token: int, step: int, end: int) -> None:
        """Notes where the tokens up to this one begin, which the path reaches in frame `step`."""
        begin = max(0, step - 2)
        frames = [(self.firsts[at], self.masses[at]) for at in map(self._at, range(begin, min(end, self.frames + 1)))]
        for number in range(len(self.starts), token + 1):
            start = float(begin)
            for first, mass in frames:
                start += float(mass[min(max(number - first, 0), WINDOW)])
            self.starts.append(max(start, self.starts[-1]))
            self.steps.append(step)

    def _at(self, frame: int) -> int:
        """The place of a frame among those that are kept."""
        return frame - self.frames - 1 + len(self.firsts)


class TextPaths:
    """The best paths up to the present frame, of all rows. Scores in, settled frames out."""

    def __init__(self, rows: int) -> None:
        self._best = np.full((rows, MOVES - 1 + WINDOW), NEVER, np.float32)
        """Log weight of the best path that ends at each token of the last window, behind columns for none."""
        self._moves = np.zeros((2, rows, WINDOW), np.int8)
        """The tokens by which that path went on in the last frame and in the one before it."""
        self._firsts = np.zeros((2, rows), np.int64)
        """The first token of the windows of these two frames."""

    def begin(self, row: int) -> TextPath:
        """A path for a new utterance in this row."""
        self._best[row] = NEVER
        self._best[row, MOVES - 1] = 0.0
        self._moves[:, row] = 0
        self._firsts[:, row] = 0
        return TextPath(row)

    def feed(self, paths: SequenceOf[TextPath], scores: NDArray[np.float32], tokens: SequenceOf[int]) -> None:
        """Takes a further frame of each path.

        `scores` [paths, WINDOW] are those of the tokens from `window_from` on. `tokens` is the number of text tokens,
        with tts_eos, that have a position; the others count for nothing.
        """
        rows = np.array([path.row for path in paths])
        firsts = np.array([path.window_from(path.frames) for path in paths])
        weights = softmax(scores, np.array(tokens) - firsts)
        best = self._best[rows]
        shifts = firsts - self._firsts[0, rows]
        for at in np.flatnonzero(shifts):
            shift = shifts[at]
            best[at, MOVES - 1 : -shift] = best[at, MOVES - 1 + shift :]
            best[at, -shift:] = NEVER
        candidates = best[:, SOURCES] + JUMPS
        moves = candidates.argmax(1)
        best = candidates.max(1) + np.log(weights + np.float32(EPS))
        best -= best.max(1, keepdims=True)
        self._best[rows, MOVES - 1 :] = best
        self._moves[1, rows], self._firsts[1, rows] = self._moves[0, rows], self._firsts[0, rows]
        self._moves[0, rows], self._firsts[0, rows] = moves, firsts
        masses = np.zeros((len(paths), WINDOW + 1))
        np.cumsum(weights, axis=1, out=masses[:, 1:])
        traces = self._trace(rows, best)
        for at, path in enumerate(paths):
            path.fed_first = int(firsts[at])
            path.settle(int(traces[LAG][at]), masses[at])

    def finish(self, path: TextPath, text_tokens: int) -> None:
        """Settles the last frames of a path, at the end of a text of so many tokens."""
        rows = np.array([path.row])
        traces = self._trace(rows, self._best[rows, MOVES - 1 :])
        path.finish(tuple(int(each[0]) for each in traces[min(LAG - 1, path.frames) :: -1]), text_tokens)

    def _trace(self, rows: NDArray[np.int64], best: NDArray[np.float32]) -> list[NDArray[np.int64]]:
        """The tokens of the best paths in the last frame, in the one before it, and in the one before that."""
        token = self._firsts[0, rows] + best.argmax(1)
        tokens = [token]
        for age in range(LAG):
            token = token - self._moves[age, rows, token - self._firsts[age, rows]]
            tokens.append(token)
        return tokens


def softmax(scores: NDArray[np.float32], counts: NDArray[np.int64]) -> NDArray[np.float32]:
    """The weights of the first `counts` scores of each row."""
    seen = np.where(counts[:, None] > COLUMNS, scores, np.float32(-np.inf))
    weights: NDArray[np.float32] = np.exp(seen - seen.max(1, keepdims=True))
    weights /= weights.sum(1, keepdims=True)
    return weights
