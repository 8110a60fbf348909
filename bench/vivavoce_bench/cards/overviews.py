"""A few figures out of several files of results: those of the front page, and those that an operator plans with."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vivavoce_bench.cards.cells import NONE, Rows, markdown, number, numbers
from vivavoce_bench.cards.result_tables import cores_told, load_name, results_by_fronts

Json = Mapping[str, Any]
WIDTH = 145
STREAMS = ("1", "64", "256")
LISTENERS = "256"
CPU_STREAMS = (1, 4, 16)


# ---- the front page -------------------------------------------------------------------------------------------


def front_page(documents: Sequence[Json]) -> list[str]:
    """Sentences and a table of a CPU and a card. The documents are told apart by what is in them."""
    engine = _with(documents, "frame_ms")
    assert engine is not None, "a front page needs the document of an engine"
    told = [*_cpu(_with(documents, "engines"), _with(documents, "bench")), _about(engine, _with(documents, "experts"))]
    lines = textwrap.wrap(" ".join(told), WIDTH, break_long_words=False, break_on_hyphens=False)
    return [*lines, "", *markdown(card_rows(engine, _with(documents, "fronts")))]


def _with(documents: Sequence[Json], key: str) -> Json | None:
    return next((document for document in documents if key in document), None)


def _cpu(streams: Json | None, load: Json | None) -> Iterator[str]:
    if streams is not None:
        fastest = streams["engines"][0]
        runs = {run["streams"]: run for run in fastest["runs"]}
        times = [f"{runs[count]['rtf']:.2f}, {runs[count]['ttfa_ms_median']:.0f} ms" for count in CPU_STREAMS[1:]]
        first = runs[CPU_STREAMS[0]]
        yield (
            f"Two cores of a server CPU (AMD EPYC), shipped voice: one stream takes {first['rtf']:.2f} of its "
            f"duration, first audio after {first['ttfa_ms_median']:.0f} ms; four {times[0]}; sixteen {times[1]}."
        )
    if load is not None:
        run = max(load["runs"], key=lambda each: each["load"]["listeners"])
        dry = run["underrun_requests"]
        told = f"none of {run['requests']} requests" if not dry else f"{dry} of {run['requests']} requests"
        yield f"With {run['load']['listeners']} listeners over HTTP {told} ran dry."


def _about(engine: Json, omni: Json | None) -> str:
    card = engine["card"].removeprefix("NVIDIA ")
    told = f"One {card}, random weights of the released shapes, bfloat16. A frame is everything but the codec decoder"
    if omni is None:
        return f"{told}:"
    one, many = (number(omni["times"][f"frame ms, {rows} rows at 200"]["ms"]) for rows in (1, 32))
    return f"{told}; one of a Qwen3-Omni answer takes {one} ms, of 32 {many} ms:"


def card_rows(engine: Json, servers: Json | None) -> Rows:
    """Rows of the engine's frames and audio, and of the server in front of it, by size of the model."""
    sizes = list(engine["frame_ms"])
    rows: Rows = [["", *map(str.upper, sizes)], _frames(engine, sizes)]
    audio, dry = engine.get("engine_audio_s_per_s", {}), engine.get("engine_dry_streams", {})
    told = "none dry" if dry and not any(any(counts.values()) for counts in dry.values()) else "some dry"
    first = f"{number(engine['first_pcm_ms'])} ms"
    rows.append(
        [
            f"seconds of audio a second with {', '.join(STREAMS)} streams, {told}; first audio of an idle engine",
            *(f"{_by_streams(audio[size])}; {first}" if size in audio else NONE for size in sizes),
        ]
    )
    for name, by_size in () if servers is None else _served(servers):
        rows.append([name, *(by_size.get(size, NONE) for size in sizes)])
    return rows


def _frames(engine: Json, sizes: Sequence[str]) -> list[str]:
    name = f"a frame of {', '.join(STREAMS)} streams"
    cells = [f"{_by_streams(engine['frame_ms'][size])} ms" for size in sizes]
    for peer, measured in engine.get("peers", {}).items():
        name += f"; of 1 by {peer} {measured['versions'].get(peer, '')}".rstrip()
        times = [measured["frame_ms"].get(size, {}).get("1") for size in sizes]
        cells = [cell if ms is None else f"{cell}; {number(ms)} ms" for cell, ms in zip(cells, times, strict=True)]
    return [name, *cells]


def _by_streams(values: Mapping[str, float]) -> str:
    return numbers([values.get(count) for count in STREAMS], ", ")


def _served(servers: Json) -> Iterator[tuple[str, dict[str, str]]]:
    """Rows of the servers, each with its cell by size: the most audio, and the starts of the server that made it."""
    runs = [
        (run["audio_s_per_s"], told, size, entry)
        for told, result in results_by_fronts(servers)
        for size, entries in result["server"].items()
        for entry in entries.values()
        if (run := entry["listeners"].get(LISTENERS)) is not None
    ]
    if not runs:
        return
    audio, told, size, entry = max(runs, key=lambda each: each[0])
    run = entry["listeners"][LISTENERS]
    dry = f"{run['underrun_requests']} of {run['requests']} dry" if run["underrun_requests"] else "none dry"
    alone = [number(others) for others, its, _, _ in runs if its == "one HTTP process" != told]
    beside = f" (one process: {alone[0]})" if alone else ""
    name = f"seconds of audio a second for {LISTENERS} listeners over HTTP, {told}, {dry}{beside}"
    yield name, {size: number(audio)}
    starts = list(_starts(servers, size, told))
    if starts:
        yield "; ".join(name for name, _ in starts), {size: "; ".join(cell for _, cell in starts)}


def _starts(servers: Json, size: str, best: str) -> Iterator[tuple[str, str]]:
    """First audio of the fastest load of texts with a length, and of the largest burst.

    They are those of the server with the number of fronts `best` if it has them, and else of another, which is named.
    """
    entries = [
        (told, entry)
        for told, result in sorted(results_by_fronts(servers), key=lambda each: each[0] != best)
        for entry in result["server"].get(size, {}).values()
    ]
    for told, entry in entries:
        lengths = [name for name in entry["rate"] if " " in name]
        if lengths:
            name = max(lengths, key=_amount)
            run = entry["rate"][name]
            dry = f"{run['underrun_requests']} dry" if run["underrun_requests"] else "none dry"
            others = "" if told == best else f", {told}"
            times = numbers([run["ttfa_ms"]["p50"], run["ttfa_ms"]["p95"]], ", ")
            yield f"{load_name('rate', name)}{others}: first audio p50, p95, {dry}", f"{times} ms"
            break
    for told, entry in entries:
        if entry["burst"]:
            name = max(entry["burst"], key=_amount)
            last_ms = max(burst["last_first_audio_ms"] for burst in entry["burst"][name]["bursts"])
            others = "" if told == best else f", {told}"
            yield f"{name.split()[0]} in one moment{others}: last first audio", f"{number(last_ms)} ms"
            break


def _amount(name: str) -> float:
    return float(name.split()[0])


# ---- operators ------------------------------------------------------------------------------------------------

SIZES_HEAD = [
    "machine",
    "load",
    "first audio p50, p95",
    "audio a second, s",
    "ran dry",
    "cores: each HTTP process, engines",
]


def sizes(documents: Sequence[Json]) -> list[str]:
    """The table of the loads that one server of each card was put under."""
    rows: Rows = [SIZES_HEAD]
    for document in documents:
        for fronts, result in results_by_fronts(document):
            entries = [entry for by_cards in result["server"].values() for entry in by_cards.values()]
            machine = ", ".join(
                [result["cards"][0], result["machine"].rpartition(", ")[2], *([fronts] if fronts else ())]
            )
            for entry in entries:
                for kind in ("rate", "listeners"):
                    rows += [_size(machine, load_name(kind, name), run) for name, run in entry[kind].items()]
    return markdown(rows)


def _size(machine: str, load: str, run: Json) -> list[str]:
    times = f"{run['ttfa_ms']['p50']:.0f}, {run['ttfa_ms']['p95']:.0f} ms"
    dry = f"{run['underrun_requests']} of {run['requests']}"
    return [machine, load, times, number(run["audio_s_per_s"]), dry, cores_told(run)]
