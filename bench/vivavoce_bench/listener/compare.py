"""Compares two servers, or two states of one, by ratios with confidence intervals.

Runs alternate: A B, B A, A B, ... A drift of the machine therefore affects both alike. The two runs of a pair have the
same texts, seeds and arrival times; each pair has new ones. Ratios are taken within a pair, and the statistics count
pairs: the requests of one run wait for each other, so they are not independent samples. The interval is Student's t on
the logarithms of the ratios. A bootstrap would give too narrow an interval for a few pairs, and the logarithm treats a
ratio and its inverse alike.
"""

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from vivavoce_bench.listener.load import LoadPlan, Run
from vivavoce_bench.listener.metrics import BUFFERS_MS
from vivavoce_bench.listener.report import LAG_LIMIT_MS, is_on_time
from vivavoce_bench.listener.summary import Summary

MIN_PAIRS = 3
T_975 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""Student's t for a two-sided interval of 95 %, for 1 to 30 degrees of freedom."""
T_975_LIMIT = 2.042


Read = Callable[[Summary], float | None]
"""Reads one figure of a run; None if the run has none."""
COMPARED = {
    "TTFA p50": ("ttfa_ms", "p50"),
    "TTFA p95": ("ttfa_ms", "p95"),
    "safe start p50": ("safe_start_ms", "p50"),
    "safe start p95": ("safe_start_ms", "p95"),
    "end to end p50": ("end_to_end_ms", "p50"),
    "end to end p95": ("end_to_end_ms", "p95"),
    "RTF p50": ("rtf", "p50"),
}
"""Figures that are compared, for all requests and for each class of texts."""


def compared_figures(pairs: Sequence["Pair"]) -> dict[str, Read]:
    """Names of the compared figures, and how each is read: of all texts, then of each class if there are several."""
    figures: dict[str, Read] = {name: partial(_read, figure, None) for name, figure in COMPARED.items()}
    figures["audio s/s"] = lambda summary: summary.received_audio_s_per_s
    classes = sorted({name for pair in pairs for run in pair for name in run.summary.classes})
    if len(classes) > 1:
        for each in classes:
            figures |= {f"{each}: {name}": partial(_read, figure, each) for name, figure in COMPARED.items()}
    return figures


def _read(figure: tuple[str, str], text_class: str | None, summary: Summary) -> float | None:
    heard = summary if text_class is None else summary.classes.get(text_class)
    found = None if heard is None else heard.figures.get(figure[0])
    return None if found is None else float(getattr(found, figure[1]))


@dataclass(frozen=True, slots=True)
class Ratio:
    """B over A, with its confidence interval of 95 %."""

    value: float
    low: float
    high: float

    @property
    def is_difference(self) -> bool:
        """True if 1 lies outside the interval, so that chance alone hardly explains the ratio."""
        return not self.low <= 1 <= self.high


def ratio(a: Sequence[float], b: Sequence[float]) -> Ratio:
    """Computes the ratio from the pairs (a[i], b[i]), all above 0."""
    logs = [math.log(of_b / of_a) for of_a, of_b in zip(a, b, strict=True)]
    if len(logs) < MIN_PAIRS:
        raise ValueError(f"there must be at least {MIN_PAIRS} pairs, not {len(logs)}")
    degrees = len(logs) - 1
    t = T_975[degrees - 1] if degrees <= len(T_975) else T_975_LIMIT
    middle, half = statistics.mean(logs), t * statistics.stdev(logs) / math.sqrt(len(logs))
    return Ratio(math.exp(middle), math.exp(middle - half), math.exp(middle + half))


class Pair(NamedTuple):
    """The runs of both servers under the same load."""

    a: Run
    b: Run


def pair_plans(plan: LoadPlan, pairs: int) -> Iterator[tuple[LoadPlan, bool]]:
    """Yields the plan of each pair, and True if A runs first in it."""
    for number in range(pairs):
        yield replace(plan, seed=plan.seed + number), number % 2 == 0


def ratios(pairs: Sequence[Pair]) -> dict[str, Ratio]:
    """Ratios of all figures that every run has."""
    found = {}
    for name, read in compared_figures(pairs).items():
        of_a, of_b = ([read(run.summary) for run in runs] for runs in zip(*pairs, strict=True))
        values_a, values_b = ([value for value in values if value] for values in (of_a, of_b))
        if len(values_a) == len(values_b) == len(pairs):
            found[name] = ratio(values_a, values_b)
    return found


def comparison_table(pairs: Sequence[Pair]) -> str:
    """Table of the means over the pairs, the ratios, and whether a difference is shown."""
    figures, found = compared_figures(pairs), ratios(pairs)
    width = max(map(len, ("dry at 1000 ms", *found))) + 2
    lines = [f"{'':{width}}{'A':>10}{'B':>10}{'B / A':>9}   95 % interval"]
    for name, each in found.items():
        mean_a, mean_b = (_mean(figures[name], runs) for runs in zip(*pairs, strict=True))
        verdict = "" if each.is_difference else "   no difference shown"
        interval = f"{each.low:.3f} to {each.high:.3f}"
        lines.append(f"{name:{width}}{mean_a:10.3f}{mean_b:10.3f}{each.value:9.3f}   {interval}{verdict}")
    underruns = [sum(run.summary.underrun_requests for run in runs) for runs in zip(*pairs, strict=True)]
    requests = [sum(run.summary.requests for run in runs) for runs in zip(*pairs, strict=True)]
    lines.append(f"{'ran dry':{width}}{underruns[0]:10}{underruns[1]:10}   of {requests[0]} and {requests[1]} requests")
    for buffer_ms in BUFFERS_MS:
        dry = [sum(run.summary.buffered[str(buffer_ms)].requests for run in runs) for runs in zip(*pairs, strict=True)]
        lines.append(f"{f'dry at {buffer_ms} ms':{width}}{dry[0]:10}{dry[1]:10}")
    for number, pair in enumerate(pairs):
        for name, run in zip("AB", pair, strict=True):
            if not is_on_time(run):
                lines.append(
                    f"NOT ON TIME: pair {number}, {name}: the generators were late by over {LAG_LIMIT_MS:g} ms"
                )
            if not run.summary.valid:
                lines.append(f"INVALID: pair {number}, {name}: " + "; ".join(run.summary.faults))
    return "\n".join(lines)


def _mean(read: Read, runs: Sequence[Run]) -> float:
    return statistics.mean(value for run in runs if (value := read(run.summary)) is not None)
