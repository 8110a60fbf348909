"""`vivavoce bench card`: measures the first NVIDIA card, and with --share writes a row for the table of cards.

Weights are random, with the released shapes, so nothing is downloaded. Kernels are compiled into a new folder, so the
first start is that of a new machine. Each measurement is a process of its own. It therefore leaves the card empty, and
takes no other with it when it fails. CUDA_VISIBLE_DEVICES chooses among several cards.
"""

import argparse
import datetime
import json
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
Json = dict[str, Any]

SIZES = ("0.6b", "1.7b")
ROWS = (1, 8, 64)
"""Rows of a timed frame, and streams of a timed engine: those of the table."""
CONTEXT = 200
"""Positions in the KV cache at which a frame is timed."""
FRAMES, QUICK_FRAMES = 250, 100
"""Frames of each stream of a timed engine."""
START_ROWS = 8
RESERVE_GB = 1.5
"""Memory of a card beside the weights without which a model is not tried: context, graphs, keys and values of a row."""
ON_CARD_GB = 10.0
"""Memory of a card from which random weights are made on it. On a smaller one the CPU makes them."""
GB = 1e9
ISSUES = "https://github.com/vivavoce-speech/vivavoce/issues/new?template=card.yml"
COLUMNS = (
    "card",
    "driver, torch, Triton",
    "0.6B: ms a frame of 1, 8, 64 rows",
    "1.7B: ms a frame",
    "0.6B: seconds of audio a second, 1, 8, 64 streams",
    "1.7B: seconds of audio",
    "first PCM, ms: 0.6B, 1.7B",
    "start, s: first, second",
    "GPU memory, GB: 0.6B, 1.7B",
    "Vivavoce, date, by",
)
"""The table of cards."""
NOT_MEASURED = "-"
FAILURE, NO_CARD = 1, 2


# ---- the command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `vivavoce bench card`. Entry point of the command line."""
    parser.description = "Measures the first NVIDIA card: frames, streams, first audio, start-up, memory"
    parser.add_argument("--share", action="store_true", help="write a row for the table of cards, and its figures")
    parser.add_argument(
        "--out", type=Path, default=Path("cards"), help="folder for CARD.json and CARD.md [%(default)s]"
    )
    parser.add_argument("--by", default="", metavar="NAME", help="your name for the row, such as @you")
    parser.add_argument("--quick", action="store_true", help="0.6B alone, no start-up: a minute instead of several")
    parser.add_argument(
        "--table", type=Path, nargs="+", metavar="FILE", help="print the table of these CARD.json, no more"
    )


def run(args: argparse.Namespace) -> int:
    """Runs `vivavoce bench card`. Entry point of the command line."""
    if args.table:
        print("\n".join(table([json.loads(path.read_text(encoding="utf-8")) for path in args.table])))
        return 0
    if reason := alone(why_no_card):
        print(f"vivavoce bench card measures an NVIDIA card, and there is none to measure: {reason}", file=sys.stderr)
        return NO_CARD
    document = measure(args.quick) | {"by": args.by}
    if args.share:
        share(document, args.out)
    else:
        print("\n".join(figures(document)))
    return FAILURE if document["faults"] else 0


def why_no_card() -> str:
    """Returns the reason for which there is no card that runs Vivavoce's kernels. Empty if there is one."""
    from vivavoce_engine.config import EngineConfig
    from vivavoce_engine.errors import EngineError
    from vivavoce_engine.gpu.choice import choices

    try:
        choices(EngineConfig(device="cuda", runner="triton"))
    except EngineError as error:
        return str(error)
    return ""


# ---- measuring


def measure(quick: bool) -> Json:
    """Measures everything and returns the document of CARD.json. A part that fails is named in its `faults`."""
    from vivavoce_bench.cards.server import PACKAGES
    from vivavoce_bench.listener.report import versions

    began_s = time.perf_counter()
    document: Json = {
        **alone(describe_card),
        "versions": versions(*PACKAGES),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": "vivavoce bench card" + " --quick" * quick,
        "frame_ms": {},
        "engine": {},
        "start_s": {},
        "skipped": {},
        "faults": {},
    }
    with tempfile.TemporaryDirectory(prefix="vivavoce-card-") as name:
        folder = Path(name)
        with kernel_cache(None if quick else folder / "kernels"):
            for size in SIZES[:1] if quick else SIZES:
                if reason := why_too_small(size, document["memory_gb"], shutil.disk_usage(folder).free / GB):
                    document["skipped"][size] = reason
                    say(f"{size} is left out: {reason}")
                    continue
                measure_size(size, folder, document, quick)
    document["took_s"] = round(time.perf_counter() - began_s)
    return document


def measure_size(size: str, folder: Path, document: Json, quick: bool) -> None:
    """Adds the figures of a model's size to the document."""
    model = folder / size

    def part(name: str, work: Callable[[], Any]) -> Any:
        say(f"{size}: {name} ...")
        try:
            return work()
        except Exception as error:
            document["faults"][f"{size} {name}"] = f"{type(error).__name__}: {error}"
            say(f"{size}: {name} failed: {type(error).__name__}: {error}")
            return None

    if part("weights", lambda: alone(write_weights, size, model, document["memory_gb"])) is None:
        return
    if not quick and not document["start_s"]:
        for name in ("first", "second"):
            document["start_s"][name] = part(f"{name} start", lambda: start_s(model, folder))
    frames = QUICK_FRAMES if quick else FRAMES
    document["engine"][size] = part("engine", lambda: largest_first(time_engine, model, frames))
    document["frame_ms"][size] = part("frames", lambda: largest_first(time_frames, size))
    shutil.rmtree(model)


def largest_first(timed: Callable[..., Json | None], *arguments: Any) -> Json:
    """Times with as many of ROWS as the card has room for, each attempt in a process of its own.

    Raises:
        MemoryError: there is no room for one row.
    """
    for count in range(len(ROWS), 0, -1):
        found = alone(timed, *arguments, ROWS[:count])
        if found is not None:
            return found
        say(f"no room for {ROWS[count - 1]} rows")
    raise MemoryError("the card has no room for one row")


def alone(work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Calls a function of this module in a new process, and returns its result. Its output goes to stderr."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), os.dup2, (2, 1)) as pool:
        return pool.submit(work, *arguments, **named).result()


@contextmanager
def kernel_cache(folder: Path | None) -> Iterator[None]:
    """Lets new processes keep compiled kernels in a folder. None leaves their usual one."""
    before = os.environ.get("TRITON_CACHE_DIR")
    if folder is not None:
        os.environ["TRITON_CACHE_DIR"] = str(folder)
    try:
        yield
    finally:
        if before is not None:
            os.environ["TRITON_CACHE_DIR"] = before
        elif folder is not None:
            del os.environ["TRITON_CACHE_DIR"]


def describe_card() -> Json:
    """The card's name, capability, multiprocessors, memory and driver."""
    import torch
    from vivavoce_engine.gpu.presence import driver_version

    from vivavoce_bench.cards.server import card_facts

    card = torch.cuda.get_device_properties(0)
    return {
        "card": card.name,
        "capability": f"sm_{card.major}{card.minor}",
        "multiprocessors": card.multi_processor_count,
        "memory_gb": round(card.total_memory / GB, 1),
        "driver": driver_version() or next(iter(card_facts("driver_version")), "unknown"),
    }


def why_too_small(size: str, memory_gb: float, disk_gb: float) -> str:
    """Returns the reason for which a size cannot be measured here. Empty if it can be tried."""
    needed_gb = weights_gb(size)
    if memory_gb < needed_gb + RESERVE_GB:
        return f"its weights take {needed_gb:.1f} GB, and the card has {memory_gb:.1f} GB"
    if disk_gb < needed_gb + RESERVE_GB:
        return (
            f"its weights take {needed_gb:.1f} GB, and the disk of temporary files has {disk_gb:.1f} GB free (TMPDIR)"
        )
    return ""


def weights_gb(size: str) -> float:
    """Size of a checkpoint's files: bfloat16, and float32 for the codec."""
    from math import prod

    from vivavoce_bench.cards.random_checkpoint import released_codec_config, released_config
    from vivavoce_bench.cards.tensor_sizes import codec_sizes, model_sizes

    model, codec = model_sizes(released_config(size)), codec_sizes(released_codec_config())
    return (2 * sum(map(prod, model.values())) + 4 * sum(map(prod, codec.values()))) / GB


def write_weights(size: str, folder: Path, memory_gb: float) -> bool:
    """Writes a checkpoint with random weights."""
    import torch

    from vivavoce_bench.cards.random_checkpoint import released_codec_config, released_config, write_random_checkpoint

    device = torch.device("cuda" if memory_gb >= ON_CARD_GB else "cpu")
    write_random_checkpoint(folder, released_config(size), released_codec_config(), device)
    return True


def start_s(model: Path, folder: Path) -> float:
    """Seconds from the command to a server that answers."""
    from vivavoce_bench.cards.server import server

    settings = ("--model", str(model), "--device", "cuda", "--runner", "triton", "--max-streams", str(START_ROWS))
    out = folder / "server.json"
    try:
        with server(settings, out) as running:
            return round(running.start_s, 1)
    except SystemExit:
        last = out.with_suffix(".log").read_text(encoding="utf-8", errors="replace").splitlines()[-1:]
        raise RuntimeError(f"the server did not start: {' '.join(last)}") from None


def time_engine(model: Path, frames: int, streams: Sequence[int]) -> Json | None:
    """Figures of the whole engine by streams, from cards/engine.py. None if they do not fit the card."""
    import torch
    from vivavoce_engine.errors import NoRoom

    from vivavoce_bench.cards.engine import measure_engine

    try:
        return measure_engine(model, streams, frames)
    except (torch.OutOfMemoryError, NoRoom) as error:
        say(str(error))
        return None


def time_frames(size: str, rows: Sequence[int]) -> Json | None:
    """Milliseconds a frame by rows, from cards/frame.py. None if they do not fit the card."""
    import torch

    from vivavoce_bench.cards.frame import times

    try:
        timed = times(size, list(rows), [CONTEXT], dependent=True, deterministic=True)
    except torch.OutOfMemoryError:
        return None
    return dict(timed[str(CONTEXT)])


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


# ---- telling


def share(document: Json, folder: Path) -> None:
    """Writes CARD.json and CARD.md, and prints the row with the place to post it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{file_name(document['card'])}.json"
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    lines = table([document])
    path.with_suffix(".md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))
    print(f"\nPost the last line, with {path}, at {ISSUES}")


def file_name(card: str) -> str:
    """Name of a card's file: NVIDIA GeForce RTX 4090 Laptop GPU → geforce-rtx-4090-laptop-gpu."""
    return re.sub(r"[^a-z0-9]+", "-", card.lower().removeprefix("nvidia")).strip("-") or "card"


def table(documents: Sequence[Json]) -> list[str]:
    """Lines of the table of cards in Markdown."""
    return [line(COLUMNS), line(["---"] * len(COLUMNS)), *(line(cells(each)) for each in documents)]


def line(texts: Sequence[str]) -> str:
    return f"| {' | '.join(text.replace('|', '/') for text in texts)} |"


def cells(document: Json) -> list[str]:
    """The texts of a card's row, one for each of COLUMNS."""
    versions = document["versions"]
    return [
        f"{document['card']} ({document['capability']}, {document['memory_gb']:.0f} GB)",
        joined([document["driver"], versions.get("torch"), versions.get("triton")]),
        *(joined(by_rows(document["frame_ms"].get(size) or {}, 1)) for size in SIZES),
        *(joined(by_rows(audio_s_per_s(document, size), 0)) for size in SIZES),
        joined([rounded(engine(document, size).get("first_pcm_ms"), 1) for size in SIZES]),
        joined([rounded(document["start_s"].get(name), 0) for name in ("first", "second")]),
        joined([rounded(engine(document, size).get("gpu_gb"), 1) for size in SIZES]),
        joined([versions.get("vivavoce-speech"), document["date"], document["by"]]),
    ]


def engine(document: Json, size: str) -> Json:
    found: Json = document["engine"].get(size) or {}
    return found


def audio_s_per_s(document: Json, size: str) -> dict[str, float]:
    """Streams → seconds of audio a second."""
    return {str(run["streams"]): run["audio_s_per_s"] for run in engine(document, size).get("runs", ())}


def by_rows(values: Mapping[str, float], digits: int) -> list[str | None]:
    return [rounded(values.get(str(rows)), digits) for rows in ROWS]


def rounded(value: float | None, digits: int) -> str | None:
    return None if value is None else f"{value:.{digits}f}"


def joined(texts: Sequence[str | None]) -> str:
    """The texts with commas between them. One that is not there is a dash, as are all of none."""
    known = [text or NOT_MEASURED for text in texts]
    return ", ".join(known) if any(texts) else NOT_MEASURED


def figures(document: Json) -> list[str]:
    """The figures as lines for people: the row's cells under each other, and what is missing."""
    width = max(map(len, COLUMNS))
    lines = [f"{column.ljust(width)}  {cell}" for column, cell in zip(COLUMNS, cells(document), strict=True)]
    lines += [f"{size} was left out: {reason}" for size, reason in document["skipped"].items()]
    lines += [f"{name} failed: {reason}" for name, reason in document["faults"].items()]
    return [*lines, f"measured in {document['took_s']} s; --share writes a row for the table of cards"]
