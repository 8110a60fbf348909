"""`python -m tests.soak --minutes 3`: mixed traffic past what the machine can do, against a server process of its own.

The rate of requests rises until the server refuses some, so that a fast machine is past its capacity too.
Every request must have an honest end (endings.py). Afterwards the server must hold what it held after a warm-up:
memory, threads, file descriptors, rows. Times are reported, and checked only if the server promises a bound. The same
seed gives the same requests. Prints a report, and exits with 1 if anything was lost. Loopback only.
"""

import argparse
import asyncio
import contextlib
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx
from vivavoce_engine.voices.registry import MAX_WAITING

from tests.soak.endings import Ending, latencies, percentile, table
from tests.soak.server import soaked_server
from tests.soak.traffic import KINDS, Client, Kind, leaving, leaving_live
from tests.soak.watched import Held, gauges, held_by

MAX_AT_ONCE = 150
GIVE_UP_S = 300.0
"""A request that has no end by then hangs."""
REST_S = 8.0
"""After the last request: connections that are kept alive are closed by then."""
RSS_SHARE, RSS_MIB = 0.10, 48.0
"""How much more memory may be held than after the warm-up: what an allocator keeps."""
MORE_THREADS = 2 * MAX_WAITING + 4 + (os.cpu_count() or 1)
"""Of two pools of fixed size that make a thread when it is first needed: asyncio's, and the one that finds voices."""
TTFA_SLACK_S = 10.0
ABORTS_AT_ONCE = 10
TRIAL_S, TRIAL_FACTOR, MOST_A_SECOND = 8.0, 1.5, 100.0
"""A trial of a rate of requests, and by how much the next one is faster."""
REFUSED_SHARE = 0.1
"""What a trial past capacity is refused: one refusal alone may be a burst."""


class Run:
    """Requests against one server; `endings` has each."""

    def __init__(self, http: httpx.AsyncClient, seed: int) -> None:
        self._http = http
        self._seed = seed
        self._number = 0
        self._running: set[asyncio.Task[None]] = set()
        self.endings: list[Ending] = []

    def start(self, kind: Kind) -> None:
        self._number += 1
        client = Client(self._http, random.Random(f"{self._seed}.{self._number}"))
        task = asyncio.create_task(self._follow(kind, client))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _follow(self, kind: Kind, client: Client) -> None:
        try:
            async with asyncio.timeout(GIVE_UP_S):
                ending = await kind(client)
        except Exception as error:  # whatever it is: nobody foresaw it
            ending = Ending(kind.__name__, "LOST", f"{type(error).__name__}: {error}")
        self.endings.append(ending)

    @property
    def at_once(self) -> int:
        return len(self._running)

    async def finish(self) -> None:
        while self._running:
            await asyncio.wait(self._running)

    async def arrive(self, seconds: float, a_second: float) -> None:
        """Requests of all kinds come at random moments, whether those before them have ended or not."""
        moments = random.Random(f"{self._seed}.moments")
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            (kind,) = moments.choices(list(KINDS), list(KINDS.values()))
            if self.at_once < MAX_AT_ONCE:
                self.start(kind)
            await asyncio.sleep(moments.expovariate(a_second))
        await self.finish()

    async def arrive_past_capacity(self, a_second: float) -> float:
        """Raise the rate until a share of a trial's requests is refused; returns that rate, requests a second."""
        while a_second < MOST_A_SECOND:
            a_second = min(MOST_A_SECOND, a_second * TRIAL_FACTOR)
            before = len(self.endings)
            await self.arrive(TRIAL_S, a_second)
            tried = self.endings[before:]
            if sum(ending.outcome == "refused" for ending in tried) >= REFUSED_SHARE * len(tried):
                break
        return a_second

    async def abort(self, count: int) -> None:
        """Requests whose clients leave at random moments, until so many have."""
        kinds = random.Random(f"{self._seed}.aborts")
        left: Callable[[], int] = lambda: sum(ending.outcome == "left" for ending in self.endings)  # noqa: E731
        while left() < count:
            while self.at_once < ABORTS_AT_ONCE:
                self.start(kinds.choice((leaving, leaving, leaving_live)))
            await asyncio.sleep(0.02)
        await self.finish()


async def at_rest(http: httpx.AsyncClient, pid: int, faults: list[str]) -> Held:
    """What the server holds when all requests have ended."""
    for _ in range(300):
        left = await gauges(http)
        if not any(left.values()):
            break
        await asyncio.sleep(0.2)
    else:
        faults.append(f"not idle a minute after the last request: {left}")
    await asyncio.sleep(REST_S)
    return held_by(pid)


def compare(name: str, before: Held, after: Held, faults: list[str]) -> None:
    if after.rss_mib > before.rss_mib * (1 + RSS_SHARE) + RSS_MIB:
        faults.append(f"{name}: memory grew from {before.rss_mib:.0f} to {after.rss_mib:.0f} MiB")
    if after.threads > before.threads + MORE_THREADS:
        faults.append(f"{name}: threads grew from {before.threads} to {after.threads}")
    if after.files > before.files:
        faults.append(f"{name}: file descriptors grew from {before.files} to {after.files}")


def report(title: str, endings: Sequence[Ending], max_wait_s: float, faults: list[str]) -> None:
    print(f"\n## {title}\n\n{table(endings)}\n")
    heard = [ending.ttfa_s for ending in endings if ending.ttfa_s is not None]
    refused = [ending.refused_s for ending in endings if ending.refused_s is not None]
    print(latencies("first audio of what was admitted", heard))
    print(latencies("refusals (429)", refused), flush=True)
    if percentile(heard, 0.95) > max_wait_s + TTFA_SLACK_S:
        faults.append(f"{title}: what was admitted waited longer than the {max_wait_s:g} s that it may")
    faults += [f"{ending.kind}: {ending.detail}" for ending in endings if ending.outcome == "LOST"]


async def soak(options: argparse.Namespace, url: str, pid: int) -> list[str]:
    """The whole run; returns what went wrong."""
    faults: list[str] = []
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
    async with httpx.AsyncClient(base_url=url, timeout=GIVE_UP_S, limits=limits, trust_env=False) as http:
        warm = Run(http, options.seed + 1)
        await warm.arrive(max(5.0, min(45.0, options.minutes * 15)), options.a_second)
        a_second = await warm.arrive_past_capacity(options.a_second)
        faults += [f"{ending.kind}: {ending.detail}" for ending in warm.endings if ending.outcome == "LOST"]
        before = await at_rest(http, pid, faults)
        print(f"after {len(warm.endings)} requests to warm up: {before}", flush=True)

        run = Run(http, options.seed)
        await run.arrive(options.minutes * 60, a_second)
        after = await at_rest(http, pid, faults)
        report(f"{options.minutes:g} minutes, {a_second:.1f} requests a second", run.endings, options.wait, faults)
        print(f"the server held {before}; now {after}", flush=True)
        compare("mixed traffic", before, after, faults)
        if not any(ending.outcome == "refused" for ending in run.endings):
            faults.append("nothing was refused: this was not past the machine's capacity")

        if options.aborts:
            aborts = Run(http, options.seed + 2)
            await aborts.abort(options.aborts)
            after = await at_rest(http, pid, faults)
            report(f"{options.aborts} requests that were aborted", aborts.endings, options.wait, faults)
            print(f"the server held {before}; now {after}", flush=True)
            compare("aborts", before, after, faults)
    return faults


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="of mixed traffic")
    parser.add_argument(
        "--a-second",
        type=float,
        default=3.0,
        help="requests that arrive in a second while the server warms up; then the rate rises until it refuses some",
    )
    parser.add_argument("--aborts", type=int, default=2000, help="requests whose clients leave, after that")
    parser.add_argument("--wait", type=float, default=10.0, help="the server's --max-wait-s")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", help="instead of the shipped voice")
    options = parser.parse_args(arguments)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        process, url = stack.enter_context(soaked_server(folder, options.wait, options.model))
        faults = asyncio.run(soak(options, url, process.pid))
        process.send_signal(signal.SIGTERM)
        if (status := process.wait(60)) != 0:
            faults.append(f"the server ended with {status}")
        log = (folder / "log").read_text(encoding="utf-8", errors="replace")
    lines = log.splitlines()
    for number, line in enumerate(lines):
        if "Traceback" in line:
            faults.append("the server's log: " + " / ".join(lines[max(0, number - 1) : number + 60]))
    for fault in faults[:50]:
        print("LOST", fault)
    print(f"lost: {len(faults)}", flush=True)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
