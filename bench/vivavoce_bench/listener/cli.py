"""`vivavoce bench load` and `vivavoce bench compare`. The last line of the output is one JSON document."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from vivavoce_client.say import KEY_VARIABLE, add_server_arguments, server_url

from vivavoce_bench.listener.compare import MIN_PAIRS, Pair, comparison_table, pair_plans, ratios
from vivavoce_bench.listener.generators import Generators, generators_for
from vivavoce_bench.listener.load import BURST_EVERY_S, Burst, Closed, LoadPlan, OfferedLoad, Poisson, Run
from vivavoce_bench.listener.progress import Progress
from vivavoce_bench.listener.prompts import load_classes
from vivavoce_bench.listener.report import environment, is_on_time, request_json, run_json, table, target_json
from vivavoce_bench.listener.servers import SERVERS, TRANSPORTS, Target

INVALID, USAGE_ERROR = 1, 2
DEFAULT_SERVER = "vivavoce"
EXAMPLES = """\
examples:
  vivavoce bench load --concurrency 1 2                       the shipped voice, on a server of its own
  vivavoce bench load --rate 1 10 20 60 --url http://localhost:8000 --plots plots
  vivavoce bench load --rate 100 400 --generators 8 --prompts short=en@8 middle=en:5.7s@8 long=en:20s@1
  vivavoce bench load --burst 64 --url http://localhost:8000
  vivavoce bench load --rate 5 --transport websocket --url http://localhost:8000
  vivavoce bench load --server vllm-omni --voice ryan --rate 10 --url http://localhost:8091
"""


def add_load_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Puts load on a server and measures what its listeners hear"
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLES
    add_server_arguments(parser)
    parser.add_argument(
        "--server", choices=SERVERS, default=DEFAULT_SERVER, help="kind of server at the URL [%(default)s]"
    )
    _add_run_arguments(parser, warmup_s=30, duration_s=60, nargs="+")
    parser.add_argument("-o", "--output", type=Path, help="JSON file for the whole result, with every request")
    parser.add_argument("--plots", type=Path, help="folder for plots, PNG and SVG (needs matplotlib)")


def add_compare_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Measures two servers under the same load"
    parser.add_argument(
        "a", metavar="A", help="URL, or SERVER=URL for a server other than vivavoce: " + ", ".join(SERVERS)
    )
    parser.add_argument("b", metavar="B", help="the other server, likewise")
    parser.add_argument("--model", help="served model")
    _add_run_arguments(parser, warmup_s=5, duration_s=20, nargs=1)
    parser.add_argument("--pairs", type=int, default=6, help="number of times that both are measured [%(default)s]")


@dataclass(frozen=True, slots=True)
class Command:
    """A command of `vivavoce bench`: the value of an entry point."""

    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def _add_run_arguments(parser: argparse.ArgumentParser, warmup_s: float, duration_s: float, nargs: str | int) -> None:
    load = parser.add_mutually_exclusive_group(required=True)
    load.add_argument("--rate", type=_positive(float), nargs=nargs, help="Poisson arrivals a second, one run each")
    load.add_argument("--concurrency", type=_positive(int), nargs=nargs, help="listeners at once, one run each")
    load.add_argument("--burst", type=_positive(int), nargs=nargs, help="requests in one moment, one run each")
    parser.add_argument(
        "--burst-every",
        type=_positive(float),
        help=f"seconds from one burst to the next, by which all answers must have ended [{BURST_EVERY_S:g}]",
    )
    parser.add_argument(
        "--generators",
        type=_positive(int),
        help="processes that make the load [by the load, and at most half of the cores]",
    )
    parser.add_argument("--duration", type=_positive(float), default=duration_s, help="seconds measured [%(default)s]")
    parser.add_argument("--warmup", type=float, default=warmup_s, help="seconds before the measurement [%(default)s]")
    parser.add_argument("--transport", choices=TRANSPORTS, default="http", help="[%(default)s]")
    parser.add_argument(
        "--word-ms", type=float, default=10, help="websocket: ms from one word to the next [%(default)s]"
    )
    parser.add_argument(
        "--prompts",
        nargs="+",
        default=["en"],
        metavar="[NAME=]TEXTS[@WEIGHT]",
        help="classes of texts, each reported by itself: en, zh, en:20s (texts of 20 s of speech), or a file with one "
        "text a line [en]",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of arrivals, texts and requests [%(default)s]")
    parser.add_argument("--voice", help="[the server's usual voice]")
    parser.add_argument(
        "--field",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="further field of each request; the value is JSON or text",
    )
    parser.add_argument(
        "--frames-per-char",
        type=_positive(float),
        help="frames of speech to ask for per character (max_new_tokens), for random weights, whose speech does not "
        "end by itself; English has 0.83",
    )
    parser.add_argument(
        "--timeout", type=_positive(float), default=120, help="seconds after which a request has failed [%(default)s]"
    )


def _positive(kind: Callable[[str], float]) -> Callable[[str], float]:
    def parse(text: str) -> float:
        value = kind(text)
        if not value > 0:
            raise argparse.ArgumentTypeError(f"must be above 0, not {text}")
        return value

    return parse


def run_load_command(args: argparse.Namespace) -> int:
    try:
        plans = [_plan(args, load) for load in _loads(args)]
        make_target = partial(_target, args, args.server, model=args.model if args.url else None)
        make_target("")  # reports bad arguments before a server is started
        write_plots = _plotter(args.plots)
    except ValueError as error:
        return _usage_error(error)
    with server_url(args) as url, _generators(args, [plan.load for plan in plans]) as generators:
        target = make_target(url)
        runs = [generators.run(plan, target) for plan in plans]
        print(table(runs))
        document = {
            "bench": "load",
            **environment("vivavoce"),
            "prompts": args.prompts,
            **target_json(target),
            "runs": [run_json(each) for each in runs],
        }
        document |= _verdict(runs)
        if args.output is not None:
            _write_all(args.output, document, runs)
        for path in write_plots(runs, f"{target.kind}, {target.transport}"):
            print(f"wrote {path}", file=sys.stderr)
    print(json.dumps(document, ensure_ascii=False))
    return 0 if document["valid"] else INVALID


def run_compare_command(args: argparse.Namespace) -> int:
    try:
        if args.pairs < MIN_PAIRS:
            raise ValueError(f"--pairs must be at least {MIN_PAIRS}")
        (load,) = _loads(args)
        plan = _plan(args, load)
        targets = [_target(args, *_kind_and_url(text), model=args.model) for text in (args.a, args.b)]
    except ValueError as error:
        return _usage_error(error)
    with _generators(args, [load]) as generators:
        pairs = _measure_pairs(generators, targets, plan, args.pairs)
    print(comparison_table(pairs))
    document = {
        "bench": "compare",
        **environment("vivavoce"),
        "prompts": args.prompts,
        "a": target_json(targets[0]),
        "b": target_json(targets[1]),
        "ratios": {name: asdict(each) for name, each in ratios(pairs).items()},
        "pairs": [{name: run_json(run) for name, run in pair._asdict().items()} for pair in pairs],
        **_verdict([run for pair in pairs for run in pair]),
    }
    print(json.dumps(document, ensure_ascii=False))
    return 0 if document["valid"] else INVALID


def _verdict(runs: Sequence[Run]) -> dict[str, bool]:
    return {"valid": all(run.summary.valid for run in runs), "on_time": all(map(is_on_time, runs))}


@contextmanager
def _generators(args: argparse.Namespace, loads: Sequence[OfferedLoad]) -> Iterator[Generators]:
    progress = Progress()
    with Generators(args.generators or generators_for(loads), progress.show) as generators:
        try:
            yield generators
        finally:
            progress.clear()


def _write_all(path: Path, document: dict[str, Any], runs: Sequence[Run]) -> None:
    """Writes the document with the requests of each run as its last entry, one request after the other."""
    with path.open("w", encoding="utf-8") as file:
        file.write(json.dumps(document, ensure_ascii=False).removesuffix("}") + ', "requests": [')
        for number, run in enumerate(runs):
            file.write(", [" if number else "[")
            for index, each in enumerate(run.measurements):
                file.write((",\n" if index else "\n") + json.dumps(request_json(each), ensure_ascii=False))
            file.write("]")
        file.write("]}\n")


def _usage_error(error: ValueError) -> int:
    print(f"vivavoce: {error}", file=sys.stderr)
    return USAGE_ERROR


def _loads(args: argparse.Namespace) -> list[OfferedLoad]:
    if args.burst is not None:
        return [Burst(requests, args.burst_every or BURST_EVERY_S) for requests in args.burst]
    if args.burst_every is not None:
        raise ValueError("--burst-every is for --burst")
    if args.rate is not None:
        return [Poisson(rate) for rate in args.rate]
    return [Closed(listeners) for listeners in args.concurrency]


def _plan(args: argparse.Namespace, load: OfferedLoad) -> LoadPlan:
    return LoadPlan(load, load_classes(args.prompts), args.duration, args.warmup, args.seed, args.timeout)


def _kind_and_url(text: str) -> tuple[str, str]:
    kind, separator, url = text.partition("=")
    return (kind, url) if separator and "/" not in kind else (DEFAULT_SERVER, text)


def _target(args: argparse.Namespace, kind: str, url: str, model: str | None) -> Target:
    return Target(
        kind=kind,
        url=url,
        transport=args.transport,
        model=model,
        voice=args.voice,
        fields=dict(_field(text) for text in args.field),
        api_key=os.environ.get(KEY_VARIABLE),
        word_s=args.word_ms / 1000,
        frames_per_char=args.frames_per_char,
    )


def _field(text: str) -> tuple[str, Any]:
    name, separator, value = text.partition("=")
    if not separator:
        raise ValueError(f"--field {text!r} is not NAME=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _plotter(folder: Path | None) -> Callable[[Sequence[Run], str], list[Path]]:
    """Returns the function that writes the plots. Raises ValueError at once if matplotlib is missing."""
    if folder is None:
        return lambda runs, title: []
    if find_spec("matplotlib") is None:
        raise ValueError("--plots needs matplotlib: pip install 'vivavoce-speech[bench]'")
    from vivavoce_bench.listener.plots import write_plots

    return partial(write_plots, folder=folder)


def _measure_pairs(generators: Generators, targets: Sequence[Target], plan: LoadPlan, pairs: int) -> list[Pair]:
    measured = []
    for each, a_first in pair_plans(plan, pairs):
        ordered = targets if a_first else targets[::-1]
        runs = [generators.run(each, target) for target in ordered]
        measured.append(Pair(*(runs if a_first else runs[::-1])))
    return measured


LOAD = Command(add_load_arguments, run_load_command)
COMPARE = Command(add_compare_arguments, run_compare_command)
