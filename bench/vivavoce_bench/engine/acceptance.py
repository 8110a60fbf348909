"""`vivavoce bench acceptance`: how often codes of a frame can be guessed ahead, and a card's frame with such guesses.

The last line of the output is one JSON document.
"""

import argparse
import json
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vivavoce_engine.checkpoint.files import locate_checkpoint, read_checkpoint
from vivavoce_engine.config import EngineConfig
from vivavoce_engine.errors import EngineError

from vivavoce_bench.engine.machine import describe_machine, shipped_voice
from vivavoce_bench.listener.prompts import load_prompts
from vivavoce_bench.planning.speculation import ROWS, CardTimes, GuessedFrame
from vivavoce_bench.planning.step_times import Curve

KEYS = {"true": "frame_ms", "false": "frame_ms_without_deterministic"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `vivavoce bench acceptance`. Entry point of the command line."""
    parser.description = "Measures how often codes of a frame can be guessed ahead of the code predictor"
    parser.add_argument("--model", help="checkpoint folder or hub id (default: the shipped voice)")
    parser.add_argument("--prompts", default="en", help="texts as in `bench load` [%(default)s]")
    parser.add_argument("--utterances", type=int, default=160, help="utterances to speak [%(default)s]")
    parser.add_argument("--frames", type=int, help="end each utterance after this many frames")
    parser.add_argument("--guesses", type=int, choices=range(1, 8), default=3, help="most guesses a pass [%(default)s]")
    parser.add_argument("--dtype", default="auto", help="as of `vivavoce serve` on a CPU [%(default)s]")
    card = parser.add_argument_group("calculation for a card")
    card.add_argument("--card", type=Path, help="file of step times, such as bench/results/engine-h200.json")
    card.add_argument("--rates", type=float, nargs="+", help="calculate from these rates of guesses, and speak nothing")
    card.add_argument("--card-model", default="1.7b", help="model of that file [%(default)s]")
    card.add_argument("--deterministic", choices=KEYS, default="true", help="frames of that mode [%(default)s]")
    card.add_argument("--talker-ms", type=float, default=0.0, help="the talker's part of a frame of one row, in ms")
    card.add_argument("--guess-us", type=float, default=0.0, help="time of a guess, in µs [%(default)s]")
    card.add_argument("--skip-us", type=float, default=0.0, help="time of a pass without work, in µs [%(default)s]")
    card.add_argument("--codes", type=int, default=15, help="codes of the card's code predictor [%(default)s]")


def run(args: argparse.Namespace) -> int:
    """Runs `vivavoce bench acceptance`. Entry point of the command line."""
    try:
        card = None if args.card is None else read_card(args)
        if args.rates is not None and card is None:
            raise ValueError("--rates needs --card")
        document: dict[str, Any]
        document = measure(args) if args.rates is None else {"guesses": {"given": {"rates": given_rates(args.rates)}}}
    except (ValueError, EngineError) as error:
        print(f"bench acceptance: {error}", file=sys.stderr)
        return 2
    if card is not None:
        calculated = {kind: calculate(card, found["rates"]) for kind, found in document["guesses"].items()}
        report_card(calculated)
        document["card"] = {kind: [asdict(each) for each in frames] for kind, frames in calculated.items()}
    print(json.dumps({"bench": "acceptance", "command": " ".join(sys.argv[1:]), **document}))
    return 0


def given_rates(rates: Sequence[float]) -> list[float]:
    """Checks rates of the command line."""
    if not all(0 <= rate <= 1 for rate in rates):
        raise ValueError(f"--rates must be from 0 to 1, not {' '.join(map(str, rates))}")
    return list(rates)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Lets the checkpoint speak, and judges guesses. Raises ValueError and EngineError."""
    import torch

    from vivavoce_bench.engine.guess_study import AT_ONCE, Recorder, speak, study

    texts = load_prompts(args.prompts)
    checkpoint = read_checkpoint(locate_checkpoint(args.model or shipped_voice()))
    config = EngineConfig(max_streams=AT_ONCE, runner="torch", device="cpu", dtype=args.dtype)
    runner = Recorder("bench", checkpoint, config)
    speak(runner, [texts[number % len(texts)] for number in range(args.utterances)], args.frames)
    predictor, frames = runner.recorded()
    found = study(predictor, checkpoint.talker, frames, args.guesses)
    report(found)
    versions = {"torch": torch.__version__, "python": platform.python_version()}
    return {"machine": describe_machine(runner), "versions": versions, **found}


def report(document: dict[str, Any]) -> None:
    frames, codes = document["frames"], document["codes"]
    print(
        f"{frames['held_out']} frames held out, drafts fitted to {frames['fitted']}; {codes} codes a frame are guessed"
    )
    for kind, found in document["guesses"].items():
        print(f"{kind}: right where all before it are right, {percent(found['rates'])}; ", end="")
        print(f"with the engine's own draws {percent(found['rates_of_engine_draws'])}")
        for ahead, by_code in enumerate(found["by_code"], start=1):
            print(f"  guess {ahead}, by code: " + ", ".join(f"{code}: {rate:.0%}" for code, rate in by_code.items()))
        for k, passes in enumerate(found["passes"], start=1):
            told = ", ".join(f"{rows} rows {count}" for rows, count in passes.items())
            print(f"  passes a frame with {k} guess{'es' * (k > 1)}, the slowest row's: {told}")


def percent(shares: Sequence[float]) -> str:
    return ", ".join(f"{share:.0%}" for share in shares)


def read_card(args: argparse.Namespace) -> CardTimes:
    """Reads a card's times. Raises ValueError if the file does not have them."""
    key = KEYS[args.deterministic]
    try:
        points = json.loads(args.card.read_text(encoding="utf-8"))[key][args.card_model]
        frame_ms = Curve({float(rows): float(ms) for rows, ms in points.items()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"--card: {args.card} has no {key} of {args.card_model}: {error!r}") from error
    if not 0 < args.talker_ms < frame_ms(1):
        raise ValueError(f"--talker-ms must be above 0 and below a frame's {frame_ms(1):g}, not {args.talker_ms:g}")
    return CardTimes(frame_ms, args.talker_ms, args.guess_us / 1000, args.skip_us / 1000, args.codes)


def calculate(card: CardTimes, found: Sequence[float]) -> list[GuessedFrame]:
    """Calculates a card's frames for each number of guesses and of rows, from the rates that were found."""
    return [card.frame(rows, found[:k]) for k in range(1, len(found) + 1) for rows in ROWS]


def report_card(frames: dict[str, list[GuessedFrame]]) -> None:
    print("on the card             guesses  rows  passes  frame ms now, free loop, fixed graph")
    for kind, found in frames.items():
        for each in found:
            loop, graph = (100 * (ms / each.today_ms - 1) for ms in (each.loop_ms, each.graph_ms))
            print(
                f"{kind:22s}  {each.guesses:7d}  {each.rows:4d}  {each.passes:6.2f}  {each.today_ms:.3f}, "
                f"{each.loop_ms:.3f} ({loop:+.0f} %), {each.graph_ms:.3f} ({graph:+.0f} %)"
            )


def main() -> int:
    """Runs the command from a checkout that is not installed."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return run(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
