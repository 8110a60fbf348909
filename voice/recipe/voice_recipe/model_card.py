"""Writes the table of a voice's model card from the runs of `vivavoce eval quality` that judged it.

    python -m voice_recipe.model_card --quality DIR --card MODEL_CARD.md

DIR holds whole_text.json, streaming_text.json and teacher.json.
"""

from __future__ import annotations

import argparse
import json
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

RUNS = {"whole text": "whole_text.json", "streaming text": "streaming_text.json", "teacher": "teacher.json"}
HEADER = "| | whole text | streaming text | teacher |"
LONG_NAMES = {"question": "questions", "number": "numbers", "date": "dates", "name": "names", "word": "one word"}


def cosines(run: dict[str, Any]) -> tuple[float, tuple[float, str, str]]:
    """Lowest mean cosine within a speaker, and the highest between two, with their names."""
    voices = {name: (np.array(voice["embedding"]), voice["utterances"]) for name, voice in run["voices"].items()}
    same = [(n * float(mean @ mean) - 1) / (n - 1) for mean, n in voices.values() if n > 1]
    pairs = [(float(voices[a][0] @ voices[b][0]), a, b) for a, b in combinations(voices, 2)]
    return min(same), max(pairs)


def lines_of(run: dict[str, Any], spoken_by_model: bool) -> dict[str, str]:
    """Cells of a run, by the name of their line."""
    figures, rows, voices = run["figures"], run["rows"], run["voices"]
    categories = figures["by_category"]
    silences = [1000 * median(row[f"{side}_silence_s"] for row in rows) for side in ("leading", "trailing")]
    lowest, (nearest, one, other) = cosines(run)
    stopped = sum(row["stopped"] for row in rows)
    kinds = " / ".join(LONG_NAMES.get(name, name) for name in categories)
    opinions = ("ovrl", "sig", "bak", "p808")
    return {
        "word error rate, Whisper base, greedy": f"{figures['word_error_rate']:.2f} %",
        kinds: " / ".join(f"{rate:.1f}" for rate in categories.values()) + " %",
        "DNSMOS OVRL / SIG / BAK / P808": " / ".join(f"{figures[name]:.2f}" for name in opinions),
        "stops by itself": f"{stopped} of {len(rows)}" if spoken_by_model else "",
        "silence before / after, median, ms": " / ".join(f"{silence:.0f}" for silence in silences),
        f"median F0, Hz: {', '.join(voices)}": ", ".join(f"{voice['f0_hz']:.0f}" for voice in voices.values()),
        "same speaker, lowest of all": f"{lowest:.3f}",
        "nearest two speakers": f"{nearest:.3f} ({one}, {other})",
        "ms a character": f"{1000 * figures['s_per_character']:.1f}",
    }


def table(quality: Path) -> list[str]:
    """Lines of the Markdown table."""
    columns = [
        lines_of(json.loads((quality / file).read_text(encoding="utf-8")), name != "teacher")
        for name, file in RUNS.items()
    ]
    rows = [f"| {name} | {' | '.join(column[name] for column in columns)} |" for name in columns[0]]
    return [HEADER, "|---|---|---|---|", *rows]


def with_table(card: str, lines: list[str]) -> str:
    """The card with its table replaced. Raises ValueError if it has none."""
    before, header, rest = card.partition(HEADER)
    if not header:
        raise ValueError(f"the card has no table that begins with {HEADER!r}")
    after = rest.partition("\n\n")
    return before + "\n".join(lines) + after[1] + after[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quality", type=Path, required=True)
    parser.add_argument("--card", type=Path, required=True)
    args = parser.parse_args()
    args.card.write_text(with_table(args.card.read_text(encoding="utf-8"), table(args.quality)), encoding="utf-8")


if __name__ == "__main__":
    main()
