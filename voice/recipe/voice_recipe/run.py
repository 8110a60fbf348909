"""The whole chain on one GPU machine, resumable, with gates that stop it early and say why.

    python -m voice_recipe.run --teacher DIR --corpus corpus.xz --work DIR --minutes 22

Stages:
    0 text tokenizer      1 teacher speech      2 codes      3 codes of every shard
    4 waveform decoder beside talker, compiled while stages 1 and 2 run      5 export
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from voice_recipe.export import export

MIN_PROBE_SHARE = 0.80  # decoded mels must keep this much of what the probe hears in the true ones
MIN_PERPLEXITY = 100.0
MIN_HEARD_SHARE = 0.55  # phonemes the probe must hear in decoded audio, as a share of the true mels
# Two trials of each training, side by side on four cards; the better one is exported.
TALKER_TRIALS = {
    "a": ["--dropout", "0.05", "--rate", "1.2e-3"],
    "b": ["--dropout", "0.05", "--rate", "2e-3", "--seed", "1"],
}
DECODER_TRIALS = {
    "a": ["--mel-weight", "60", "--critics-from", "0.3"],
    "b": ["--mel-weight", "100", "--critics-from", "0.6", "--seed", "1"],
}


class GateError(RuntimeError):
    """A stage ended below its bar; the message says which and by how much."""


@dataclass(frozen=True)
class Chain:
    """Paths and processes of one run."""

    teacher: Path
    corpus: Path
    work: Path
    cards: int
    end_time: float
    speech_seconds: tuple[float, float] = (55.0, 190.0)  # first shards, all shards
    codes_seconds: float = 105.0
    start: Path | None = None  # folder with talker.pt and decoder.pt of an earlier run

    def launch(self, stage: str, module: str, arguments: list[str], card: int) -> subprocess.Popen[bytes]:
        """Launch a stage on a card; its output goes to work/<stage>.log."""
        command = [sys.executable, "-m", f"voice_recipe.{module}", *arguments]
        environment = {
            **os.environ,
            "CUDA_VISIBLE_DEVICES": str(card % self.cards),
            "OMP_NUM_THREADS": "4",
            "PYTHONUNBUFFERED": "1",
            "TORCHINDUCTOR_COMPILE_THREADS": "12",
        }
        log = (self.work / f"{stage}.log").open("ab")
        self.note(f"start {stage} on card {card % self.cards}")
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)

    def note(self, text: str) -> None:
        left = self.end_time - time.time()
        line = f"[{left:5.0f} s left] {text}"
        print(line, flush=True)

    def finish(self, stage: str, *processes: subprocess.Popen[bytes]) -> None:
        """Wait; a failed stage stops the chain with the end of its log."""
        for process in processes:
            if process.wait() != 0:
                tail = (self.work / f"{stage}.log").read_text(errors="replace")[-1500:]
                raise GateError(f"stage {stage} failed:\n{tail}")
        self.note(f"{stage} done")

    @property
    def shards(self) -> list[Path]:
        """First shards of all cards, then the second ones; card 0 leaves off early, for the codes."""
        data, second = self.work / "data", range(min(1, self.cards - 1), self.cards)
        return [data / f"shard{card}_0" for card in range(self.cards)] + [data / f"shard{card}_1" for card in second]


def code_gate(path: Path) -> str:
    """Codes must keep the phonemes and use their codebooks."""
    report = torch.load(path, map_location="cpu")["report"]
    kept = report["probe_decoded"] / max(report["probe_true"], 1e-6)
    text = ", ".join(f"{name} {value:.3f}" for name, value in report.items())
    if kept < MIN_PROBE_SHARE or report["perplexity0"] < MIN_PERPLEXITY or report["perplexity1"] < MIN_PERPLEXITY:
        raise GateError(f"codes are too poor for a talker: {text}")
    return text


def result_of(path: Path) -> dict[str, float]:
    """What a training stage left beside its weights."""
    loaded: dict[str, float] = json.loads(path.with_suffix(".json").read_text())
    return loaded


def choose(chain: Chain, stage: str, trials: dict[str, list[str]], loss: Callable[[dict[str, float]], float]) -> str:
    """Copy the weights of the better trial to <stage>.pt; -> a line about all of them."""
    found = {name: result_of(chain.work / f"{stage}_{name}.pt") for name in trials}
    best = min(found, key=lambda name: loss(found[name]))
    shutil.copy(chain.work / f"{stage}_{best}.pt", chain.work / f"{stage}.pt")
    return f"{stage} trial {best} of {found}"


def heard_gate(decoder: dict[str, float], probe_true: float) -> str:
    """Decoded audio must keep the phonemes."""
    share = decoder.get("heard", 0.0) / max(probe_true, 1e-6)
    if share < MIN_HEARD_SHARE:
        raise GateError(f"decoder keeps {share:.2f} of the phonemes, {MIN_HEARD_SHARE} are needed")
    return f"decoder keeps {share:.2f} of the phonemes that the probe hears in the teacher"


def synthesise(chain: Chain) -> list[subprocess.Popen[bytes]]:
    """The teacher on every card; card 0 only for the first shards, where there are others."""
    running = []
    for card in range(chain.cards):
        deadlines = [str(chain.speech_seconds[0])]
        if card or chain.cards == 1:
            deadlines.append(str(chain.speech_seconds[1]))
        running.append(
            chain.launch(
                f"speech{card}",
                "synthesize",
                [
                    "--teacher",
                    str(chain.teacher),
                    "--corpus",
                    str(chain.corpus),
                    "--out",
                    str(chain.work / "data"),
                    "--rank",
                    str(card),
                    "--world",
                    str(chain.cards),
                    "--seconds",
                    *deadlines,
                ],
                card,
            )
        )
    return running


def start_option(chain: Chain, file: str) -> list[str]:
    return ["--start", str(chain.start / file)] if chain.start is not None else []


def start_trainings(chain: Chain) -> dict[str, subprocess.Popen[bytes]]:
    """Decoders on the first half of the cards, talkers on the second; they compile while the speech is made."""
    shards, end = [str(shard) for shard in chain.shards], ["--end-time", str(chain.end_time)]
    half = max(chain.cards // 2, 1)
    running = {}
    for number, (name, options) in enumerate(DECODER_TRIALS.items()):
        arguments = [
            "--shards",
            *shards[: chain.cards],
            "--codes",
            str(chain.work / "codes.pt"),
            "--out",
            str(chain.work / f"decoder_{name}.pt"),
            *end,
            *options,
        ]
        arguments += start_option(chain, "decoder.pt")
        running[f"decoder_{name}"] = chain.launch(f"decoder_{name}", "train_decoder", arguments, number % half)
    for number, (name, options) in enumerate(TALKER_TRIALS.items()):
        arguments = [
            "--shards",
            *shards,
            "--corpus",
            str(chain.corpus),
            "--tokenizer",
            str(chain.work / "tokenizer"),
            "--out",
            str(chain.work / f"talker_{name}.pt"),
            *end,
            *options,
        ]
        arguments += start_option(chain, "talker.pt")
        running[f"talker_{name}"] = chain.launch(f"talker_{name}", "train_talker", arguments, half + number % half)
    return running


def encode(chain: Chain, shards: list[Path]) -> None:
    """Codes of the shards that lack them, spread over the cards."""
    missing = [str(shard) for shard in shards if not (shard / "codes.npy").exists()]
    running = {
        card: chain.launch(
            f"encode{card}",
            "encode_shards",
            ["--shards", *missing[card :: chain.cards], "--codes", str(chain.work / "codes.pt")],
            card,
        )
        for card in range(min(chain.cards, len(missing)))
    }
    for card, process in running.items():
        chain.finish(f"encode{card}", process)


def run(chain: Chain) -> None:
    work, codes = chain.work, chain.work / "codes.pt"
    speech = [] if all((shard / "done").exists() for shard in chain.shards) else synthesise(chain)
    if not (work / "tokenizer" / "vocab.json").exists():
        arguments = ["--corpus", str(chain.corpus), "--out", str(work / "tokenizer")]
        chain.finish("tokenizer", chain.launch("tokenizer", "text_tokenizer", arguments, 0))
    trainings = start_trainings(chain)
    try:
        if not codes.exists():
            first = [str(shard) for shard in chain.shards[: chain.cards]]
            arguments = ["--shards", *first, "--out", str(codes), "--seconds", str(chain.codes_seconds)]
            chain.finish("codes", chain.launch("codes", "train_codes", arguments, 0))
        chain.note(code_gate(codes))
        encode(chain, chain.shards[: chain.cards])  # the decoders start on these
        for card, process in enumerate(speech):
            chain.finish(f"speech{card}", process)
        encode(chain, chain.shards[chain.cards :])
        failed = [name for name, process in trainings.items() if process.wait() != 0]
        if failed:
            chain.note(f"failed: {failed}")
    finally:
        for process in (*trainings.values(), *speech):
            process.terminate()
    decoders = {name: options for name, options in DECODER_TRIALS.items() if f"decoder_{name}" not in failed}
    talkers = {name: options for name, options in TALKER_TRIALS.items() if f"talker_{name}" not in failed}
    if not decoders or not talkers:
        raise GateError(f"no decoder or no talker was trained; see the logs in {work}")
    chain.note(choose(chain, "decoder", decoders, lambda r: -r["heard"]))
    chain.note(choose(chain, "talker", talkers, lambda r: r["code0"] + r["rest"]))
    best = max((result_of(work / f"decoder_{name}.pt") for name in decoders), key=lambda r: r["heard"])
    chain.note(heard_gate(best, torch.load(codes, map_location="cpu")["report"]["probe_true"]))
    export(work, work / "checkpoint")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--teacher", type=Path, required=True, help="folder with kokoro_int8.npz, voices_en_fp16.npz")
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--minutes", type=float, required=True, help="for the whole chain, export excluded")
    parser.add_argument("--speech-seconds", type=float, nargs=2, default=(55.0, 190.0), metavar=("FIRST", "ALL"))
    parser.add_argument("--codes-seconds", type=float, default=105.0)
    parser.add_argument("--start", type=Path, help="folder with talker.pt and decoder.pt to go on from")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    cards = torch.cuda.device_count()
    if cards == 0:
        raise SystemExit("no GPU: the chain needs at least one")
    chain = Chain(
        args.teacher,
        args.corpus,
        args.work,
        cards,
        time.time() + 60 * args.minutes,
        tuple(args.speech_seconds),
        args.codes_seconds,
        args.start,
    )
    try:
        run(chain)
    except GateError as error:
        raise SystemExit(f"stopped: {error}") from error


if __name__ == "__main__":
    main()
