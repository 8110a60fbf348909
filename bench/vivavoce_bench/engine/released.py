"""Released shapes on this machine's CPU: `vivavoce bench engine` over random weights, for each runner and dtype.

    python -m vivavoce_bench.engine.released --size 0.6b --kinds native:int8 native:bfloat16 torch:bfloat16

Each kind runs in a process of its own, so that its memory is its own. Beside what was measured stands what `vivavoce
doctor` foretells by its trial. The last line is one JSON document.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FRAMES = 60
FRAME_MS = 80.0
COLUMNS = (
    "runner",
    "streams",
    "RTF",
    "ms a frame of all streams",
    "foretold ms",
    "first audio, ms",
    "MB loaded, at most",
    "time in",
)


def speed_of(folder: Path, kind: str, streams: Sequence[int], threads: str) -> dict[str, Any]:
    """The JSON document of `vivavoce bench engine` for a kind such as native:int8."""
    runner, dtype = kind.split(":")
    command = [sys.executable, "-m", "vivavoce_bench.engine.speed", "--model", str(folder), "--device", "cpu"]
    command += ["--runner", runner, "--dtype", dtype, "--threads", threads, "--frames", str(FRAMES)]
    command += ["--utterances", "1", "--streams", *map(str, streams)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    document: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return document


def foretold_ms(size: str, kind: str, threads: str) -> dict[int, float]:
    """Streams → milliseconds that the trial of `vivavoce doctor` foretells. Empty for PyTorch."""
    from vivavoce_engine.cpu.forecast import forecast
    from vivavoce_engine.cpu.library import BFLOAT16, INT8, load_library
    from vivavoce_engine.cpu.threads import share_out
    from vivavoce_engine.cpu.work import RELEASED, RELEASED_HIDDEN_SIZE

    runner, dtype = kind.split(":")
    if runner != "native":
        return {}
    shared = share_out("auto" if threads == "auto" else int(threads), RELEASED_HIDDEN_SIZE)
    weights = INT8 if dtype == "int8" else BFLOAT16
    return dict(forecast(load_library(), RELEASED[size.upper()], weights, shared).frame_ms)


def lines_of(kind: str, document: dict[str, Any], foretold: dict[int, float]) -> list[str]:
    """Rows of the table, one for each number of streams."""
    memory = f"{document['loaded_rss_mb']}, {document['peak_rss_mb']}"
    lines = []
    for run in document["runs"]:
        streams, share = run["streams"], ", ".join(f"{name} {part:.0%}" for name, part in run["share"].items())
        trial = f"{foretold[streams]:.0f}" if streams in foretold else "-"
        cells = [kind, str(streams), f"{run['rtf']:.2f}", f"{run['rtf'] * FRAME_MS:.0f}", trial]
        cells += [f"{run['ttfa_ms_median']:.0f}", memory, share]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=("0.6b", "1.7b"), required=True)
    parser.add_argument(
        "--kinds", nargs="+", default=["native:int8", "native:bfloat16"], help="runner:dtype [%(default)s]"
    )
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--threads", default="auto")
    parser.add_argument(
        "--folder", type=Path, help="checkpoint that random_checkpoint has written; the default is a new one"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        if args.folder is None:
            writer = [sys.executable, "-m", "vivavoce_bench.cards.random_checkpoint", "--device", "cpu"]
            subprocess.run([*writer, "--size", args.size, "--out", str(folder)], check=True)
        print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}", flush=True)
        documents = {}
        for kind in args.kinds:
            documents[kind] = speed_of(folder, kind, args.streams, args.threads)
            print("\n".join(lines_of(kind, documents[kind], foretold_ms(args.size, kind, args.threads))), flush=True)
    print(json.dumps(documents))


if __name__ == "__main__":
    main()
