"""Load generators: processes that share the load of a run, so that none is late because of the others' work.

The processes are started once, and take one run after the other. All begin a run at one moment of the machine's
monotonic clock. Each writes its measurements to a file of its own.
"""

import asyncio
import gc
import math
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Self

from vivavoce_client.protocol import VivavoceError

from vivavoce_bench.listener.load import (
    Burst,
    Closed,
    Counts,
    Generator,
    GeneratorFacts,
    LoadPlan,
    OfferedLoad,
    Poisson,
    Run,
    Share,
)
from vivavoce_bench.listener.metrics import Measurement
from vivavoce_bench.listener.servers import Target
from vivavoce_bench.listener.spool import Spool, write_measurement
from vivavoce_bench.listener.summary import summarize
from vivavoce_bench.listener.transports import open_speaker

RATE_EACH, LISTENERS_EACH = 50, 64
"""Requests a second, and listeners at once, for each generator when their number is not given."""
START_DELAY_S = 0.3
"""Time from the order to start until the start, in which each generator prepares."""
REPORT_S = 0.5


class GeneratorFailed(VivavoceError):
    """A generator has ended or failed. The message says how."""


@dataclass(frozen=True, slots=True)
class _Order:
    """A run for a generator: from the parent to each of them."""

    plan: LoadPlan
    target: Target
    start_s: float
    path: Path


@dataclass(frozen=True, slots=True)
class _Ready:
    """A generator can take orders."""


@dataclass(frozen=True, slots=True)
class _Failure:
    """A fault of the generator itself."""

    trace: str


_Report = _Ready | Counts | GeneratorFacts | _Failure


@dataclass(slots=True)
class _Process:
    process: BaseProcess
    connection: Connection
    counts: Counts = field(default_factory=Counts)
    facts: GeneratorFacts | None = None

    def receive(self) -> _Report:
        try:
            report: _Report = self.connection.recv()
        except EOFError:
            self.process.join(REPORT_S)
            raise GeneratorFailed(f"a load generator ended by itself, with {self.process.exitcode}") from None
        if isinstance(report, _Failure):
            raise GeneratorFailed(f"a load generator failed:\n{report.trace}")
        return report


def generators_for(loads: Sequence[OfferedLoad]) -> int:
    """Number of generators for the largest of these loads, and at most half of the cores."""
    return min(max(1, (os.cpu_count() or 1) // 2), max(map(_generators_for, loads)))


def _generators_for(load: OfferedLoad) -> int:
    match load:
        case Poisson(rate):
            return math.ceil(rate / RATE_EACH)
        case Closed(requests) | Burst(requests):
            return math.ceil(requests / LISTENERS_EACH)


class Generators:
    """`count` processes, which run while the block does. `show` is called with the counts of a run now and then."""

    def __init__(self, count: int, show: Callable[[LoadPlan, float, Sequence[Counts]], None]) -> None:
        self._count = count
        self._show = show
        self._processes: list[_Process] = []
        self._folder = TemporaryDirectory(prefix="vivavoce-load-")
        self._runs = 0

    def __enter__(self) -> Self:
        context = multiprocessing.get_context("spawn")
        for number in range(self._count):
            mine, its = context.Pipe()
            process = context.Process(target=serve, args=(its, Share(number, self._count)), daemon=True)
            process.start()
            its.close()
            self._processes.append(_Process(process, mine))
        for each in self._processes:
            each.receive()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for each in self._processes:
            each.connection.close()
            each.process.terminate()
        for each in self._processes:
            each.process.join()
        self._folder.cleanup()

    def run(self, plan: LoadPlan, target: Target) -> Run:
        """Runs a load. Its measurements can be read until the block ends.

        Raises:
            GeneratorFailed: a generator has failed, which is no fault of the server.
        """
        self._runs += 1
        start_s, started_at_s = time.monotonic() + START_DELAY_S, time.time() + START_DELAY_S
        paths = []
        for number, each in enumerate(self._processes):
            paths.append(Path(self._folder.name) / f"{self._runs}-{number}")
            each.counts, each.facts = Counts(), None
            each.connection.send(_Order(plan, target, start_s, paths[-1]))
        while running := {each.connection: each for each in self._processes if each.facts is None}:
            for connection in wait(list(running), timeout=REPORT_S):
                assert isinstance(connection, Connection)
                match running[connection].receive():
                    case Counts() as counts:
                        running[connection].counts = counts
                    case GeneratorFacts() as facts:
                        running[connection].facts = facts
            self._show(plan, time.monotonic() - start_s, [each.counts for each in self._processes])
        spool = Spool(paths)
        summary = summarize(spool, plan.window, bursts=isinstance(plan.load, Burst))
        generators = [each.facts for each in self._processes if each.facts is not None]
        return Run(plan, summary, spool, generators, started_at_s)


def serve(connection: Connection, share: Share) -> None:
    """The work of a generator's process: takes orders until the parent closes the connection."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends its generators
    gc.freeze()  # a collection of all that was imported would make the loop late
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        connection.send(_Ready())
        while True:
            order: _Order = connection.recv()
            try:
                connection.send(asyncio.run(_carry_out(order, share, connection)))
            except (BrokenPipeError, ConnectionResetError):
                raise
            except BaseException:
                connection.send(_Failure(traceback.format_exc()))
                raise


async def _carry_out(order: _Order, share: Share, connection: Connection) -> GeneratorFacts:
    with order.path.open("w", encoding="utf-8") as file:

        def done(measurement: Measurement) -> None:
            write_measurement(file, measurement)

        async with open_speaker(order.target) as speaker:
            generator = Generator(order.plan, share, speaker, done)
            started_cpu_s = time.process_time()
            async with asyncio.TaskGroup() as group:  # without a parent to report to, the run ends
                reporting = group.create_task(_report(generator, connection))
                await generator.run(order.start_s)
                reporting.cancel()
            cores = (time.process_time() - started_cpu_s) / max(generator.elapsed_s, sys.float_info.epsilon)
            connection.send(generator.counts)
            return GeneratorFacts(cores, generator.tick_late_ms)


async def _report(generator: Generator, connection: Connection) -> None:
    while True:
        await asyncio.sleep(REPORT_S)
        connection.send(generator.counts)
