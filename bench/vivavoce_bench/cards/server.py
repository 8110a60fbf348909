"""A server on this machine's cards under load: first audio, underruns, refusals, audio per second, memory at rest.

    python -m vivavoce_bench.cards.server --model FOLDER --out FILE [--gpus 0 0+1] [--rate 1 10 60] \\
        [--listeners 256 512] [--burst 64] [--prompts short=en@9 long=en:20s] [--duration 60] \\
        [--then --rate 100 --prompts en:5.7s ...] [-- SETTINGS OF `vivavoce serve`]

Each --then begins further loads of the same servers, with flags of their own. The entries of --gpus are measured in
turn: `0` is one server on the first card, `0+1` two servers with a card each.
Two servers get equal parts of the load, as from a perfect balancer, each from a `vivavoce bench load` of its own.
Without a load, only the start and the memory at rest are measured. On a machine without cards, omit --gpus. FILE
receives one JSON document, which is complete after each load; --requests receives one for `vivavoce bench plan
--check`.

Two processes that only sleep for a millisecond at a time detect stalls of the machine itself. Both documents list the
stalls, because the measured times include them.
"""

import argparse
import json
import multiprocessing
import os
import platform
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from vivavoce_bench.listener.report import measurement_of, rounded, versions
from vivavoce_bench.listener.summary import Heard, summarize

VIVAVOCE = (sys.executable, "-m", "vivavoce_client")
INVALID = 1
"""Exit status of a load with incomplete or inaudible answers. Such a load is a result too."""
REFUSED = "HTTP 429"
MODULES = {"front": "vivavoce_server.fronts", "engine": "vivavoce_engine.process"}
"""Kinds of a server's child processes, and the Python package that each runs."""
KINDS = ("rate", "listeners", "burst")
USUAL_TEXTS = ("en",)
DURATION_S, WARMUP_S = 20.0, 5.0
PACKAGES = ("torch", "triton", "uvicorn", "uvloop", "vivavoce-speech")
THEN = "--then"
START_LIMIT_S = 400.0
STOP_LIMIT_S = 60.0
SEED_STEP = 1_000_000
"""Distance between the seeds of two servers' loads, so that no two requests are the same."""
TICK_S, LATE_S = 0.001, 0.005
"""Seconds that a watcher sleeps, and the minimum delay of its waking that counts as a stall."""
TIMES_OF_DAY = ("due_s", "begun_s", "finished_s", "sent_s", "heard_from_s", "heard_until_s")

Spans = list[tuple[float, float]]
"""Pairs (start, end), in seconds."""


@dataclass(frozen=True, slots=True)
class Server:
    """A running server. `start_s` is the time that it took to become ready."""

    url: str
    pid: int
    start_s: float


@dataclass(frozen=True, slots=True)
class SharedLoad:
    """The load of all servers together: requests per second, concurrent listeners, or requests in one moment."""

    kind: str
    """`rate`, `listeners` or `burst`."""
    amount: float
    texts: tuple[str, ...] = USUAL_TEXTS
    """Classes of texts, as `vivavoce bench load --prompts` takes them."""
    duration_s: float = DURATION_S
    warmup_s: float = WARMUP_S

    @property
    def name(self) -> str:
        """The amount, and the classes of texts unless they are the usual ones: 100 en:5.7s."""
        return " ".join((f"{self.amount:g}", *(self.texts if self.texts != USUAL_TEXTS else ())))

    @property
    def flags(self) -> list[str]:
        """The flags that all servers' `vivavoce bench load` share."""
        return [f"--duration={self.duration_s:g}", f"--warmup={self.warmup_s:g}", "--prompts", *self.texts]

    def share(self, server: int, servers: int) -> list[str] | None:
        """The flags for one of `servers` servers; None if no load is left for it."""
        if self.kind == "rate":
            return ["--rate", repr(self.amount / servers)]
        whole, rest = divmod(int(self.amount), servers)
        requests = whole + (server < rest)
        return [{"listeners": "--concurrency", "burst": "--burst"}[self.kind], str(requests)] if requests else None


@dataclass(frozen=True, slots=True)
class Generated:
    """The measurements at one server. `started_s` is the origin of its requests' times, by the machine's clock."""

    run: dict[str, Any]
    requests: list[dict[str, Any]]
    started_s: float


# ---- the server -----------------------------------------------------------------------------------------------


@contextmanager
def server(settings: Sequence[str], out: Path) -> Iterator[Server]:
    """Runs `vivavoce serve` on a free port and waits until it is ready. Its output goes into a file next to `out`."""
    log = out.with_suffix(".log")
    with tempfile.TemporaryDirectory() as folder, log.open("a") as output:
        address = Path(folder) / "address"
        command = [*VIVAVOCE, "serve", "--port", "0", "--address-file", str(address), *settings]
        started_s = time.monotonic()
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            while not address.exists():
                if process.poll() is not None or time.monotonic() - started_s > START_LIMIT_S:
                    raise SystemExit(f"the server did not start; see {log}")
                time.sleep(0.1)
            yield Server(address.read_text(encoding="utf-8"), process.pid, time.monotonic() - started_s)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()


def cpu_s(pid: int) -> dict[int, float]:
    """CPU time so far of a process and its children, in seconds by process id. The process itself comes first."""
    ticks = os.sysconf("SC_CLK_TCK")
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # the process has just ended
            continue
        number, parent = int(stat.parent.name), int(fields[1])
        if pid in (number, parent):
            found[number] = (int(fields[11]) + int(fields[12])) / ticks
    return dict(sorted(found.items(), key=lambda item: item[0] != pid))


def kind_of(pid: int, server: Server) -> str:
    """The work of one of a server's processes. A server without fronts is its own front."""
    if pid == server.pid:
        return "server"
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:  # it has ended
        return "other"
    return next((kind for kind, module in MODULES.items() if module in command), "other")


def card_facts(what: str) -> list[str]:
    """One of nvidia-smi's figures for each card; empty without cards."""
    try:
        command = ["nvidia-smi", f"--query-gpu={what}", "--format=csv,noheader,nounits"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return []


def cards_gb() -> list[float]:
    return [float(mib) * 2**20 / 1e9 for mib in card_facts("memory.used")]


# ---- the load -------------------------------------------------------------------------------------------------


def generate(load: SharedLoad, servers: Sequence[Server], frames_per_char: float, generators: int) -> list[Generated]:
    """Puts load on all servers at once. The generators are spread evenly over the servers."""
    with tempfile.TemporaryDirectory() as folder:
        running = []
        for number, each in enumerate(servers):
            share = load.share(number, len(servers))
            if share is None:
                continue
            output = Path(folder) / f"{number}.json"
            command = [*VIVAVOCE, "bench", "load", "--url", each.url, *share, *load.flags]
            command += [f"--frames-per-char={frames_per_char}"]
            command += ["--generators", str(max(1, generators // len(servers)))]
            command += ["--seed", str(number * SEED_STEP), "-o", str(output)]
            running.append((subprocess.Popen(command, stdout=subprocess.DEVNULL), output))
        generated = []
        for process, output in running:
            if process.wait() not in (0, INVALID):
                raise SystemExit(f"`vivavoce bench load` gave {process.returncode}")
            document = json.loads(output.read_text(encoding="utf-8"))
            (run,), (requests,) = document["runs"], document["requests"]
            generated.append(Generated(run, requests, run["started_at_s"]))
    return generated


@contextmanager
def stalls_watched() -> Iterator[Spans]:
    """Watches for stalls of the machine inside the block. The list is filled at the end, by the machine's clock."""
    context = multiprocessing.get_context("spawn")
    ends, processes = [], []
    for _ in range(2):
        mine, its = context.Pipe()
        process = context.Process(target=watch, args=(its,), daemon=True)
        process.start()
        ends.append(mine)
        processes.append(process)
    found: Spans = []
    try:
        yield found
    finally:
        for end in ends:
            end.send(None)
        late = [end.recv() for end in ends]
        for process in processes:
            process.join()
        found += common(*late)


def watch(end: Connection) -> None:
    """Sleeps repeatedly until `end` says stop, then sends the spans in which it woke too late."""
    late: Spans = []
    slept_s = time.time()
    while not end.poll(TICK_S):
        woke_s = time.time()
        if woke_s - slept_s > TICK_S + LATE_S:
            late.append((slept_s + TICK_S, woke_s))
        slept_s = woke_s
    end.send(late)


def common(first: Spans, second: Spans) -> Spans:
    """Spans in which both watchers were late for long enough. A single late watcher has only lost its core."""
    both = [(max(a, c), min(b, d)) for a, b in first for c, d in second]
    return [(start_s, end_s) for start_s, end_s in both if end_s - start_s > LATE_S]


def pooled(generated: Sequence[Generated], stalls: Spans) -> dict[str, Any]:
    """The figures of a load, all servers together. Times and shares cover the measured requests, without warm-up."""
    zero_s = min((each.started_s for each in generated), default=0.0)
    measurements = [
        measurement_of(moved(request, each.started_s - zero_s)) for each in generated for request in each.requests
    ]
    runs = [each.run for each in generated]
    window = max(((run["warmup_s"], run["warmup_s"] + run["duration_s"]) for run in runs), default=(0.0, 1.0))
    summary = summarize(measurements, window, bursts=any(run["bursts"] for run in runs))
    errors = [each.error for each in measurements if not each.warmup and each.error is not None]
    refused = sum(error.startswith(REFUSED) for error in errors)
    figures = {
        "valid": summary.valid,
        "on_time": all(run["on_time"] for run in runs),
        "requests": summary.requests,
        "completed": summary.requests - summary.incomplete,
        "refused": refused,
        "failed": len(errors) - refused,
        "faults": dict(Counter(each.error for each in measurements if each.error is not None)),
        **_heard(summary),
        "audio_s_per_s": sum(run["received_audio_s_per_s"] for run in runs),
        "classes": {name: _heard(heard) for name, heard in summary.classes.items() if len(summary.classes) > 1},
        "bursts": [asdict(burst) for burst in summary.bursts],
        "generator_lag_p95_ms": max((run["generators"]["lag_p95_ms"] for run in runs), default=0.0),
        "generator_cores": [cores for run in runs for cores in run["generators"]["cores"]],
        "machine_stalls": len(stalls),
        "machine_stalled_ms": round(1000 * sum(end_s - start_s for start_s, end_s in stalls), 1),
    }
    result: dict[str, Any] = rounded(figures)
    return result


def _heard(heard: Heard) -> dict[str, Any]:
    return {
        "heard": heard.requests - heard.incomplete,
        "ttfa_ms": percentiles(heard, "ttfa_ms"),
        "first_sample_ms": percentiles(heard, "first_playable_ms"),
        "safe_start_ms": percentiles(heard, "safe_start_ms"),
        "end_to_end_ms": percentiles(heard, "end_to_end_ms"),
        "rtf": percentiles(heard, "rtf"),
        "lag_ms": percentiles(heard, "lag_ms"),
        "underrun_requests": heard.underrun_requests,
        "longest_underrun_ms": heard.longest_stall_ms,
        "buffered": {size: asdict(each) for size, each in heard.buffered.items()},
        "continuity": {**heard.continuity, "of": heard.continuity_requests},
    }


def percentiles(heard: Heard, figure: str) -> dict[str, float] | None:
    found = heard.figures.get(figure)
    return None if found is None else {"p50": found.p50, "p95": found.p95, "p99": found.p99}


def checkable(
    load: SharedLoad, generated: Sequence[Generated], stalls: Spans, front_cpu_s: float
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A run in the form that `vivavoce bench plan --check` reads: its facts and its requests, timed by one clock."""
    zero_s = min((each.started_s for each in generated), default=0.0)
    requests = [moved(request, each.started_s - zero_s) for each in generated for request in each.requests]
    requests.sort(key=lambda each: each["due_s"])
    facts: dict[str, Any] = {
        "load": {"poisson_rate": load.amount} if load.kind == "rate" else {load.kind: int(load.amount)},
        "requests": sum(not each["warmup"] for each in requests),
        "front_cpu_s": round(front_cpu_s, 2),
        "stalls": [[round(start_s - zero_s, 4), round(end_s - start_s, 4)] for start_s, end_s in stalls],
    }
    return facts, requests


def moved(request: Mapping[str, Any], by_s: float) -> dict[str, Any]:
    """The same request on a clock that started `by_s` seconds earlier."""
    times = {name: request[name] + by_s for name in TIMES_OF_DAY if request[name] is not None}
    return {**request, **times}


# ---- all of it ------------------------------------------------------------------------------------------------


def card_flags(gpus: str | None) -> list[list[str]]:
    """Converts an entry of --gpus to the flags that give each server its card."""
    return [["--device", f"cuda:{card}"] for card in gpus.split("+")] if gpus else [[]]


def measure(
    gpus: str | None, loads: Sequence[SharedLoad], args: argparse.Namespace
) -> Iterator[tuple[dict[str, Any], list[Any]]]:
    """Measures one server or several under each load in turn.

    Yields all figures and the runs that can be checked, after the start and after each load.
    """
    before_gb = cards_gb()
    with ExitStack() as stack:
        servers = [
            stack.enter_context(server(["--model", str(args.model), *card, *args.settings], args.out))
            for card in card_flags(gpus)
        ]
        entry: dict[str, Any] = {
            "start_s": [round(each.start_s, 1) for each in servers],
            "rest_gb": [round(after - before, 2) for before, after in zip(before_gb, cards_gb(), strict=True)],
            **{kind: {} for kind in KINDS},
        }
        runs: list[Any] = []
        yield entry, runs
        for load in loads:
            figures, run = measure_load(load, servers, args)
            entry[load.kind][load.name] = figures
            runs.append(run)
            print(f"{gpus}, {load.kind} {load.name}: {json.dumps(figures)}", flush=True)
            yield entry, runs


def measure_load(
    load: SharedLoad, servers: Sequence[Server], args: argparse.Namespace
) -> tuple[dict[str, Any], tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Measures the servers under one load. Returns its figures, and its run for `vivavoce bench plan --check`."""
    cpu_before = [cpu_s(each.pid) for each in servers]
    started_s = time.monotonic()
    with stalls_watched() as stalls:
        generated = generate(load, servers, args.frames_per_char, args.generators)
    taken_s = time.monotonic() - started_s
    figures = pooled(generated, stalls)
    taken_cpu_s = [
        {pid: cpu - before.get(pid, 0.0) for pid, cpu in cpu_s(each.pid).items()}
        for each, before in zip(servers, cpu_before, strict=True)
    ]
    kinds = [{pid: kind_of(pid, each) for pid in taken} for each, taken in zip(servers, taken_cpu_s, strict=True)]
    figures["server_cores"] = [[round(cpu / taken_s, 2) for cpu in each.values()] for each in taken_cpu_s]
    figures["server_processes"] = [list(each.values()) for each in kinds]
    front_cpu_s = sum(
        cpu
        for each, taken in zip(kinds, taken_cpu_s, strict=True)
        for pid, cpu in taken.items()
        if each[pid] in ("server", "front")
    )
    return figures, checkable(load, generated, stalls, front_cpu_s)


def scaling(entries: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Audio per second of each entry relative to the first entry, by listeners."""
    first = next(iter(entries.values()))["listeners"]
    return {
        name: {
            count: round(run["audio_s_per_s"] / first[count]["audio_s_per_s"], 3)
            for count, run in entry["listeners"].items()
            if first[count]["audio_s_per_s"]
        }
        for name, entry in entries.items()
    }


def load_arguments() -> argparse.ArgumentParser:
    """The flags of the loads. Each --then has its own."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--rate", type=float, nargs="+", default=[])
    parser.add_argument("--listeners", type=int, nargs="+", default=[])
    parser.add_argument("--burst", type=int, nargs="+", default=[])
    parser.add_argument("--prompts", nargs="+", default=USUAL_TEXTS, help="as for `vivavoce bench load` [en]")
    parser.add_argument("--duration", type=float, default=DURATION_S, help="seconds [%(default)g]")
    parser.add_argument("--warmup", type=float, default=WARMUP_S, help="seconds before them [%(default)g]")
    return parser


def parse(words: Sequence[str]) -> tuple[argparse.Namespace, list[SharedLoad]]:
    """Reads the words of a command line. Returns what holds for all of it, and the loads in their order."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, parents=[load_arguments()]
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--requests", type=Path, help="file for all requests of the last entry of --gpus")
    parser.add_argument("--gpus", nargs="+", default=[None])
    parser.add_argument(
        "--frames-per-char", type=float, default=0.83, help="default: 12.5 frames and 15 characters per second"
    )
    parser.add_argument("--generators", type=int, default=4, help="processes that make the load [%(default)s]")
    parser.add_argument("settings", nargs="*", metavar="SETTING", help="settings of `vivavoce serve`, after --")
    own, *settings = [list(part) for part in split(words, "--", most=1)]
    first, *others = split(own, THEN)
    args = parser.parse_args([*first, *(["--", *settings[0]] if settings else [])])
    groups = [args, *(load_arguments().parse_args(each) for each in others)]
    loads = [
        SharedLoad(kind, amount, tuple(group.prompts), group.duration, group.warmup)
        for group in groups
        for kind in KINDS
        for amount in getattr(group, kind)
    ]
    twice = [
        f"{kind} {name}"
        for (kind, name), count in Counter((each.kind, each.name) for each in loads).items()
        if count > 1
    ]
    if twice:
        parser.error(f"given twice: {', '.join(twice)}")
    return args, loads


def split(words: Sequence[str], at: str, most: int | None = None) -> list[list[str]]:
    """Splits words at the word `at`, at most `most` times."""
    parts: list[list[str]] = [[]]
    for word in words:
        if word == at and (most is None or len(parts) <= most):
            parts.append([])
        else:
            parts[-1].append(word)
    return parts


def main() -> None:
    args, loads = parse(sys.argv[1:])
    entries: dict[str, dict[str, Any]] = {}
    for gpus in args.gpus:
        for entry, runs in measure(gpus, loads, args):
            entries[gpus or "none"] = entry
            document = {
                "cards": card_facts("name"),
                "versions": versions(*PACKAGES),
                "machine": f"{platform.machine()}, {os.cpu_count()} cores",
                "command": shlex.join(["python", "-m", "vivavoce_bench.cards.server", *sys.argv[1:]]),
                "server": {args.model.name: entries},
                "scaling": scaling(entries),
            }
            args.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
            if args.requests is not None and runs:
                facts, requests = zip(*runs, strict=True)
                args.requests.write_text(json.dumps({"runs": facts, "requests": requests}) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
