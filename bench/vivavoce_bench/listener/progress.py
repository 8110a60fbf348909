"""Progress of a run, as one line. On a terminal the line is updated in place."""

import sys
from collections.abc import Sequence
from typing import TextIO

from vivavoce_bench.listener.load import Counts, LoadPlan
from vivavoce_bench.listener.metrics import percentile

FILE_EVERY_S = 10.0


def progress_line(plan: LoadPlan, elapsed_s: float, counts: Sequence[Counts]) -> str:
    """State of a run, of all its generators. The time to first audio is the median of the latest requests."""
    if elapsed_s < plan.warmup_s:
        phase = "warm-up"
    else:
        phase = "measuring" if elapsed_s < plan.end_s else "waiting for the last"
    latest = [ttfa_ms for each in counts for ttfa_ms in each.ttfa_ms]
    ttfa = f", first audio {percentile(latest, 50):.0f} ms" if latest else ""
    sent, in_flight, done, failed = (
        sum(getattr(each, name) for each in counts) for name in ("sent", "in_flight", "done", "failed")
    )
    failures = f", {failed} FAILED" if failed else ""
    return (
        f"{plan.load}: {phase} {elapsed_s:.0f}/{plan.end_s:.0f} s, {sent} sent, {in_flight} in flight, "
        f"{done} done{failures}{ttfa}"
    )


class Progress:
    """Shows the progress of runs. A file has a line every FILE_EVERY_S, a terminal one line that changes."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._in_place = self._stream.isatty()
        self._shown_s = 0.0

    def show(self, plan: LoadPlan, elapsed_s: float, counts: Sequence[Counts]) -> None:
        """Shows the state of a run, `elapsed_s` after its start."""
        if self._in_place:
            self._write(f"\r\x1b[K{progress_line(plan, elapsed_s, counts)}")
        elif not 0 <= elapsed_s - self._shown_s < FILE_EVERY_S:
            self._shown_s = max(0.0, elapsed_s)
            if elapsed_s >= FILE_EVERY_S:
                self._write(progress_line(plan, elapsed_s, counts) + "\n")

    def clear(self) -> None:
        """Takes the line off a terminal."""
        if self._in_place:
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
