"""A run as tables for people, and as JSON for programs."""

import os
import platform
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from vivavoce_bench.listener.load import Burst, Closed, Poisson, Run
from vivavoce_bench.listener.metrics import BUFFERS_MS, Distribution, Measurement, Stalls, distribution
from vivavoce_bench.listener.player import Gap
from vivavoce_bench.listener.servers import Target
from vivavoce_bench.listener.summary import Heard, Summary

LAG_LIMIT_MS = 5.0
"""Largest p95 of a generator's lateness with which its times are the server's alone."""
COLUMNS = (
    "load",
    "requests",
    "TTFB p50/p95",
    "TTFA p50/p95 ms",
    "lead p50",
    "safe start p50/p95",
    "end p50/p95 ms",
    "RTF p50/p95",
    "audio s/s",
    "dry",
    *(f"{buffer_ms} ms" for buffer_ms in BUFFERS_MS),
    "in flight",
)
LEGEND = """\
TTFA: time to the first audible sample, leading silence (lead) included. Safe start: earliest time at which a player
can start that then never runs dry. RTF: time over length of the audio. Audio s/s: audio received per second.
dry, 100 ms to 1000 ms: requests whose player ran dry, and for how long in all, if it starts with the first sample, or
once it holds so much audio."""


def table(runs: Sequence[Run]) -> str:
    """The figures of runs, with those of each class of texts, and what makes a run invalid or its times doubtful."""
    rows = [list(COLUMNS)]
    for run in runs:
        rows.append(_row(str(run.plan.load), run.summary, run.summary))
        if len(run.summary.classes) > 1:
            rows += [_row(f"  {name}", heard, None) for name, heard in run.summary.classes.items()]
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    notes = [note for run in runs for note in _notes(run)]
    return "\n".join([*lines, *notes, LEGEND])


def _notes(run: Run) -> Iterator[str]:
    for burst in run.summary.bursts:
        last = "-" if burst.last_first_audio_ms is None else f"{burst.last_first_audio_ms:.0f} ms"
        told = f"{burst.heard} of {burst.requests} heard, the last after {last}, {burst.underrun_requests} ran dry"
        yield f"burst at {burst.at_s:g} s: {told}"
    lag_ms = generator_lag_ms(run)
    cores = ", ".join(f"{each.cores:.2f}" for each in run.generators)
    yield f"{run.plan.load}: own lag p95 {_number(lag_ms, 1)} ms; the generators took {cores} of a core"
    if not is_on_time(run):
        yield (
            f"NOT ON TIME at {run.plan.load}: the generators themselves were late, by more than {LAG_LIMIT_MS:g} ms in "
            "one case of 20, and so are these times; take more --generators, or a machine that does nothing else"
        )
    if not run.summary.valid:
        yield f"INVALID at {run.plan.load}: " + "; ".join(run.summary.faults)


def generator_lag_ms(run: Run) -> float | None:
    """The p95 of the generators' own lateness: of their event loops or of requests that were due, which is larger."""
    ticks = _ticks(run)
    late = run.summary.figures.get("late_ms")
    found = [each.p95 for each in (ticks, late) if each is not None]
    return max(found, default=None)


def is_on_time(run: Run) -> bool:
    """True if the generators' own lateness is within LAG_LIMIT_MS."""
    lag_ms = generator_lag_ms(run)
    return lag_ms is None or lag_ms <= LAG_LIMIT_MS


def _ticks(run: Run) -> Distribution | None:
    return distribution([late_ms for each in run.generators for late_ms in each.tick_late_ms])


def _row(name: str, heard: Heard, summary: Summary | None) -> list[str]:
    return [
        name,
        str(heard.requests),
        _pair(heard, "ttfb_ms", 0),
        _pair(heard, "ttfa_ms", 0),
        _one(heard, "leading_silence_ms", "p50", 0),
        _pair(heard, "safe_start_ms", 0),
        _pair(heard, "end_to_end_ms", 0),
        _pair(heard, "rtf", 3),
        "" if summary is None else f"{summary.received_audio_s_per_s:.2f}",
        _dry(heard.underrun_requests, heard.stalled_ms),
        *(_dry(each.requests, each.stalled_ms) for each in heard.buffered.values()),
        "" if summary is None else str(summary.peak_in_flight),
    ]


def _dry(requests: int, stalled_ms: float) -> str:
    return f"{requests} ({stalled_ms:.0f} ms)" if requests else "0"


def _one(heard: Heard, figure: str, which: str, digits: int) -> str:
    found = heard.figures.get(figure)
    return _number(None if found is None else getattr(found, which), digits)


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _pair(heard: Heard, figure: str, digits: int) -> str:
    return f"{_one(heard, figure, 'p50', digits)} / {_one(heard, figure, 'p95', digits)}"


def target_json(target: Target) -> dict[str, Any]:
    """A target without its key."""
    any_text = replace(target, frames_per_char=None)
    return {
        "server": target.kind,
        "url": target.url,
        "transport": target.transport,
        "fields": any_text.body("…", 0) if target.transport != "websocket" else any_text.config(0),
        "frames_per_char": target.frames_per_char,
    }


def run_json(run: Run) -> dict[str, Any]:
    plan = run.plan
    match plan.load:
        case Poisson(rate):
            load = {"poisson_rate": rate}
        case Closed(listeners):
            load = {"listeners": listeners}
        case Burst(requests, every_s):
            load = {"burst": requests, "every_s": every_s}
    ticks = _ticks(run)
    return {
        "load": load,
        "duration_s": plan.duration_s,
        "warmup_s": plan.warmup_s,
        "seed": plan.seed,
        "started_at_s": round(run.started_at_s, 3),
        **rounded(asdict(run.summary)),
        "on_time": is_on_time(run),
        "generators": rounded(
            {
                "lag_p95_ms": generator_lag_ms(run),
                "loop_late_ms": None if ticks is None else asdict(ticks),
                "cores": [each.cores for each in run.generators],
            }
        ),
    }


def environment(program: str) -> dict[str, Any]:
    """The command, the versions and the machine of a measurement. `program` is the command without its arguments."""
    return {
        "command": shlex.join([*program.split(), *sys.argv[1:]]),
        "versions": versions("vivavoce-speech", "h11", "websockets"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }


def versions(*packages: str) -> dict[str, str]:
    """Versions of Python and of those packages that are installed. A checkout on PYTHONPATH is not."""
    found = {"python": platform.python_version()}
    for name in packages:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def request_json(measurement: Measurement) -> dict[str, Any]:
    facts: dict[str, Any] = rounded(asdict(measurement))
    return facts


def measurement_of(request: Mapping[str, Any]) -> Measurement:
    """The measurement that `request_json` wrote."""
    gaps = tuple(Gap(**gap) for gap in request["gaps"])
    buffered = tuple(Stalls(**stalls) for stalls in request["buffered"])
    return Measurement(**{**request, "gaps": gaps, "buffered": buffered})


def rounded(value: Any) -> Any:  # noqa: ANN401 (JSON)
    """Rounds to a thousandth, which is as precise as the clocks are."""
    match value:
        case float():
            return round(value, 3)
        case dict():
            return {key: rounded(item) for key, item in value.items()}
        case list() | tuple():
            return [rounded(item) for item in value]
    return value
