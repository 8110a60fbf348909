"""Tables in Markdown pages, made from files of results, so that nobody types a figure.

    python -m vivavoce_bench.cards.tables README.md bench/README.md [--check]

A page marks a table by its kind and the files, whose paths count from the page:

    <!-- table: engine results/engine-h200.json -->
    <!-- /table -->

The lines between the marks are replaced by the table and, except for a `summary`, a line that names its source. With
--check nothing is written, and the exit status is 1 if a page is not what its files say. Kinds: `engine` and `summary`
(engine-CARD.json of cards/report.py), `server` (results of cards/server.py), `load` (results of `vivavoce bench load
-o`), `cards` (results of `vivavoce bench card`).
"""

import argparse
import json
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from vivavoce_bench.cards import share

Json = Mapping[str, Any]
Rows = list[list[str]]
"""The cells of a table. The first row is its head."""
BLOCK = re.compile(r"(<!-- table: (?P<kind>\w+) (?P<files>[^>]+?) -->\n).*?(<!-- /table -->)", re.DOTALL)
ROWS = ("1", "8", "64", "256")
NONE = ""


def number(value: float | None) -> str:
    """Three significant digits, and no fewer than the whole part: 2.17, 16.9, 926, 1544."""
    if value is None:
        return NONE
    digits = 2 if value == 0 else max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{digits}f}"


def numbers(values: Sequence[float | None], between: str = " / ") -> str:
    """Several figures in a cell; nothing if one is missing."""
    return NONE if None in values else between.join(map(number, values))


# ---- the engine -----------------------------------------------------------------------------------------------


def engine_table(document: Json) -> Rows:
    """All figures of the engine on one card, by rows."""
    rows: Rows = [["", *(f"{rows} row{'s' if rows != '1' else ''}" for rows in ROWS)]]
    for size, times in document["frame_ms"].items():
        rows.append([f"{size.upper()}, milliseconds a frame", *(number(times.get(count)) for count in ROWS)])
    for name, told in (
        ("frame_ms_without_deterministic", "`--deterministic false`"),
        ("frame_ms_context_1000", "at a context of 1000"),
        ("frame_ms_context_1000_without_deterministic", "at a context of 1000, `--deterministic false`"),
    ):
        if name in document:
            sizes = document[name]
            cells = [numbers([times.get(count) for times in sizes.values()]) for count in ROWS]
            rows.append([f"{' / '.join(map(str.upper, sizes))}, {told}", *cells])
    decoded = [_code2wav(document.get("code2wav_us_per_frame", {}), count) for count in ROWS]
    rows.append(["Code2Wav, microseconds a frame, 4 frames a call", *decoded])
    rows += list(_whole_engine(document))
    for peer, measured in document.get("peers", {}).items():
        sizes = measured["frame_ms"]
        told = f"{peer} {measured['versions'].get(peer, '')}, {' / '.join(map(str.upper, sizes))}, milliseconds a frame"
        rows.append([told, *(numbers([times.get(count) for times in sizes.values()]) for count in ROWS)])
    return [row for row in rows if any(row[1:]) or row is rows[0]]


def _code2wav(us_per_frame: Mapping[str, float], rows: str) -> str:
    """Time of these rows with four frames each, or of half of the rows if that is the most that was timed."""
    if f"{rows}x4" in us_per_frame:
        return number(us_per_frame[f"{rows}x4"])
    half = str(int(rows) // 2)
    timed = us_per_frame.get(f"{half}x4") if half not in ROWS else None
    return NONE if timed is None else f"{number(timed)} ({half} rows)"


def _whole_engine(document: Json) -> Iterator[list[str]]:
    for model, by_streams in document.get("engine_audio_s_per_s", {}).items():
        dry = document.get("engine_dry_streams", {}).get(model, {})
        name = f"whole {model.upper()} engine"
        yield [f"{name}, seconds of audio a second", *(number(by_streams.get(count)) for count in ROWS)]
        yield [f"{name}, streams that ran dry", *(str(dry.get(count, NONE)) for count in ROWS)]
    for model, burst in document.get("burst", {}).items():
        told = f"{burst['requests']} long texts at one moment while {burst['running']} streams of {model.upper()} run"
        times = numbers([burst["first_audio_ms_mean"], burst["first_audio_ms_max"]])
        yield [f"{told}: first audio, mean / last, ms", times, NONE, NONE, NONE]
    yield ["first PCM of an idle engine, median, ms", number(document.get("first_pcm_ms")), NONE, NONE, NONE]


def summary_table(document: Json) -> Rows:
    """The few figures of the engine that a front page has."""
    sizes = list(document["frame_ms"])
    frames = [_by_rows(document["frame_ms"][size], "ms") for size in sizes]
    rows: Rows = [["", *map(str.upper, sizes)], ["a frame of 1, 64, 256 streams", *frames]]
    for peer, measured in document.get("peers", {}).items():
        times = [measured["frame_ms"].get(size, {}).get("1") for size in sizes]
        told = f"a frame of 1 stream by {peer} {measured['versions'].get(peer, '')}, same machine"
        rows.append([told, *(NONE if ms is None else f"{number(ms)} ms" for ms in times)])
    audio = document.get("engine_audio_s_per_s", {})
    rows.append(["first audio of an idle engine", *_of_model(sizes, audio, f"{number(document['first_pcm_ms'])} ms")])
    dry = document.get("engine_dry_streams", {})
    none = "; none ran dry" if dry and not any(count for counts in dry.values() for count in counts.values()) else ""
    made = ["" if size not in audio else _by_rows(audio[size]) for size in sizes]
    rows.append([f"seconds of audio a second with 1, 64, 256 streams{none}", *made])
    if dry and not none:
        rows.append(["streams of these that ran dry", *(_by_rows(dry[size]) if size in dry else "" for size in sizes)])
    return rows


def _by_rows(values: Mapping[str, float], unit: str = "") -> str:
    told = ", ".join(
        str(value) if isinstance(value, int) else number(value) for value in map(values.get, ("1", "64", "256"))
    )
    return f"{told} {unit}".rstrip()


def _of_model(sizes: Sequence[str], measured: Mapping[str, object], text: str) -> list[str]:
    """The text in the column of the size that the engine was measured with."""
    return [text if size in measured else NONE for size in sizes]


# ---- servers --------------------------------------------------------------------------------------------------

SERVER_HEAD = [
    "load",
    "requests: refused, failed, all",
    "first audio p50 / p95 / p99, ms",
    "safe start p50 / p95, ms",
    "audio a second, s",
    "ran dry, the longest, ms",
    "dry with 250 ms held",
    "cores: front processes and engines",
]


def server_table(document: Json) -> Rows:
    """Rows by load of each server in a result of cards/server.py, and under each those of its classes of texts."""
    rows: Rows = [SERVER_HEAD]
    for model, entries in document["server"].items():
        for entry in entries.values():
            for kind in ("rate", "listeners", "burst"):
                for amount, run in entry.get(kind, {}).items():
                    rows += _server_rows(f"{model.upper()}, {_load(kind, amount)}", run)
    return _without_empty_columns(rows)


def _load(kind: str, amount: str) -> str:
    return {"rate": "{} requests/s", "listeners": "{} listeners", "burst": "{} at once, idle"}[kind].format(amount)


def _server_rows(name: str, run: Json) -> Rows:
    cores = "; ".join(", ".join(f"{cores:.2f}" for cores in each) for each in run.get("server_cores", ()))
    rows = [[name, f"{run['refused']}, {run['failed']}, {run['requests']}", *_heard(run, run["audio_s_per_s"]), cores]]
    if len(run.get("classes", {})) > 1:
        for text_class, heard in run["classes"].items():
            rows.append([f"· {text_class}", str(heard["heard"]), *_heard(heard, None), NONE])
    for burst in run.get("bursts", ()):
        last = f"last of {burst['requests']}: {number(burst['last_first_audio_ms'])}"
        rows.append(
            [
                f"· burst at {burst['at_s']:g} s",
                str(burst["heard"]),
                last,
                "",
                "",
                str(burst["underrun_requests"]),
                "",
                "",
            ]
        )
    return rows


def _heard(heard: Json, audio_s_per_s: float | None) -> list[str]:
    first, safe = heard["ttfa_ms"] or {}, heard.get("safe_start_ms") or {}
    dry = heard["underrun_requests"]
    held = heard.get("buffered", {}).get("250")
    return [
        numbers([first.get(which) for which in ("p50", "p95", "p99")]),
        numbers([safe.get(which) for which in ("p50", "p95")]),
        number(audio_s_per_s),
        f"{dry}, {number(heard['longest_underrun_ms'])}" if dry else "0",
        NONE if held is None else str(held["requests"]),
    ]


LOAD_HEAD = [*SERVER_HEAD[:1], "requests: incomplete, all", *SERVER_HEAD[2:7], "own lag p95, ms", "generators, cores"]


def load_table(document: Json) -> Rows:
    """Rows by load of a result of `vivavoce bench load -o`, and under each those of its classes of texts."""
    rows: Rows = [LOAD_HEAD]
    for run in document["runs"]:
        ((kind, amount),) = [(kind, amount) for kind, amount in run["load"].items() if kind != "every_s"]
        name = _load({"poisson_rate": "rate"}.get(kind, kind), f"{amount:g}")
        counts = f"{run['incomplete']}, {run['requests']}"
        own = [
            number(run["generators"]["lag_p95_ms"]),
            ", ".join(f"{cores:.2f}" for cores in run["generators"]["cores"]),
        ]
        rows.append([name, counts, *_heard(_as_of_server(run), run["received_audio_s_per_s"]), *own])
        if len(run["classes"]) > 1:
            for text_class, heard in run["classes"].items():
                counts = f"{heard['incomplete']}, {heard['requests']}"
                rows.append([f"· {text_class}", counts, *_heard(_as_of_server(heard), None), NONE, NONE])
    return _without_empty_columns(rows)


def _as_of_server(heard: Json) -> Json:
    return {
        **heard["figures"],
        **heard,
        "ttfa_ms": heard["figures"].get("ttfa_ms"),
        "longest_underrun_ms": heard["longest_stall_ms"],
    }


def _without_empty_columns(rows: Rows) -> Rows:
    filled = [any(row[column] for row in rows[1:]) for column in range(len(rows[0]))]
    return [[cell for cell, keep in zip(row, filled, strict=True) if keep] for row in rows]


# ---- pages ----------------------------------------------------------------------------------------------------


def cards_table(documents: Sequence[Json]) -> list[str]:
    """The table of cards, as `vivavoce bench card --table` prints it."""
    return share.table([dict(document) for document in documents])


TABLES: Mapping[str, Callable[[Json], Rows]] = {
    "engine": engine_table,
    "summary": summary_table,
    "server": server_table,
    "load": load_table,
}


def markdown(rows: Rows) -> list[str]:
    """Lines of a table in Markdown."""
    head, *others = rows
    return [_line(head), "|" + "---|" * len(head), *map(_line, others)]


def _line(cells: Sequence[str]) -> str:
    return "|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|"


def source(document: Json, file: str) -> str:
    """One line that says where the figures of a table come from."""
    card = document.get("card") or ", ".join(dict.fromkeys(document.get("cards", ()))) or document.get("machine", "")
    versions = ", ".join(f"{name} {which}" for name, which in document.get("versions", {}).items())
    return f"<sub>[{Path(file).name}]({file}): {card}; {versions}; `{document['command']}`</sub>"


def tables_made(page: str, folder: Path) -> str:
    """The page with the tables that its files give. `folder` is the page's, from which paths count.

    Raises:
        ValueError: there is no such kind of table.
        OSError: a file cannot be read.
    """

    def made(block: re.Match[str]) -> str:
        files = block["files"].split()
        documents = [json.loads((folder / file).read_text(encoding="utf-8")) for file in files]
        if block["kind"] == "cards":
            lines = cards_table(documents)
        elif block["kind"] in TABLES:
            lines = []
            for file, document in zip(files, documents, strict=True):
                lines += markdown(TABLES[block["kind"]](document))
                if block["kind"] != "summary":
                    lines += ["", source(document, file)]
        else:
            raise ValueError(f"there is no kind of table {block['kind']!r}; there are cards, {', '.join(TABLES)}")
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
