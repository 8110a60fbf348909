"""Combines the results of the scripts of `make bench-gpu` in one document: results/engine-CARD.json.

    python -m vivavoce_bench.cards.report FOLDER --out bench/results [--peer FILE]

FOLDER contains codec.json, frame.json and engine.json. FILE is a result of peer_faster_qwen3_tts.py. An existing
document for the same card keeps the figures that are not measured here, such as the step times that
`vivavoce bench plan` reads.
"""

import argparse
import json
import platform
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

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
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="folder for the document")
    parser.add_argument("--peer", type=Path)
    args = parser.parse_args()
    codec, frame, engine = (
        json.loads((args.folder / f"{name}.json").read_text("utf-8")) for name in ("codec", "frame", "engine")
    )
    peer = None if args.peer is None else json.loads(args.peer.read_text("utf-8"))
    try:
        measured = report(codec, frame, engine, peer)
    except ValueError as error:
        sys.exit(f"cards/report.py: {error}")
    path = args.out / f"engine-{short_name(measured['card'])}.json"
    before = json.loads(path.read_text("utf-8")) if path.exists() else {}
    if before.get("card", measured["card"]) != measured["card"]:
        before = {}
    versions = {name: version(name) for name in ("torch", "triton")} | {"python": platform.python_version()}
    document = {**before, **measured, "versions": versions, "command": "make bench-gpu"}
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(path)


if __name__ == "__main__":
    main()
