"""A run: sends requests at their times and measures each one.

Open loop: requests arrive as a Poisson process, regardless of earlier answers, as users do.
Closed loop: a fixed number of listeners, each of which asks again after its answer.
Times come from the event loop. A loop with a virtual clock makes a run repeatable.
"""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field

from vivavoce_bench.listener.metrics import Measurement, Request, Summary, measure, summarize
from vivavoce_bench.listener.prompts import PromptOrder
from vivavoce_bench.listener.reception import Incomplete, Reception
from vivavoce_bench.listener.transports import Speaker


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


OfferedLoad = Poisson | Closed


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """The load of one run. `seed` determines arrivals, the order of texts, and the seeds of the requests."""

    load: OfferedLoad
    texts: Sequence[str]
    duration_s: float = 60.0
    warmup_s: float = 30.0
    seed: int = 0
    timeout_s: float = 120.0

    @property
    def end_s(self) -> float:
        return self.warmup_s + self.duration_s


@dataclass(slots=True)
class Counts:
    """Counts of a run in progress, for the progress line."""

    started_s: float = 0.0
    sent: int = 0
    done: int = 0
    failed: int = 0
    peak_in_flight: int = 0
    ttfa_ms: list[float] = field(default_factory=list)

    @property
    def in_flight(self) -> int:
        return self.sent - self.done


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run: its plan, its figures, and those of each request."""

    plan: LoadPlan
    summary: Summary
    measurements: tuple[Measurement, ...]


def arrivals(rate: float, start_s: float, end_s: float, seed: str) -> Iterator[float]:
    """Yields the times of a Poisson process from `start_s` to `end_s`. The same seed gives the same times."""
    draw = random.Random(seed)
    at_s = start_s + draw.expovariate(rate)
    while at_s < end_s:
        yield at_s
        at_s += draw.expovariate(rate)


async def run_load(plan: LoadPlan, speaker: Speaker, counts: Counts | None = None) -> Run:
    """Sends all requests of a plan, waits for each answer, and summarises them."""
    runner = _Runner(plan, speaker, counts or Counts())
    match plan.load:
        case Poisson(rate):
            await runner.open_loop(rate)
        case Closed(listeners):
            await runner.closed_loop(listeners)
    measurements = tuple(sorted(runner.measurements, key=lambda each: (not each.warmup, each.index)))
    summary = summarize(measurements, (plan.warmup_s, plan.end_s), runner.counts.peak_in_flight)
    return Run(plan, summary, measurements)


class _Runner:
    def __init__(self, plan: LoadPlan, speaker: Speaker, counts: Counts) -> None:
        self._plan = plan
        self._speaker = speaker
        self.counts = counts
        self.measurements: list[Measurement] = []
        self._orders = {warmup: PromptOrder(plan.texts, f"{plan.seed}/{warmup}") for warmup in (True, False)}
        self._now = asyncio.get_running_loop().time
        self.counts.started_s = self._started_s = self._now()

    async def open_loop(self, rate: float) -> None:
        async with asyncio.TaskGroup() as group:
            async for request in self._as_due(rate):
                group.create_task(self._ask(request))

    async def _as_due(self, rate: float) -> AsyncIterator[Request]:
        plan = self._plan
        for warmup, start_s, end_s in ((True, 0.0, plan.warmup_s), (False, plan.warmup_s, plan.end_s)):
            for index, due_s in enumerate(arrivals(rate, start_s, end_s, f"{plan.seed}/{warmup}")):
                await asyncio.sleep(self._started_s + due_s - self._now())
                yield Request(index, due_s, warmup)

    async def closed_loop(self, listeners: int) -> None:
        numbers = {True: itertools.count(), False: itertools.count()}

        async def listen() -> None:
            while (at_s := self._now() - self._started_s) < self._plan.end_s:
                warmup = at_s < self._plan.warmup_s
                measurement = await self._ask(Request(next(numbers[warmup]), at_s, warmup))
                if (
                    measurement.error is not None
                ):  # the run is invalid, and a server that refuses at once would be asked in a tight loop
                    return

        async with asyncio.TaskGroup() as group:
            for _ in range(listeners):
                group.create_task(listen())

    async def _ask(self, request: Request) -> Measurement:
        self.counts.sent += 1
        self.counts.peak_in_flight = max(self.counts.peak_in_flight, self.counts.in_flight)
        reception = Reception()
        text, seed = self._orders[request.warmup][request.index], self._plan.seed + request.index
        error = None
        try:
            async with asyncio.timeout(self._plan.timeout_s):
                await self._speaker.speak(text, seed, reception)
        except Incomplete as incomplete:
            error = str(incomplete)
        except TimeoutError:
            error = f"it was not complete after {self._plan.timeout_s:g} s"
        measurement = measure(request, self._started_s, reception, error)
        self.measurements.append(measurement)
        self.counts.done += 1
        self.counts.failed += measurement.error is not None
        if measurement.ttfa_ms is not None:
            self.counts.ttfa_ms.append(measurement.ttfa_ms)
        return measurement
