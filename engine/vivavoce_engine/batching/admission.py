"""Admission: the refusal of requests that find no place in the queue, or would wait too long.

While several clients wait, none keeps the others out: a full queue still takes the requests of a client that has less
than its share of it, which is the queue divided by the clients that wait. What has been accepted stays. A client alone
may fill the queue, so a queue of `max_queue` holds at most (1 + 1/2 + 1/3 + … + 1/max_queue) times as many.

The engine's thread records rates and any thread may read them; each figure is one float that one thread writes.
"""

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from vivavoce_engine.batching.line import Line, Rates, Waiting
from vivavoce_engine.config import EngineConfig
from vivavoce_engine.errors import Overloaded

MIN_RETRY_S, MAX_RETRY_S = 1.0, 60.0
"""Limits of the time to come back after. OpenAI's clients take no longer one: they come back within 8 s, twice at most,
and give up."""
MARGIN = 1.2
"""Factor on the time to come back after, because the lengths of speech are estimates."""
LATE_S = 1.0
"""Seconds after its time in which a refused request is still expected back."""
MAX_EXPECTED = 512
"""Most refused requests that are expected back. Further ones are told the same time."""
LOADING_RETRY_S = 5.0
"""Time to come back after while a model loads."""


class _Queue:
    """Requests and frames that wait, by client."""

    def __init__(self, waiting: Iterable[Waiting]) -> None:
        self.requests: Counter[str] = Counter()
        self.frames: defaultdict[str, float] = defaultdict(float)
        self.total_frames = 0.0
        for request in waiting:
            self._count(request, 1)

    def remove(self, request: Waiting) -> None:
        self._count(request, -1)
        if not self.requests[request.client]:
            del self.requests[request.client]

    def callers_with(self, client: str) -> int:
        """Number of clients that wait once this one does."""
        return len(self.requests) + (client not in self.requests)

    def _count(self, request: Waiting, sign: int) -> None:
        self.requests[request.client] += sign
        self.frames[request.client] += sign * request.audio_frames
        self.total_frames += sign * request.audio_frames


class Admission:
    """Accepts requests or refuses them with a time to come back. The loop that measures replaces `rates`."""

    def __init__(self, config: EngineConfig, frame_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_requests = config.max_queue
        self._max_frames = config.max_queue_s / frame_s
        self._clock = clock
        self._refused: dict[str, list[tuple[float, float]]] = {}
        """Time at which each refused request is expected back, and its frames, by client."""
        self.rates = Rates()

    def estimate_frames(self, text_tokens: int, max_frames: int) -> float:
        """Estimated frames of a text's speech."""
        return min(float(max_frames), self.rates.frames_per_token * text_tokens)

    def check(self, line: Line, request: Waiting, max_wait_s: float | None = None, others: Sequence[Line] = ()) -> None:
        """Refuses a request that finds no place behind those that wait, or would wait too long.

        `line` is the queue of this engine, and `others` are those of the engines that share its limits. A client of
        which nothing waits may bring a text of any length.

        Raises:
            Overloaded: the request is refused.
        """
        assert request.frames >= 0
        queue = _Queue(waiting for each in (line, *others) for waiting in each.waiting)
        if (reason := self._no_place(queue, request)) is not None:
            raise self.overloaded(reason, self._place_s(line, others, request))
        wait_s = line.wait_s(request.client)
        if max_wait_s is not None and wait_s > max_wait_s:
            message = f"the wait is about {wait_s:.1f} s, longer than the request allows"
            raise self.overloaded(message, wait_s - max_wait_s)

    def overloaded(self, message: str, retry_after_s: float) -> Overloaded:
        """The refusal, with a time that clients wait."""
        return Overloaded(message, min(MAX_RETRY_S, max(MIN_RETRY_S, retry_after_s)))

    def _no_place(self, queue: _Queue, request: Waiting) -> str | None:
        """The reason why the queue does not take the request; None if it does."""
        requests, callers = queue.requests.total(), queue.callers_with(request.client)
        held, held_frames = queue.requests[request.client], queue.frames[request.client]
        if requests >= self._max_requests and (held + 1) * callers > self._max_requests:
            others = f", {held} of them this caller's, whose share is used up" if callers > 1 else ""
            return f"{requests} requests are waiting already{others}"
        too_long = queue.total_frames + request.audio_frames > self._max_frames
        if held and too_long and (held_frames + request.audio_frames) * callers > self._max_frames:
            return "the texts that are waiting are too long already"
        return None

    def _place_s(self, line: Line, others: Sequence[Line], request: Waiting) -> float:
        """Seconds until the queue has a place for the request, and for those that were refused before it."""
        line = replace(line, queued=(*line.queued, *self._expected(request.client)))
        starts = sorted((start for each in (line, *others) for start in each.starts()), key=lambda start: start[0])
        queue = _Queue(waiting for _, waiting in starts)
        place_s = 0.0
        for place_s, gone in starts:  # noqa: B007  # the last one is used below
            queue.remove(gone)
            if self._no_place(queue, request) is None:
                break
        seconds = min(MAX_RETRY_S, max(MIN_RETRY_S, MARGIN * place_s))
        if sum(map(len, self._refused.values())) < MAX_EXPECTED:
            self._refused.setdefault(request.client, []).append((self._clock() + math.ceil(seconds), request.frames))
        return seconds

    def _expected(self, client: str) -> Iterator[Waiting]:
        """The refused requests that are expected back and have their turns before another one of this client."""
        since_s = self._clock() - LATE_S
        due = {name: [each for each in refused if each[0] > since_s] for name, refused in self._refused.items()}
        self._refused = {name: refused for name, refused in due.items() if refused}
        own = len(self._refused.get(client, ()))
        for name, refused in self._refused.items():
            for _, frames in refused[: None if name == client else own + 1]:
                yield Waiting(name, frames)
