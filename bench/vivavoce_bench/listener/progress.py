"""Progress of a run, as one line. On a terminal the line is updated in place."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TextIO

from vivavoce_bench.listener.load import Counts, LoadPlan
from vivavoce_bench.listener.metrics import percentile

TERMINAL_EVERY_S = 0.5
FILE_EVERY_S = 10.0
LATEST = 50


def progress_line(plan: LoadPlan, counts: Counts, elapsed_s: float) -> str:
    """State of a run. The time to first audio is the median of the latest requests."""
    if elapsed_s < plan.warmup_s:
        phase = "warm-up"
    else:
        phase = "measuring" if elapsed_s < plan.end_s else "waiting for the last"
    latest = counts.ttfa_ms[-LATEST:]
    ttfa = f", first audio {percentile(latest, 50):.0f} ms" if latest else ""
    failed = f", {counts.failed} FAILED" if counts.failed else ""
    return (
        f"{plan.load}: {phase} {elapsed_s:.0f}/{plan.end_s:.0f} s, {counts.sent} sent, {counts.in_flight} in flight, "
        f"{counts.done} done{failed}{ttfa}"
    )


@asynccontextmanager
async def shown(plan: LoadPlan, counts: Counts, stream: TextIO = sys.stderr) -> AsyncIterator[None]:
    """Shows the counts while the block runs."""
    in_place = stream.isatty()
    loop = asyncio.get_running_loop()

    async def show() -> None:
        while True:
            await asyncio.sleep(TERMINAL_EVERY_S if in_place else FILE_EVERY_S)
            line = progress_line(plan, counts, loop.time() - counts.started_s)
            print(f"\r\x1b[K{line}" if in_place else line, end="" if in_place else "\n", file=stream, flush=True)

    showing = asyncio.create_task(show())
    try:
        yield
    finally:
        showing.cancel()
        if in_place:
            print("\r\x1b[K", end="", file=stream, flush=True)
