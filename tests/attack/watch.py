"""Observation of the attacked server from outside: memory of each process, and its metrics."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.soak.watched import family_of

LOOK_S = 0.02
MIB = 2**20
FATAL_MIB = 3072.0
"""The watch kills a server process that holds more: the machine belongs to others, too."""
LAG = "vivavoce_event_loop_lag_seconds"
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass
class Memory:
    """The most memory of each process of a server, in MiB by process id."""

    most_mib: dict[int, float] = field(default_factory=dict)
    killed: list[int] = field(default_factory=list)

    def look(self, pid: int) -> None:
        with suppress(OSError, IndexError):  # a process may end meanwhile
            for process in family_of(pid):
                with suppress(OSError, IndexError):
                    held = int((process / "statm").read_text().split()[1]) * PAGE_BYTES / MIB
                    self._note(int(process.name), held)

    def _note(self, pid: int, held_mib: float) -> None:
        self.most_mib[pid] = max(held_mib, self.most_mib.get(pid, 0.0))
        if held_mib > FATAL_MIB:
            self.killed.append(pid)
            os.kill(pid, 9)


@contextmanager
def memory_of(pid: int) -> Iterator[Memory]:
    """Looks at the memory of a process and of all below it, many times a second, while the block runs."""
    memory = Memory()
    over = threading.Event()

    def watch() -> None:
        while not over.wait(LOOK_S):
            memory.look(pid)

    memory.look(pid)
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield memory
    finally:
        over.set()
        thread.join()


@dataclass(frozen=True, slots=True)
class Scrape:
    """`lags` counts late heartbeats of the event loop by the upper edge of their bucket, in seconds; cumulative."""

    restarts: float
    lags: dict[float, float]


def parse_metrics(text: str) -> Scrape:
    restarts, lags = 0.0, dict[float, float]()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == "vivavoce_engine_restarts_total":
                restarts += sample.value
            elif sample.name == f"{LAG}_bucket":
                lags[float(sample.labels["le"])] = sample.value
    return Scrape(restarts, lags)


def scrape(http: httpx.Client) -> Scrape:
    return parse_metrics(http.get("/metrics").text)


def largest_lags_s(before: Scrape, after: Scrape, count: int) -> list[float]:
    """Upper edges of the buckets of the `count` largest lags between two scrapes, the largest first."""
    edges = sorted(after.lags)
    grown = [int(after.lags[edge] - before.lags.get(edge, 0.0)) for edge in edges]
    lags_s = [
        edge
        for edge, below, upto in zip(edges, [0, *grown], grown, strict=False)
        for _ in range(min(count, upto - below))
    ]
    return lags_s[::-1][:count]
