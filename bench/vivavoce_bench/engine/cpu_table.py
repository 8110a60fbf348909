"""`python -m vivavoce_bench.engine.cpu_table a.txt b.txt -o FILE`: one document of what `bench engine` has printed.

Each file holds what one run has printed; its last line is JSON. Of several runs with the same machine, runner and dtype
the better figures count. `vivavoce_bench.cards.tables` makes the table of the document.
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


def best(documents: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """A document for each machine, in their order, with the better runs of all its documents by streams."""
    found: dict[str, dict[str, Any]] = {}
    runs: dict[str, dict[int, dict[str, Any]]] = {}
    for document in documents:
        machine = document["machine"]
        found.setdefault(machine, document)
        of_machine = runs.setdefault(machine, {})
        for run in document["runs"]:
            known = of_machine.get(run["streams"])
            if known is None or run["rtf"] < known["rtf"]:
                of_machine[run["streams"]] = run
    return [
        {**document, "runs": [run for _, run in sorted(runs[machine].items())]} for machine, document in found.items()
    ]


def table(documents: Iterable[dict[str, Any]]) -> list[list[str]]:
    """The cells of the table, with its head: by machine, then by streams."""
    rows = [list(COLUMNS)]
    for document in documents:
        for number, run in enumerate(document["runs"]):
            rows.append(row("" if number else document["machine"], run))
    return rows


def row(name: str, run: dict[str, Any]) -> list[str]:
    """The cells of one number of streams."""
    shares = ", ".join(f"{stage} {share:.0%}" for stage, share in run["share"].items())
    cells = [name, str(run["streams"]), f"{run['frames_per_s']:.1f}", f"{run['rtf']:.2f}"]
    return [*cells, f"{run['ttfa_ms_median']:.0f} ms", shares]


def main(words: Sequence[str] | None = None) -> None:
    """Writes the document of the files on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("outputs", type=Path, nargs="+", help="what runs of `bench engine` have printed")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--machine", required=True, help="the machine, and what else it did")
    parser.add_argument("--command", required=True, help="what has printed the files")
    args = parser.parse_args(words)
    texts = [path.read_text(encoding="utf-8") for path in args.outputs]
    engines = best(json.loads(text.strip().splitlines()[-1]) for text in texts)
    document = {
        "machine": args.machine,
        "versions": engines[0]["versions"],
        "command": args.command,
        "engines": engines,
    }
    args.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
