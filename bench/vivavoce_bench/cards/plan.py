"""Compares `vivavoce bench plan` with a real server: step times, a server under load, and the check, in one run.

    python -m vivavoce_bench.cards.plan --model FOLDER --out FOLDER [--steps FILE]

All steps run on this machine. `vivavoce bench steps` records step times, server.py measures the first audio of one
server, and the server's requests are then simulated with those step times. `bench steps` does not record `front_ms`,
so it is taken from --like; the check scales it to the CPU time of the server's HTTP processes. With --steps no step
times are recorded.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

VIVAVOCE = (sys.executable, "-m", "vivavoce_client")
AROUND_MS = 1.2
"""Milliseconds that network and client add to a first audio on one machine. LOG.md gives the source."""


def take_over_front(steps: Path, like: Path) -> None:
    """Copies `front_ms` from the file `like` into the file of step times."""
    recorded, other = (json.loads(path.read_text(encoding="utf-8")) for path in (steps, like))
    front_ms = {"front_ms": other["front_ms"]}
    steps.write_text(json.dumps({**recorded, **front_ms}, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--like", type=Path, default=Path("bench/results/engine-h100.json"))
    parser.add_argument("--steps", type=Path, help="file of this machine's step times")
    parser.add_argument("--rows", nargs="+", default=["1", "2", "4", "8", "16", "32", "64", "128"])
    parser.add_argument("--rate", nargs="+", default=["10", "20", "60", "100"])
    parser.add_argument("--duration", default="30")
    parser.add_argument("--max-streams", default="256")
    parser.add_argument("--fronts", default="1", help="HTTP processes of the server [%(default)s]")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    steps, requests = args.steps or args.out / "steps.json", args.out / "requests.json"
    name = args.model.name
    model = ["--model", str(args.model)]
    if args.steps is None:
        record = [*VIVAVOCE, "bench", "steps", *model, "--name", name, "--rows", *args.rows, "-o", str(steps)]
        subprocess.run(record, check=True)
        take_over_front(steps, args.like)
    server = [sys.executable, "-m", "vivavoce_bench.cards.server", *model, "--out", str(args.out / "server.json")]
    server += ["--requests", str(requests), "--rate", *args.rate, "--duration", args.duration]
    settings = ["--max-streams", args.max_streams, "--fronts", args.fronts, "--max-context", "1024"]
    subprocess.run([*server, "--", *settings], check=True)
    check = [*VIVAVOCE, "bench", "plan", "--steps", str(steps), "--model", name, "--check", str(requests)]
    check += ["--max-streams", args.max_streams, "--fronts", args.fronts, "--serving-ms", str(AROUND_MS)]
    with (args.out / "check.txt").open("w", encoding="utf-8") as output:
        subprocess.run(check, stdout=output, check=True)
    print((args.out / "check.txt").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
