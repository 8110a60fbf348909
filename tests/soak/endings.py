"""Endings of requests. Each request has an honest end, or it counts as lost."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Outcome = Literal["completed", "refused", "expired", "rejected", "left", "cancelled", "dropped", "LOST"]
"""Completed: all of it came, and can be decoded. Refused: a 429 that says when to come back, or its like on a live
socket; expired: the same, after as long as it was allowed to wait. Rejected: a malformed request was told what is
wrong with it. Left, cancelled: the client's own doing. Dropped: the server gave up a client that did not read. Whatever
is none of these is lost: a bug, here or in the server."""


@dataclass(frozen=True, slots=True)
class Ending:
    """Of one request. `ttfa_s` is from the request to its first audio, `refused_s` from it to a refusal."""

    kind: str
    outcome: Outcome
    detail: str = ""
    ttfa_s: float | None = None
    refused_s: float | None = None


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which this share lies; 0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def table(endings: Sequence[Ending]) -> str:
    """Kinds of requests against outcomes, in Markdown."""
    counts = Counter((ending.kind, ending.outcome) for ending in endings)
    outcomes = sorted({ending.outcome for ending in endings})
    lines = [["request", *outcomes], ["---"] * (len(outcomes) + 1)]
    for kind in sorted({ending.kind for ending in endings}):
        lines.append([kind, *(str(counts[kind, outcome]) for outcome in outcomes)])
    lines.append(["all", *(str(sum(ending.outcome == outcome for ending in endings)) for outcome in outcomes)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def latencies(name: str, values: Sequence[float]) -> str:
    milliseconds = [f"{1000 * percentile(values, share):.0f}" for share in (0.5, 0.95, 1.0)]
    return f"{name}: {' / '.join(milliseconds)} ms (median / p95 / max of {len(values)})"
