"""`vivavoce eval fit`: how well a talker tells a transcript of a recording from other texts, without a judge.

The checkpoint speaks sentences. Each speech is scored with its own text and with wrong ones, as the server scores
references (engine: text/transcript.py). The threshold is chosen on one half of the speeches, and both rates of errors
are counted on the other half.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from vivavoce_engine import EngineConfig, SamplingParams, SynthesisRequest, VoiceReference
from vivavoce_engine.checkpoint.files import Checkpoint, locate_checkpoint, read_checkpoint
from vivavoce_engine.errors import EngineError
from vivavoce_engine.load import ModelRunner, make_runner
from vivavoce_engine.text.prompt import TextFrontend
from vivavoce_engine.text.transcript import LEAST_FIT, TranscriptJudge
from vivavoce_text import STAGES, Profile, speakable
from vivavoce_voice import CHECKPOINT

from vivavoce_eval.align import DESCRIPTION, MAX_CONTEXT, STREAMS, cloned, speak, write_figures
from vivavoce_eval.errors import Unusable
from vivavoce_eval.hearing import FRAME_LIMIT
from vivavoce_eval.sentences import read_sentences

PAIRS = 300
LEAST_PAIRS = 8
PARTLY_EVERY = 4
"""Distance of the speeches that are also scored with texts that are wrong in part."""
OTHER_AT = 37
"""Distance, in the list of sentences, of the one whose text is the wrong one."""
Fits = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Errors:
    """Rates of errors: right transcripts below a threshold, and wrong ones at or above it."""

    right_refused: float
    wrong_taken: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default=str(CHECKPOINT), help="checkpoint folder or hub id [the shipped voice]")
    parser.add_argument("--pairs", type=int, default=PAIRS, metavar="N", help="number of speeches [%(default)s]")
    parser.add_argument(
        "--temperature", type=float, metavar="T", help="temperature of code 0 [the checkpoint's]; 1 spreads the codes"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures as JSON")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N [cpu]")


def run(args: argparse.Namespace) -> int:
    """Prints the fits of each kind of text, and the rates of errors. Returns 1 if right and wrong cannot be told."""
    if args.pairs < LEAST_PAIRS:
        raise Unusable(f"--pairs must be at least {LEAST_PAIRS}, not {args.pairs}")
    try:
        checkpoint = read_checkpoint(locate_checkpoint(args.model))
        config = EngineConfig(max_streams=STREAMS, max_queue=args.pairs, max_context=MAX_CONTEXT, device=args.device)
        fits = survey(checkpoint, make_runner("fit", checkpoint, config), args.pairs, args.temperature)
    except (EngineError, ValueError) as error:
        raise Unusable(str(error)) from error
    threshold = choose(fits["right"][::2], fits["other"][::2])
    tested = {name: errors(fits["right"][1::2], fits[name][1::2], threshold) for name in fits if name != "right"}
    shipped = errors(fits["right"], fits["other"], LEAST_FIT)
    print(as_table(fits, tested))
    print(
        f"Threshold from one half: {threshold:.2f} nats a frame. The server's, {LEAST_FIT:g}, on all: {told(shipped)}"
    )
    if args.json:
        figures = {
            "pairs": args.pairs,
            "threshold": threshold,
            "kinds": {name: quartiles(each) for name, each in fits.items()},
            "errors": {name: asdict(each) for name, each in tested.items()},
            "least_fit": {"threshold": LEAST_FIT, **asdict(shipped)},
        }
        write_figures(args.json, figures)
    return int(tested["other"].right_refused + tested["other"].wrong_taken > 0.5)


def survey(checkpoint: Checkpoint, runner: ModelRunner, pairs: int, temperature: float | None) -> dict[str, Fits]:
    """Fits by kind of text, in the order of the speeches: of all, or of every PARTLY_EVERY-th."""
    assert isinstance(runner.text, TextFrontend)
    judge = TranscriptJudge(runner.text, runner.forcing(), MAX_CONTEXT)
    asked = requests(checkpoint, runner, pairs, temperature)
    fits: dict[str, list[float]] = {}
    for at, spoken in enumerate(speak(runner, asked)):
        other = asked[(at + OTHER_AT) % len(asked)].text
        given = {"right": spoken.request.text, "other": other}
        if at % PARTLY_EVERY == 0:
            given |= texts(spoken.request.text, other, at)
        for kind, text in given.items():
            codes = VoiceReference(np.zeros(0, np.float32), spoken.codes.astype(np.int16), text)
            fits.setdefault(kind, []).append(judge.fit_of(spoken.request, codes))
        print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return {kind: np.array(each) for kind, each in fits.items()}


def requests(
    checkpoint: Checkpoint, runner: ModelRunner, count: int, temperature: float | None
) -> list[SynthesisRequest]:
    """The sentences in turn, by the checkpoint's speakers in turn."""
    info, profile = runner.info, Profile(frozenset(STAGES))
    sampling = info.sampling
    if temperature is not None:
        hot = SamplingParams(temperature, top_k=0)
        sampling = replace(sampling, talker=hot)
    common = SynthesisRequest(
        "",
        language="english" if "english" in info.languages else "auto",
        reference=cloned(checkpoint, runner) if checkpoint.task == "base" and not info.speakers else None,
        instructions=DESCRIPTION if checkpoint.task == "voice_design" else "",
        sampling=sampling,
        max_frames=FRAME_LIMIT,
    )
    names, sentences = info.speakers or ("",), [speakable(each.text, "en", profile).text for each in read_sentences()]
    return [
        replace(
            common,
            text=sentences[number % len(sentences)],
            speaker=names[(number + number // len(sentences)) % len(names)],
            seed=number,
        )
        for number in range(count)
    ]


def texts(right: str, other: str, number: int) -> dict[str, str]:
    """Kinds of transcripts of a speech that says `right`: one as people type, and some that are wrong in part."""
    words, others = right.split(), other.split()
    half = list(words)
    for at in np.random.default_rng(number).permutation(len(words))[: max(1, len(words) // 2)]:
        half[at] = others[at % len(others)]
    return {
        "in small letters, no signs": "".join(sign for sign in right.lower() if sign.isalnum() or sign in " '"),
        "half of the words replaced": " ".join(half),
        "first half missing": " ".join(words[len(words) // 2 :]),
        "second half missing": " ".join(words[: max(1, len(words) // 2)]),
        "another text behind": f"{right} {other}",
    }


def choose(right: Fits, wrong: Fits) -> float:
    """The threshold with the lowest sum of both rates of errors; the middle, where several have it."""
    edges = np.sort(np.concatenate([right, wrong]))
    middles = (edges[1:] + edges[:-1]) / 2
    sums = np.array([sum(asdict(errors(right, wrong, each)).values()) for each in middles])
    best = middles[sums <= sums.min() + 1e-9]
    return float((best[0] + best[-1]) / 2)


def errors(right: Fits, wrong: Fits, threshold: float) -> Errors:
    return Errors(float(np.mean(right < threshold)), float(np.mean(wrong >= threshold)))


def quartiles(fits: Fits) -> dict[str, float]:
    names = ("least", "quarter", "median", "three_quarters", "most")
    return dict(zip(names, np.quantile(fits, (0, 0.25, 0.5, 0.75, 1)).round(3).tolist(), strict=True))


def told(rates: Errors) -> str:
    return f"{rates.right_refused:.1%} of right texts refused, {rates.wrong_taken:.1%} of other texts taken"


def as_table(fits: Mapping[str, Fits], tested: Mapping[str, Errors]) -> str:
    """The table of the terminal."""
    rows: list[Sequence[str]] = [
        ("text", "speeches", "least", "quarter", "median", "3/4", "most", "at threshold or above")
    ]
    for name, each in fits.items():
        taken = f"{tested[name].wrong_taken:.1%}" if name in tested else f"{1 - tested['other'].right_refused:.1%}"
        rows.append((name, str(len(each)), *(f"{value:.2f}" for value in quartiles(each).values()), taken))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
