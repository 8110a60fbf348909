"""Tables in Markdown pages, made from files of results, so that nobody types a figure.

    python -m vivavoce_bench.cards.tables README.md bench/README.md [--check]

A page marks a table by its kind and the files, whose paths count from the page:

    <!-- table: engine results/engine-h200.json -->
    <!-- /table -->

The lines between the marks are replaced by the table and lines that name its sources. With --check nothing is written,
and the exit status is 1 if a page is not what its files say. Kinds, and the files that each takes:

    engine       engine-CARD.json of cards/report.py
    server       results of cards/server.py, also those that cards/report.py has joined
    load         results of `vivavoce bench load -o`
    streams      the document of engine/cpu_table.py
    pace         results of `vivavoce bench pace`
    roofline     results of cards/roofline.py
    cards        results of `vivavoce bench card`
    front_page   an engine-CARD.json, its fronts-CARD.json, and any of a `load`, a `streams` and cards/omni.py's
    sizes        results of cards/server.py: what an operator reads of them
"""

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vivavoce_bench.cards import overviews, result_tables, share
from vivavoce_bench.cards.cells import Rows, markdown

Json = Mapping[str, Any]
BLOCK = re.compile(r"(<!-- table: (?P<kind>\w+) (?P<files>[^>]+?) -->\n).*?(<!-- /table -->)", re.DOTALL)
TABLES: Mapping[str, Callable[[Json], Rows]] = {
    "engine": result_tables.engine_table,
    "load": result_tables.load_table,
    "pace": result_tables.pace_table,
    "roofline": result_tables.roofline_table,
    "server": result_tables.server_table,
    "streams": result_tables.streams_table,
}
"""Kinds of tables of one file. One that names several files gets several tables."""
BLOCKS: Mapping[str, Callable[[Sequence[Json]], list[str]]] = {
    "cards": lambda documents: share.table([dict(document) for document in documents]),
    "front_page": overviews.front_page,
    "sizes": overviews.sizes,
}
"""Kinds of lines that several files make together."""


def sources(document: Json, file: str) -> list[str]:
    """Lines that say where the figures of a table come from: one for each command that made them."""
    parts = document["fronts"].values() if "fronts" in document else [document]
    return [f"<sub>{told}</sub>" for told in dict.fromkeys(_source(part, file) for part in parts)]


def _source(document: Json, file: str) -> str:
    card = document.get("card") or ", ".join(dict.fromkeys(document.get("cards", ()))) or document.get("machine", "")
    versions = ", ".join(f"{name} {which}" for name, which in document.get("versions", {}).items())
    return f"[{Path(file).name}]({file}): {card}; {versions}; `{document['command']}`"


def tables_made(page: str, folder: Path) -> str:
    """The page with the tables that its files give. `folder` is the page's, from which paths count.

    Raises:
        ValueError: there is no such kind of table.
        OSError: a file cannot be read.
    """

    def made(block: re.Match[str]) -> str:
        files = block["files"].split()
        documents = [json.loads((folder / file).read_text(encoding="utf-8")) for file in files]
        if block["kind"] in BLOCKS:
            lines = BLOCKS[block["kind"]](documents)
        elif block["kind"] in TABLES:
            lines = []
            for file, document in zip(files, documents, strict=True):
                lines += [*markdown(TABLES[block["kind"]](document)), "", *sources(document, file)]
        else:
            raise ValueError(f"there is no kind {block['kind']!r}; there are {', '.join([*BLOCKS, *TABLES])}")
        return block[1] + "\n" + "\n".join(lines) + "\n\n" + block[4]

    return BLOCK.sub(made, page)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", type=Path, nargs="+")
    parser.add_argument("--check", action="store_true", help="write nothing, and fail if a page would change")
    args = parser.parse_args()
    stale = []
    for path in args.pages:
        page = path.read_text(encoding="utf-8")
        made = tables_made(page, path.parent)
        if made != page:
            stale.append(str(path))
            if not args.check:
                path.write_text(made, encoding="utf-8")
    if args.check and stale:
        sys.exit(f"tables that are not what their files say: {', '.join(stale)}; run this script without --check")


if __name__ == "__main__":
    main()
