"""`vivavoce bench reading`: CPU time, start and memory of the reading of written text.

All stages run, as for the shipped voice. The last line of the output is one JSON document.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from vivavoce_eval.pairs import read_pairs
from vivavoce_text import STAGES, Profile, speakable
from vivavoce_voice import held_out_sentences

from vivavoce_bench.reading import start

PROFILE = Profile(frozenset(STAGES), "names", "ascii")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `vivavoce bench reading`. Entry point of the command line."""
    parser.description = "Measures the CPU time, the start and the memory of the reading of written text"
    parser.add_argument(
        "--pairs", type=Path, metavar="FILE", help="lines `language TAB kind TAB written TAB spoken`, measured too"
    )


@dataclass(frozen=True, slots=True)
class ReadingCost:
    """CPU time of the reading of some texts in one language, in microseconds a text."""

    texts: int
    median_us: int
    mean_us: int
    p95_us: int
    most_us: int


def run(args: argparse.Namespace) -> int:
    """Runs `vivavoce bench reading`. Entry point of the command line."""
    texts = {"held-out sentences": ("en", [text for _, text in held_out_sentences()])}
    if args.pairs is not None:
        pairs = read_pairs(args.pairs)
        for language in sorted({pair.language for pair in pairs}):
            texts[f"pairs, {language}"] = (language, [pair.written for pair in pairs if pair.language == language])
    costs = {name: cost_of(language, written) for name, (language, written) in texts.items()}
    started = json.loads(
        subprocess.run([sys.executable, "-m", start.__name__], check=True, capture_output=True, text=True).stdout
    )
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    print(f"{machine}\nCPU time of a text, µs       texts   median     mean      p95     most")
    for name, cost in costs.items():
        figures = "".join(f"{figure:>9}" for figure in (cost.median_us, cost.mean_us, cost.p95_us, cost.most_us))
        print(f"{name:<26}{cost.texts:>8}{figures}")
    print("start                      CPU s    memory so far, MB")
    for name, step in started.items():
        print(f"{name:<24}{step['cpu_s']:>8}{step['memory_mb']:>21}")
    figures_by_texts = {name: asdict(cost) for name, cost in costs.items()}
    print(json.dumps({"machine": machine, "cost": figures_by_texts, "start": started}))
    return 0


def cost_of(language: str, texts: Sequence[str]) -> ReadingCost:
    for text in (start.TEXTS.get(language, ""), *texts[:1]):  # loads the tables and the grammar
        speakable(text, language, PROFILE)
    times_us = sorted(round(time_us(language, text)) for text in texts)
    p95_us = times_us[min(len(times_us) - 1, round(0.95 * len(times_us)))]
    return ReadingCost(
        len(texts), round(statistics.median(times_us)), round(statistics.mean(times_us)), p95_us, times_us[-1]
    )


def time_us(language: str, text: str) -> float:
    """CPU time of one reading, which other work on the machine changes little."""
    started_s = time.thread_time()
    speakable(text, language, PROFILE)
    return (time.thread_time() - started_s) * 1e6
