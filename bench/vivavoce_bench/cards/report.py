"""Combines results of other scripts in one document of a card: results/engine-CARD.json or results/fronts-CARD.json.

    python -m vivavoce_bench.cards.report FOLDER --out bench/results [--peer FILE] [--command TEXT]
    python -m vivavoce_bench.cards.report --servers FILE... --out bench/results

FOLDER contains the results of `make bench-gpu`: codec.json, frame.json and engine.json; --command says how they were
made, if otherwise. --peer takes a result of peer_faster_qwen3_tts.py. An existing document for the same card keeps the
figures that are not measured here, such as the step times that `vivavoce bench plan` reads.

--servers takes results of cards/server.py, each with another number of fronts.
"""

import argparse
import json
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vivavoce_bench.listener.report import versions

Json = dict[str, Any]
CONTEXT, LONG_CONTEXT = "200", "1000"


def report(codec: Json, frame: Json, engine: Json, peer: Json | None = None) -> Json:
    """The figures of all scripts, by their usual names.

    Raises:
        ValueError: they were measured on different cards.
    """
    each = (("codec", codec["versions"]), ("frame", frame), ("engine", engine), *((("peer", peer),) if peer else ()))
    cards = {name: measured["card"] for name, measured in each}
    if len(set(cards.values())) > 1:
        raise ValueError(f"measured on several cards: {cards}")
    runs = {str(run["streams"]): run for run in engine["runs"]}
    model = engine["model"]
    document: Json = {
        "card": frame["card"],
        "frame_ms": frame_times(frame, CONTEXT),
        "frame_ms_context_1000": frame_times(frame, LONG_CONTEXT),
        "frame_ms_without_deterministic": frame_times(frame, CONTEXT, deterministic=0),
        "code2wav_us_per_frame": us_per_frame(codec["graph_ms"]),
        "engine_audio_s_per_s": {model: {streams: run["audio_s_per_s"] for streams, run in runs.items()}},
        "engine_dry_streams": {model: {streams: run["dry_streams"] for streams, run in runs.items()}},
        "first_pcm_ms": engine["first_pcm_ms"],
        "first_pcm_ms_worst": engine["first_pcm_ms_worst"],
        "steps_ahead": engine["steps_ahead"],
    }
    if engine.get("burst"):
        document["burst"] = {model: engine["burst"]}
    if peer is not None:
        kept = ("versions", "command", "frame_ms", "frame_ms_cache_512", "first_chunk_ms")
        document["peers"] = {"faster-qwen3-tts": {name: peer[name] for name in kept if name in peer}}
    return document


def servers(documents: Sequence[Json]) -> Json:
    """The results of cards/server.py by the number of fronts, each with its own versions and command.

    Raises:
        ValueError: they were measured on different cards, or two of them with as many fronts.
    """
    cards = {card for document in documents for card in document["cards"]}
    if len(cards) != 1:
        raise ValueError(f"measured on several cards, or on none: {sorted(cards)}")
    by_fronts: dict[int, Json] = {}
    for document in documents:
        fronts = fronts_of(document["command"])
        if fronts in by_fronts:
            raise ValueError(f"measured twice with --fronts {fronts}")
        by_fronts[fronts] = document
    return {"card": cards.pop(), "fronts": {str(fronts): by_fronts[fronts] for fronts in sorted(by_fronts)}}


def fronts_of(command: str) -> int:
    """The number of fronts in a command of cards/server.py.

    Raises:
        ValueError: the command leaves the number to the machine.
    """
    words = [part for word in shlex.split(command) for part in word.split("=", 1)]
    if "--fronts" not in words[:-1] or not (fronts := words[words.index("--fronts") + 1]).isdigit():
        raise ValueError(f"without --fronts NUMBER: {command}")
    return int(fronts)


def frame_times(frame: Json, context: str, deterministic: int = 1) -> dict[str, dict[str, float]]:
    """Milliseconds per frame by size and rows, with programmatic dependent launch."""
    ending = f" dependent launch 1 deterministic {deterministic}"
    timed = {name: times for name, times in frame.items() if name.startswith("times ") and name.endswith(ending)}
    return {
        name.split()[1]: {rows: round(ms, 3) for rows, ms in times[context].items()} for name, times in timed.items()
    }


def us_per_frame(graph_ms: Mapping[str, float]) -> dict[str, float]:
    """Converts milliseconds per call, by `ROWSxFRAMES`, to microseconds per frame."""
    found = {}
    for call, ms in graph_ms.items():
        rows, frames = map(int, call.split("x"))
        found[call] = round(1000 * ms / (rows * frames), 1)
    return found


def short_name(card: str) -> str:
    """Short name of a card, its first word with a digit: NVIDIA H100 80GB HBM3 → h100."""
    return next((word for word in card.lower().split() if any(letter.isdigit() for letter in word)), "gpu")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("folder", type=Path, nargs="?")
    what.add_argument("--servers", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--out", type=Path, required=True, help="folder for the document")
    parser.add_argument("--peer", type=Path)
    parser.add_argument("--command", default="make bench-gpu", help="what has made FOLDER [%(default)s]")
    args = parser.parse_args()
    try:
        name, document = ("fronts", servers(_read(args.servers))) if args.servers else ("engine", _of_engine(args))
    except ValueError as error:
        sys.exit(f"cards/report.py: {error}")
    path = args.out / f"{name}-{short_name(document['card'])}.json"
    if name == "engine":
        before = json.loads(path.read_text("utf-8")) if path.exists() else {}
        document = {**(before if before.get("card") == document["card"] else {}), **document}
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(path)


def _of_engine(args: argparse.Namespace) -> Json:
    codec, frame, engine = _read(args.folder / f"{name}.json" for name in ("codec", "frame", "engine"))
    peer = None if args.peer is None else _read([args.peer])[0]
    measured_with = engine.get("versions") or versions("torch", "triton")
    return {**report(codec, frame, engine, peer), "versions": measured_with, "command": args.command}


def _read(paths: Iterable[Path]) -> list[Json]:
    return [json.loads(path.read_text("utf-8")) for path in paths]


if __name__ == "__main__":
    main()
