"""The whole chain on a machine with two GPUs or more. It can be resumed, and gates stop it early with a reason.

    python -m voice_recipe.run --teacher DIR --corpus corpus.xz --work DIR --minutes 22

Stages:
    0 text tokenizer      1 teacher speech      2 codes      3 codes of every shard
    4 waveform decoder beside talker, compiled while stages 1 and 2 run      5 export

With --decoder-only, a finished voice gets a better decoder: the chain makes speech, encodes it with the encoder of
--start, and runs a trial of longer training on every card. Talker and codes stay unchanged.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from voice_recipe.export import export

MIN_PROBE_SHARE = 0.80  # share of the phonemes heard in true mels that decoded mels must keep
MIN_PERPLEXITY = 100.0
MIN_HEARD_SHARE = 0.55  # the same share for decoded audio
# Two trials of each training, side by side on four cards. The better one is exported.
TALKER_TRIALS = {
    "a": ["--rate", "2e-3"],
    "b": ["--rate", "3e-3", "--seed", "1"],
}
DECODER_TRIALS = {
    "a": ["--mel-weight", "60", "--critics-from", "0.3"],
    "b": ["--mel-weight", "100", "--critics-from", "0.6", "--seed", "1"],
}
# Trials that continue from a trained decoder, one on each card. The most reliable comes first.
LONG_DECODER_TRIALS = {
    "a": ["--mel-weight", "60", "--matching-weight", "2"],
    "b": ["--mel-weight", "60", "--seed", "1"],
    "c": ["--mel-weight", "30", "--matching-weight", "2", "--seed", "2"],
    "d": ["--mel-weight", "60", "--batch", "32", "--critic-batch", "32", "--seed", "3"],
}
LONG_DECODER_OPTIONS = ["--critics-from", "0", "--batch", "16", "--critic-batch", "12"]
LEAST_SECONDS_AGAIN = 90.0  # a failed trial is not restarted with less time left


class GateError(RuntimeError):
    """A stage ended below its limit. The message names the stage and the shortfall."""


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
    start: Path | None = None  # folder with talker.pt and decoder.pt of an earlier run, or codes.pt and decoder.pt
    decoder_options: tuple[str, ...] = ()

    def launch(self, stage: str, module: str, arguments: list[str], card: int) -> subprocess.Popen[bytes]:
        """Launch a stage on a card. Its output goes to work/<stage>.log."""
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
        """Wait for processes. A failed stage stops the chain with the end of its log."""
        for process in processes:
            if process.wait() != 0:
                tail = (self.work / f"{stage}.log").read_text(errors="replace")[-1500:]
                raise GateError(f"stage {stage} failed:\n{tail}")
        self.note(f"{stage} done")

    @property
    def shards(self) -> list[Path]:
        """First shards of all cards, then the second ones. Card 0 stops after its first, to train the codes."""
        data, second = self.work / "data", range(min(1, self.cards - 1), self.cards)
        return [data / f"shard{card}_0" for card in range(self.cards)] + [data / f"shard{card}_1" for card in second]


def code_gate(path: Path) -> str:
    """Gate: the codes must keep the phonemes and use their codebooks."""
    report = torch.load(path, map_location="cpu")["report"]
    kept = report["probe_decoded"] / max(report["probe_true"], 1e-6)
    text = ", ".join(f"{name} {value:.3f}" for name, value in report.items())
    if kept < MIN_PROBE_SHARE or report["perplexity0"] < MIN_PERPLEXITY or report["perplexity1"] < MIN_PERPLEXITY:
        raise GateError(f"codes are too poor for a talker: {text}")
    return text


def result_of(path: Path) -> dict[str, float]:
    """Figures that a training stage wrote next to its weights."""
    loaded: dict[str, float] = json.loads(path.with_suffix(".json").read_text())
    return loaded


def choose(chain: Chain, stage: str, trials: Iterable[str], loss: Callable[[dict[str, float]], float]) -> str:
    """Copy the weights of the best trial to <stage>.pt -> a line about all trials."""
    found = {name: result_of(chain.work / f"{stage}_{name}.pt") for name in trials}
    best = min(found, key=lambda name: loss(found[name]))
    shutil.copy(chain.work / f"{stage}_{best}.pt", chain.work / f"{stage}.pt")
    return f"{stage} trial {best} of {found}"


def heard_gate(decoder: dict[str, float], probe_true: float) -> str:
    """Gate: decoded audio must keep the phonemes."""
    share = decoder.get("heard", 0.0) / max(probe_true, 1e-6)
    if share < MIN_HEARD_SHARE:
        raise GateError(f"decoder keeps {share:.2f} of the phonemes, {MIN_HEARD_SHARE} are needed")
    return f"decoder keeps {share:.2f} of the phonemes that the probe hears in the teacher"


def keep_decoder(chain: Chain, trials: Sequence[str]) -> None:
    """Make decoder.pt from the trial with the largest heard share, if that passes the gate."""
    chain.note(choose(chain, "decoder", trials, lambda r: -r["heard"]))
    best = max((result_of(chain.work / f"decoder_{name}.pt") for name in trials), key=lambda r: r["heard"])
    chain.note(heard_gate(best, torch.load(chain.work / "codes.pt", map_location="cpu")["report"]["probe_true"]))


def synthesise(chain: Chain, first_only: bool = False) -> list[subprocess.Popen[bytes]]:
    """Start the teacher on every card. Card 0 makes only its first shard if there are other cards."""
    running = []
    for card in range(chain.cards):
        deadlines = [str(chain.speech_seconds[0])]
        if not first_only and (card or chain.cards == 1):
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


def start_trial(
    chain: Chain, stage: str, name: str, shards: Iterable[Path], options: list[str], card: int
) -> subprocess.Popen[bytes]:
    """Start a trial of a training, from the weights of an earlier run if there are any."""
    arguments = ["--shards", *(str(shard) for shard in shards), "--out", str(chain.work / f"{stage}_{name}.pt")]
    arguments += ["--end-time", str(chain.end_time), *start_option(chain, f"{stage}.pt"), *options]
    return chain.launch(f"{stage}_{name}", f"train_{stage}", arguments, card)


def start_decoder(chain: Chain, name: str, options: list[str], card: int) -> subprocess.Popen[bytes]:
    """Start a trial of the decoder on the first shard of every card, which has audio."""
    codes = ["--codes", str(chain.work / "codes.pt")]
    shards = chain.shards[: chain.cards]
    return start_trial(chain, "decoder", name, shards, [*codes, *options, *chain.decoder_options], card)


def start_trainings(chain: Chain) -> dict[str, subprocess.Popen[bytes]]:
    """Start decoders on the first half of the cards, talkers on the second. They compile while the speech is made."""
    half = max(chain.cards // 2, 1)
    running = {}
    for number, (name, options) in enumerate(DECODER_TRIALS.items()):
        running[f"decoder_{name}"] = start_decoder(chain, name, options, number % half)
    texts = ["--corpus", str(chain.corpus), "--tokenizer", str(chain.work / "tokenizer")]
    for number, (name, options) in enumerate(TALKER_TRIALS.items()):
        card = half + number % half
        running[f"talker_{name}"] = start_trial(chain, "talker", name, chain.shards, [*texts, *options], card)
    return running


def encode(chain: Chain, shards: list[Path]) -> None:
    """Encode the shards that lack codes, spread over the cards."""
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
    decoders = [name for name in DECODER_TRIALS if f"decoder_{name}" not in failed]
    talkers = [name for name in TALKER_TRIALS if f"talker_{name}" not in failed]
    if not decoders or not talkers:
        raise GateError(f"no decoder or no talker was trained; see the logs in {work}")
    chain.note(choose(chain, "talker", talkers, lambda r: r["code0"] + r["rest"]))
    keep_decoder(chain, decoders)
    export(work, work / "checkpoint")


def speak_for_decoders(chain: Chain) -> None:
    """Make the first shards of all cards. Another card's shard replaces one that fails."""
    shards = chain.shards[: chain.cards]
    if not all((shard / "done").exists() for shard in shards):
        for process in synthesise(chain, first_only=True):
            process.wait()
    spoken = [shard for shard in shards if (shard / "done").exists()]
    if not spoken:
        raise GateError(f"the teacher did not speak; see speech*.log in {chain.work}")
    chain.note(f"speech done, {len(spoken)} shards of {len(shards)}")
    encode(chain, spoken)
    for shard in shards:
        if shard not in spoken:
            shutil.rmtree(shard, ignore_errors=True)
            shard.symlink_to(spoken[0].resolve())


def finish_trials(chain: Chain, running: dict[str, subprocess.Popen[bytes]], cards: dict[str, int]) -> None:
    """Wait for all decoders. One that fails early restarts once, from its saved weights."""
    waiting, again = dict(running), set[str]()
    while waiting:
        time.sleep(0.5)
        for name, process in list(waiting.items()):
            if process.poll() is None:
                continue
            del waiting[name]
            chain.note(f"decoder {name} ended with status {process.returncode}")
            if process.returncode and name not in again and chain.end_time - time.time() > LEAST_SECONDS_AGAIN:
                again.add(name)
                options = [*LONG_DECODER_OPTIONS, *LONG_DECODER_TRIALS[name]]
                saved = chain.work / f"decoder_{name}.pt"
                if saved.exists():
                    shutil.copy(saved, chain.work / f"start_{name}.pt")
                    options += ["--start", str(chain.work / f"start_{name}.pt")]
                running[name] = waiting[name] = start_decoder(chain, name, options, cards[name])


def run_decoder(chain: Chain) -> None:
    """Train a better decoder for a finished voice. Writes decoder.pt and decoder_*.pt of all trials."""
    work, codes = chain.work, chain.work / "codes.pt"
    if chain.start is None:
        raise GateError("--decoder-only needs --start, with codes.pt and decoder.pt of the voice")
    if not codes.exists():
        shutil.copy(chain.start / "codes.pt", codes)
    chain.note(code_gate(codes))
    cards = {name: card for card, name in zip(range(chain.cards), LONG_DECODER_TRIALS, strict=False)}
    running = {
        name: start_decoder(chain, name, [*LONG_DECODER_OPTIONS, *LONG_DECODER_TRIALS[name]], card)
        for name, card in cards.items()
    }
    try:
        speak_for_decoders(chain)
        finish_trials(chain, running, cards)
    finally:
        for process in running.values():
            process.terminate()
    ended = [
        name
        for name, process in running.items()
        if process.returncode == 0 and "heard" in result_of(work / f"decoder_{name}.pt")
    ]
    if not ended:
        raise GateError(f"no decoder was trained to its end; see the logs in {work}")
    keep_decoder(chain, ended)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--teacher", type=Path, required=True, help="folder with kokoro_int8.npz, voices_en_fp16.npz")
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--minutes", type=float, required=True, help="time for the whole chain without export")
    parser.add_argument("--speech-seconds", type=float, nargs=2, default=(55.0, 190.0), metavar=("FIRST", "ALL"))
    parser.add_argument("--codes-seconds", type=float, default=105.0)
    parser.add_argument("--start", type=Path, help="folder with talker.pt and decoder.pt to continue from")
    parser.add_argument(
        "--decoder-only", action="store_true", help="train only a better decoder; --start needs codes.pt too"
    )
    parser.add_argument("--decoder-options", default="", help="more options of train_decoder, in one string")
    parser.add_argument(
        "--cards",
        type=int,
        default=torch.cuda.device_count(),
        help="number of GPUs [all]",
    )
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    cards = args.cards
    if cards < 2 and not args.decoder_only:
        raise SystemExit(f"{cards} GPUs: the trainings run side by side; one card has voice_recipe.one_card")
    if cards == 0:
        raise SystemExit("no GPU: the decoder needs at least one")
    chain = Chain(
        args.teacher,
        args.corpus,
        args.work,
        cards,
        time.time() + 60 * args.minutes,
        tuple(args.speech_seconds),
        args.codes_seconds,
        args.start,
        tuple(args.decoder_options.split()),
    )
    try:
        run_decoder(chain) if args.decoder_only else run(chain)
    except GateError as error:
        raise SystemExit(f"stopped: {error}") from error


if __name__ == "__main__":
    main()
