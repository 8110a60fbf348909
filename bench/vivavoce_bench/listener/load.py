"""The load of a run, and one generator's share of it: sends requests at their times and measures each one.

Open loop: requests arrive as a Poisson process, regardless of earlier answers, as users do.
Closed loop: a fixed number of listeners, each of which asks again after its answer.
Burst: many requests in one moment, again and again, with pauses in which the server comes to rest.

Arrivals, texts and seeds are the same for any number of generators: generator k of n has each n-th request from the
k-th on. Times come from the event loop. A loop with a virtual clock makes a run repeatable.
"""

import asyncio
import itertools
import random
from array import array
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from vivavoce_bench.listener.metrics import Measurement, Request, Timing, measure
from vivavoce_bench.listener.prompts import ClassOrder, TextClass
from vivavoce_bench.listener.reception import Incomplete, Reception
from vivavoce_bench.listener.summary import Summary
from vivavoce_bench.listener.transports import Speaker

LATEST = 50
BURST_EVERY_S = 10.0
Item = TypeVar("Item")
TICK_S = 0.01
"""Seconds between two looks at how late a generator's event loop is."""


@dataclass(frozen=True, slots=True)
class Poisson:
    """Open loop: `rate` requests a second on average."""

    rate: float

    def __str__(self) -> str:
        return f"{self.rate:g} requests/s"


@dataclass(frozen=True, slots=True)
class Closed:
    """Closed loop: `listeners` at once."""

    listeners: int

    def __str__(self) -> str:
        return f"{self.listeners} at once"


@dataclass(frozen=True, slots=True)
class Burst:
    """`requests` in one moment, every `every_s` seconds."""

    requests: int
    every_s: float = BURST_EVERY_S

    def __str__(self) -> str:
        return f"bursts of {self.requests}"


OfferedLoad = Poisson | Closed | Burst


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """The load of one run. `seed` determines arrivals, the order of texts, and the seeds of the requests."""

    load: OfferedLoad
    texts: Sequence[TextClass]
    duration_s: float = 60.0
    warmup_s: float = 30.0
    seed: int = 0
    timeout_s: float = 120.0

    @property
    def end_s(self) -> float:
        return self.warmup_s + self.duration_s

    @property
    def window(self) -> tuple[float, float]:
        """Start and end of the measured time, in seconds from the start of the run."""
        return self.warmup_s, self.end_s


@dataclass(frozen=True, slots=True)
class Share:
    """The share of one generator: every `generators`-th request, from request `number` on."""

    number: int = 0
    generators: int = 1

    def of(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yields the items of this share."""
        return itertools.islice(items, self.number, None, self.generators)

    def listeners(self, all_listeners: int) -> int:
        """Number of listeners in this share."""
        return len(range(self.number, all_listeners, self.generators))


@dataclass(slots=True)
class Counts:
    """Counts of a run in progress, for the progress line."""

    sent: int = 0
    done: int = 0
    failed: int = 0
    ttfa_ms: deque[float] = field(default_factory=lambda: deque(maxlen=LATEST))
    """Times to first audio of the latest requests."""

    @property
    def in_flight(self) -> int:
        return self.sent - self.done


@dataclass(frozen=True, slots=True)
class GeneratorFacts:
    """Facts about one generator during the measured time."""

    cores: float
    """CPU time over time: the share of a core that it took."""
    tick_late_ms: Sequence[float]
    """Lateness of its event loop, looked at every TICK_S."""


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run: its plan, its figures, those of each request, and its generators."""

    plan: LoadPlan
    summary: Summary
    measurements: Iterable[Measurement]
    """In the order in which each generator finished them."""
    generators: Sequence[GeneratorFacts]
    started_at_s: float
    """Start of the run, from which its moments count, in seconds since 1970."""


def due_times(plan: LoadPlan, warmup: bool) -> Iterator[float]:
    """Yields the times of all requests of an open loop or of bursts, in the warm-up or in the measured time."""
    start_s, end_s = (0.0, plan.warmup_s) if warmup else plan.window
    match plan.load:
        case Poisson(rate):
            yield from arrivals(rate, start_s, end_s, f"{plan.seed}/{warmup}")
        case Burst(requests, every_s):
            for number in itertools.count():
                if (at_s := start_s + number * every_s) >= end_s:
                    break
                yield from itertools.repeat(at_s, requests)


def arrivals(rate: float, start_s: float, end_s: float, seed: str) -> Iterator[float]:
    """Yields the times of a Poisson process from `start_s` to `end_s`. The same seed gives the same times."""
    draw = random.Random(seed)
    at_s = start_s + draw.expovariate(rate)
    while at_s < end_s:
        yield at_s
        at_s += draw.expovariate(rate)


class Generator:
    """One generator's share of a run. `done` takes each measurement as soon as it is there; none is kept."""

    def __init__(self, plan: LoadPlan, share: Share, speaker: Speaker, done: Callable[[Measurement], None]) -> None:
        self._plan = plan
        self._share = share
        self._speaker = speaker
        self._done = done
        self.counts = Counts()
        self.tick_late_ms = array("d")
        """Lateness of the event loop in the measured time, looked at every TICK_S."""
        self._orders = {warmup: ClassOrder(plan.texts, f"{plan.seed}/{warmup}") for warmup in (True, False)}
        self._now = asyncio.get_running_loop().time
        self._timing = Timing(self._now(), plan.window)

    async def run(self, start_s: float | None = None) -> None:
        """Sends all requests of the share and waits for each answer. Starts at `start_s` of the clock, or at once."""
        if start_s is not None:
            await asyncio.sleep(start_s - self._now())
            self._timing = Timing(start_s, self._plan.window)
        else:
            self._timing = Timing(self._now(), self._plan.window)
        async with self._watched():
            if isinstance(self._plan.load, Closed):
                await self._closed_loop(self._plan.load.listeners)
            else:
                await self._open_loop()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start of the run."""
        return self._now() - self._timing.started_s

    async def _open_loop(self) -> None:
        async with asyncio.TaskGroup() as group:
            async for request in self._as_due():
                group.create_task(self._ask(request))

    async def _as_due(self) -> AsyncIterator[Request]:
        for warmup in (True, False):
            for index, due_s in self._share.of(enumerate(due_times(self._plan, warmup))):
                pause_s = due_s - self.elapsed_s
                if pause_s > 0:
                    await asyncio.sleep(pause_s)
                yield self._request(index, due_s, warmup)

    async def _closed_loop(self, listeners: int) -> None:
        share = self._share
        numbers = {warmup: itertools.count(share.number, share.generators) for warmup in (True, False)}

        async def listen() -> None:
            while (at_s := self.elapsed_s) < self._plan.end_s:
                warmup = at_s < self._plan.warmup_s
                measurement = await self._ask(self._request(next(numbers[warmup]), at_s, warmup))
                if (
                    measurement.error is not None
                ):  # the run is invalid, and a server that refuses at once would be asked in a tight loop
                    return

        async with asyncio.TaskGroup() as group:
            for _ in range(share.listeners(listeners)):
                group.create_task(listen())

    def _request(self, index: int, due_s: float, warmup: bool) -> Request:
        text_class, _ = self._orders[warmup][index]
        return Request(index, due_s, warmup, text_class)

    async def _ask(self, request: Request) -> Measurement:
        begun_s = self.elapsed_s
        self.counts.sent += 1
        reception = Reception()
        (_, text), seed = self._orders[request.warmup][request.index], self._plan.seed + request.index
        error = None
        try:
            async with asyncio.timeout(self._plan.timeout_s):
                await self._speaker.speak(text, seed, reception)
        except Incomplete as incomplete:
            error = str(incomplete)
        except TimeoutError:
            error = f"it was not complete after {self._plan.timeout_s:g} s"
        measurement = measure(request, begun_s, reception, error, self._timing)
        self._done(measurement)
        self.counts.done += 1
        self.counts.failed += measurement.error is not None
        if measurement.ttfa_ms is not None:
            self.counts.ttfa_ms.append(measurement.ttfa_ms)
        return measurement

    @asynccontextmanager
    async def _watched(self) -> AsyncIterator[None]:
        """Looks, while the block runs, how late the event loop is: as late as this is all that it sends and notes."""

        async def watch() -> None:
            start_s, end_s = self._plan.window
            await asyncio.sleep(start_s - self.elapsed_s)
            for number in itertools.count(1):
                due_s = start_s + number * TICK_S
                if due_s >= end_s:
                    break
                await asyncio.sleep(due_s - self.elapsed_s)
                self.tick_late_ms.append(1000 * max(0.0, self.elapsed_s - due_s))

        watching = asyncio.create_task(watch())
        try:
            yield
        finally:
            watching.cancel()
