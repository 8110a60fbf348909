"""Plots of runs, as PNG and SVG. matplotlib is in an extra: pip install 'vivavoce-speech[bench]'."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vivavoce_bench.listener.load import Burst, Closed, Poisson, Run

FORMATS = ("png", "svg")
MAX_LISTENERS = 200
"""Most lines in a timeline. More could not be told apart."""


def write_plots(runs: Sequence[Run], title: str, folder: Path) -> list[Path]:
    """Writes three plots: latency by load, distribution of the time to first audio, and playback by listener."""
    folder.mkdir(parents=True, exist_ok=True)
    figures = {
        "latency_by_load": latency_by_load(runs),
        "ttfa_cdf": ttfa_cdf(runs),
        "gap_timeline": gap_timeline(runs),
    }
    paths = []
    for name, figure in figures.items():
        figure.suptitle(title)
        for suffix in FORMATS:
            paths.append(folder / f"{name}.{suffix}")
            figure.savefig(paths[-1], dpi=150)
    return paths


def latency_by_load(runs: Sequence[Run]) -> Figure:
    figure, axes = _figure()
    by_rate = all(isinstance(run.plan.load, Poisson) for run in runs)
    positions = [_amount(run) for run in runs] if by_rate else list(range(len(runs)))
    for name, label in (("ttfa_ms", "first audible sample"), ("end_to_end_ms", "whole answer")):
        for which, style in (("p50", "o--"), ("p95", "o-")):
            found = [run.summary.figures.get(name) for run in runs]
            points = [(x, getattr(each, which)) for x, each in zip(positions, found, strict=True) if each]
            axes.plot([x for x, _ in points], [y for _, y in points], style, label=f"{label}, {which}")
    if not by_rate:
        axes.set_xticks(positions, [str(run.plan.load) for run in runs])
    axes.set_xlabel("requests a second" if by_rate else "load")
    axes.set_ylabel("ms")
    axes.set_yscale("log")
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    return figure


def _amount(run: Run) -> float:
    match run.plan.load:
        case Poisson(amount) | Closed(amount) | Burst(amount):
            return amount


def ttfa_cdf(runs: Sequence[Run]) -> Figure:
    figure, axes = _figure()
    for run in runs:
        values = sorted(each.ttfa_ms for each in run.measurements if not each.warmup and each.ttfa_ms is not None)
        share = [(rank + 1) / len(values) for rank in range(len(values))]
        axes.step(values, share, where="post", label=f"{run.plan.load} ({len(values)} requests)")
    axes.set_xlabel("time to the first audible sample, ms")
    axes.set_ylabel("share of requests")
    axes.set_ylim(0, 1)
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    return figure


def gap_timeline(runs: Sequence[Run]) -> Figure:
    """A line for each listener, from the first sample to the last. It is red where the player ran dry."""
    figure = Figure(figsize=(9, 1 + 2.5 * len(runs)), layout="constrained")
    rows = figure.subplots(len(runs), 1, squeeze=False)[:, 0]
    for run, axes in zip(runs, rows, strict=True):
        heard = list(islice((each for each in run.measurements if each.heard_from_s is not None), MAX_LISTENERS))
        heard.sort(key=lambda each: each.due_s)
        for row, each in enumerate(heard):
            assert each.heard_from_s is not None
            assert each.heard_until_s is not None
            colour = "0.8" if each.warmup else "tab:blue"
            axes.hlines(row, each.heard_from_s, each.heard_until_s, colors=colour, linewidth=1.5)
            for gap in each.gaps:
                axes.hlines(row, gap.at_s, gap.at_s + gap.length_s, colors="tab:red", linewidth=3)
        axes.set_title(f"{run.plan.load}: {run.summary.underrun_requests} of {run.summary.requests} with underruns")
        axes.set_ylabel("listener")
    rows[-1].set_xlabel("seconds from the start of the run (grey: warm-up, red: the player ran dry)")
    return figure


def _figure() -> tuple[Figure, Axes]:
    figure = Figure(figsize=(8, 5), layout="constrained")
    return figure, figure.subplots()
