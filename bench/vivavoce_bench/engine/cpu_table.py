"""`python -m vivavoce_bench.engine.cpu_table native.txt torch.txt`: a table of what `bench engine` has printed.

Each file holds what one run has printed; its last line is JSON. Of several runs with the same machine, runner and dtype
the better figures count.
"""

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

COLUMNS = (
    "machine",
    "streams at once",
    "frames a second",
    "wall time / audio time of a stream",
    "time to first audio",
    "of the wall time",
)


def table(documents: Iterable[dict[str, Any]]) -> list[str]:
    """The lines of the table, by machine in the order of the documents, then by streams."""
    best: dict[tuple[str, int], dict[str, Any]] = {}
    order: dict[str, None] = {}
    for document in documents:
        order.setdefault(document["machine"])
        for run in document["runs"]:
            key = (document["machine"], run["streams"])
            if key not in best or run["rtf"] < best[key]["rtf"]:
                best[key] = run
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    for machine in order:
        of_machine = sorted(streams for name, streams in best if name == machine)
        for streams in of_machine:
            name = machine if streams == of_machine[0] else ""
            lines.append(row(name, best[machine, streams]))
    return lines


def row(name: str, run: dict[str, Any]) -> str:
    """The line of one number of streams."""
    shares = ", ".join(f"{stage} {share:.0%}" for stage, share in run["share"].items())
    cells = [name, str(run["streams"]), f"{run['frames_per_s']:.1f}", f"{run['rtf']:.2f}"]
    cells += [f"{run['ttfa_ms_median']:.0f} ms", shares]
    return f"| {' | '.join(cells)} |"


def main(words: Sequence[str] | None = None) -> None:
    """Prints the table of the files on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("outputs", type=Path, nargs="+", help="what runs of `bench engine` have printed")
    texts = [path.read_text(encoding="utf-8") for path in parser.parse_args(words).outputs]
    print("\n".join(table(json.loads(text.strip().splitlines()[-1]) for text in texts)))


if __name__ == "__main__":
    main()
