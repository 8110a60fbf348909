"""A run as a table for people, and as JSON for programs."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from vivavoce_bench.listener.load import Poisson, Run
from vivavoce_bench.listener.metrics import Measurement, Summary
from vivavoce_bench.listener.servers import Target

COLUMNS = (
    ("load", "load"),
    ("requests", "requests"),
    ("TTFB p50/p95", "ttfb_ms"),
    ("TTFA p50/p95 ms", "ttfa_ms"),
    ("lead p50", "leading_silence_ms"),
    ("end p50/p95 ms", "end_to_end_ms"),
    ("RTF p50/p95", "rtf"),
    ("audio s/s", "received"),
    ("underruns", "underruns"),
    ("in flight", "peak"),
    ("lag p95", "lag_ms"),
)
LEGEND = """\
TTFA: time to the first audible sample, leading silence (lead) included. RTF: time over length of the audio.
audio s/s: audio received per second. underruns: requests whose player ran dry, and for how long in all.
lag: lateness of requests."""


def table(runs: Sequence[Run]) -> str:
    rows = [[title for title, _ in COLUMNS], *(_row(run) for run in runs)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    for run in runs:
        if not run.summary.valid:
            lines.append(f"INVALID at {run.plan.load}: " + "; ".join(run.summary.faults))
    return "\n".join([*lines, LEGEND])


def _row(run: Run) -> list[str]:
    summary = run.summary
    return [
        str(run.plan.load),
        str(summary.requests),
        _pair(summary, "ttfb_ms", 0),
        _pair(summary, "ttfa_ms", 0),
        _one(summary, "leading_silence_ms", "p50", 0),
        _pair(summary, "end_to_end_ms", 0),
        _pair(summary, "rtf", 3),
        f"{summary.received_audio_s_per_s:.2f}",
        f"{summary.underrun_requests} ({summary.stalled_ms:.0f} ms)" if summary.underruns else "0",
        str(summary.peak_in_flight),
        _one(summary, "lag_ms", "p95", 1),
    ]


def _one(summary: Summary, figure: str, which: str, digits: int) -> str:
    found = summary.figures.get(figure)
    return "-" if found is None else f"{getattr(found, which):.{digits}f}"


def _pair(summary: Summary, figure: str, digits: int) -> str:
    return f"{_one(summary, figure, 'p50', digits)} / {_one(summary, figure, 'p95', digits)}"


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
    return {
        "load": {"poisson_rate": plan.load.rate} if isinstance(plan.load, Poisson) else asdict(plan.load),
        "duration_s": plan.duration_s,
        "warmup_s": plan.warmup_s,
        "seed": plan.seed,
        **_rounded(asdict(run.summary)),
    }


def request_json(measurement: Measurement) -> dict[str, Any]:
    """A request, without the arrivals of its pieces."""
    facts = asdict(measurement)
    del facts["arrivals"]
    rounded: dict[str, Any] = _rounded(facts)
    return rounded


def _rounded(value: Any) -> Any:  # noqa: ANN401 (JSON)
    """Rounds to a thousandth, which is as precise as the clocks are."""
    match value:
        case float():
            return round(value, 3)
        case dict():
            return {key: _rounded(item) for key, item in value.items()}
        case list() | tuple():
            return [_rounded(item) for item in value]
    return value
