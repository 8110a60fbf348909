"""Plot of a server's time to first audio by requests per second, from a result of cards/server.py.

    python -m vivavoce_bench.cards.plot_server bench/results/server-h200.json --out docs/first_audio.svg [--date DATE]

The file must have one model and one entry of --gpus. Loads of texts other than the usual ones are left out. OUT's
suffix selects the format. The script needs matplotlib (the `bench` extra).
"""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

PERCENTILES = {"p95": ("C0", 7), "p50": ("C2", -15)}
"""Colour of each line, and the distance of its values above the line in points."""
SIZE_INCHES = (7.2, 3.4)


@dataclass(frozen=True, slots=True)
class FirstAudio:
    """Time to first audio of one server. `ms` maps a percentile to milliseconds per rate, in the order of `rates`."""

    machine: str
    model: str
    rates: tuple[float, ...]
    ms: dict[str, tuple[float, ...]]


def first_audio(document: dict[str, Any]) -> FirstAudio:
    """Reads a document that cards/server.py wrote for one model and one server.

    Raises:
        ValueError: the document has several models or servers, or a run with a request that was refused or failed.
    """
    found = [(model, server) for model, servers in document["server"].items() for server in servers.values()]
    if len(found) != 1:
        raise ValueError(f"the document has {len(found)} servers, not one")
    ((model, server),) = found
    usual = {rate: run for rate, run in server["rate"].items() if " " not in rate}
    runs = sorted(((float(rate), run) for rate, run in usual.items()), key=lambda each: each[0])
    incomplete = [rate for rate, run in runs if run["completed"] != run["requests"]]
    if incomplete:
        raise ValueError(f"not every request was completed at {incomplete} a second")
    ms = {which: tuple(run["ttfa_ms"][which] for _, run in runs) for which in PERCENTILES}
    return FirstAudio(document["cards"][0], model, tuple(rate for rate, _ in runs), ms)


def plot(measured: FirstAudio, date: str) -> Figure:
    """Draws one line per percentile, with the value at each point."""
    figure = Figure(figsize=SIZE_INCHES, layout="constrained")
    axes = figure.subplots()
    for which, (colour, above) in PERCENTILES.items():
        values = measured.ms[which]
        axes.plot(measured.rates, values, "o-", color=colour, label=which)
        for rate, value in zip(measured.rates, values, strict=True):
            axes.annotate(f"{value:.0f}", (rate, value), xytext=(0, above), textcoords="offset points", ha="center")
    axes.set_title(f"One {measured.machine}, {measured.model.upper()} model" + (f", {date}" if date else ""))
    axes.set_xlabel("requests a second")
    axes.set_ylabel("time to first audio, ms")
    axes.set_xlim(left=0)
    axes.set_ylim(0, 1.15 * max(measured.ms["p95"]))
    axes.margins(x=0.06)
    axes.grid(visible=True, alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper left", frameon=False)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--date", default="", help="date of the measurement, for the title")
    args = parser.parse_args()
    measured = first_audio(json.loads(args.result.read_text(encoding="utf-8")))
    # The same input must give the same bytes, so there is neither a date nor a random name.
    with matplotlib.rc_context({"svg.hashsalt": "vivavoce"}):
        metadata = {"Date": None} if args.out.suffix == ".svg" else {}
        plot(measured, args.date).savefig(args.out, dpi=150, metadata=metadata)


if __name__ == "__main__":
    main()
