"""The requests that wait for a row: whose they are, in which order they start, and when.

Torch-free, without a clock of its own. The rates are measured by the loop (admission.py).
"""

import heapq
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

SMOOTHING = 0.1
"""Weight of a new measurement."""
FIRST_FRAMES_PER_TOKEN = 4.0
FIRST_FRAMES_PER_S = 25.0
"""Assumed before anything has been measured: English text, spoken at twice real time."""
SOON_FRAMES = 1.0
"""Frames that a running utterance is taken to need still when it is longer than was estimated."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request that waits: its client, the estimated frames of its speech, and those of the silence between.

    Silence holds no row, so nobody waits for it. It counts where the audio that is promised has a limit.
    """

    client: str
    frames: float
    silent_frames: float = 0.0

    def __reduce__(self) -> tuple[type["Waiting"], tuple[str, float, float]]:
        """Pickles the values alone: reports to all fronts hold the whole queue."""
        return Waiting, (self.client, self.frames, self.silent_frames)

    @property
    def audio_frames(self) -> float:
        return self.frames + self.silent_frames


@dataclass(frozen=True, slots=True)
class Backlog:
    """A number of requests, and the estimated frames of their speech together."""

    requests: int = 0
    frames: float = 0.0

    @staticmethod
    def of(waiting: Iterable[Waiting]) -> "Backlog":
        each = list(waiting)
        return Backlog(len(each), math.fsum(request.frames for request in each))


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates measured so far, as running means."""

    frames_per_token: float = FIRST_FRAMES_PER_TOKEN
    frames_per_s: float = FIRST_FRAMES_PER_S

    def after_step(self, frames: int, seconds: float) -> "Rates":
        """The rates after a step that made `frames` in `seconds`."""
        change = SMOOTHING * (frames / max(seconds, 1e-6) - self.frames_per_s)
        return replace(self, frames_per_s=self.frames_per_s + change)

    def after_utterance(self, text_tokens: int, frames: int) -> "Rates":
        """The rates after an utterance that ended by itself."""
        change = SMOOTHING * (frames / text_tokens - self.frames_per_token)
        return replace(self, frames_per_token=self.frames_per_token + change)


@dataclass(frozen=True, slots=True)
class LoopState:
    """A loop's account of itself, for one of its fronts, which decides by it."""

    rates: Rates
    running: int = 0
    """Rows in use."""
    left_queue: int = 0
    """Requests of this front that have left the queue so far, in whatever way."""
    queued: tuple[int | Waiting, ...] = ()
    """The requests in the queue, in the order of their arrival: ids of this front's, and those of others."""
    busy: tuple[tuple[str, float], ...] = ()
    """Client of each row in use, and the estimated seconds until the row is free. Empty while the queue is."""
    steps: int = 0
    frames: int = 0
    short_of_pages: bool = False
    """True while the next request in the queue waits for pages of the KV cache, though rows may be free."""

    def rows_free(self, rows: int) -> int:
        """Number of waiting requests that are about to start."""
        return 0 if self.short_of_pages else rows - self.running


class Accepted:
    """The requests that a front has accepted. Its loop tells which of them have left the queue."""

    def __init__(self) -> None:
        self.requests = 0
        """All requests accepted so far."""
        self._queued: dict[int, Waiting] = {}

    def add(self, utterance_id: int, request: Waiting) -> None:
        self.requests += 1
        self._queued[utterance_id] = request

    def waiting(self, state: LoopState) -> int:
        """Number of requests in the queue, those of other fronts too, and of those on their way to it from here."""
        return len(state.queued) + max(0, self._underway(state))

    def queued(self, state: LoopState) -> tuple[Waiting, ...]:
        """The requests in the queue, and those on their way to it from here, in the order of their arrival."""
        underway = self._underway(state)
        newest = list(self._queued)[-underway:] if underway > 0 else []
        known = {each for each in state.queued if isinstance(each, int)}
        each_in_turn = (*state.queued, *(number for number in newest if number not in known))
        before = self._queued
        self._queued = {each: before[each] for each in each_in_turn if isinstance(each, int) and each in before}
        return tuple(
            each if isinstance(each, Waiting) else before[each]
            for each in each_in_turn
            if isinstance(each, Waiting) or each in before
        )

    def _underway(self, state: LoopState) -> int:
        return self.requests - state.left_queue - sum(isinstance(each, int) for each in state.queued)


@dataclass(frozen=True, slots=True)
class Line:
    """The queue of one engine, and its rows.

    `queued` are its requests in the order of arrival. The first `rows_free` of them in turn are about to start, and
    the others wait. `busy` are the rows in use, as in LoopState.
    """

    queued: tuple[Waiting, ...]
    busy: tuple[tuple[str, float], ...]
    rows_free: int
    rows_running: int
    rates: Rates

    @staticmethod
    def of(accepted: Accepted, state: LoopState, rows: int) -> "Line":
        """The line of a front that has accepted these requests."""
        free = max(0, state.rows_free(rows))
        return Line(accepted.queued(state), state.busy, free, state.running, state.rates)

    @property
    def waiting(self) -> list[Waiting]:
        """The requests that find no row free, in the order of their turns."""
        if len(self.queued) <= self.rows_free:
            return []
        return [request for _, request in self._turns()[self.rows_free :]]

    def wait_s(self, client: str) -> float:
        """Seconds that a newcomer waits for those that wait and have their turns before it."""
        level = self._rows_of()[client] + sum(request.client == client for request in self.queued)
        ahead = [request.frames for turn, request in self._turns()[self.rows_free :] if turn <= level]
        return math.fsum(ahead) / self.rates.frames_per_s

    def starts(self) -> list[tuple[float, Waiting]]:
        """The requests that find no row free, each with the seconds until its turn."""
        turns = self._turns()
        if len(turns) <= self.rows_free:
            return []
        rows = max(1, self.rows_free + max(self.rows_running, len(self.busy)))
        frame_s = rows / self.rates.frames_per_s
        mean_s = math.fsum(request.frames for request in self.queued) / len(self.queued) * frame_s
        ends_s = [0.0] * self.rows_free + [seconds for _, seconds in self.busy]
        # Rows that have begun since the last account: on the average, half of their speech is made.
        ends_s += [mean_s / 2] * (rows - len(ends_s))
        heapq.heapify(ends_s)
        starts = []
        for _, request in turns:
            start_s = heapq.heappop(ends_s)
            heapq.heappush(ends_s, start_s + request.frames * frame_s)
            starts.append((start_s, request))
        return starts[self.rows_free :]

    def start_s(self, client: str) -> float:
        """Seconds until a newcomer has its turn."""
        newcomer = Waiting(client, 0.0)
        starts = replace(self, queued=(*self.queued, newcomer)).starts()
        return next((seconds for seconds, request in starts if request is newcomer), 0.0)

    def _rows_of(self) -> Counter[str]:
        return Counter(client for client, _ in self.busy)

    def _turns(self) -> list[tuple[int, Waiting]]:
        """The queued requests in the order in which the scheduler starts them: the client with the fewest rows first.

        Each has the number of rows that its client has then, if none of them ends before.
        """
        rows = self._rows_of()
        turns = []
        for request in self.queued:
            turns.append((rows[request.client], request))
            rows[request.client] += 1
        return sorted(turns, key=lambda turn: turn[0])
