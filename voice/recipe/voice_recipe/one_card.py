"""The chain on one GPU, one stage after the other, in as many commands as it takes.

    python -m voice_recipe.one_card --teacher DIR --corpus corpus.xz --work DIR --minutes 8.8 \\
        --speech-minutes 5.6 --codes-minutes 1.4 --talker-minutes 16 --give OUT

The same command again goes on where the one before it ended: finished stages are skipped, the talker and the decoder
continue their schedules. The folder --work stays between the commands. What a command made is packed into --give.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from voice_recipe.export import export
from voice_recipe.parcels import pack
from voice_recipe.run import Chain, GateError, code_gate

SHARD_MINUTES = 1.0
CODES_SHARDS = 4
"""First shards that the codes are learnt from."""
GIVING_S = 20.0
"""Time at the end of a command to pack what it made."""
LEAST_TRAINING_S = 30.0
"""With less time than this left, a training waits for the next command."""
SPENT = "spent.json"
GIVEN = (
    "talker.pt", "talker.json", "decoder.pt", "decoder.json", "codes.pt", "tokenizer/vocab.json",
    "tokenizer/merges.txt", "talker.log", "decoder.log", "codes.log", "speech.log", "decoder.critics",
)  # fmt: skip
"""Files that a command packs if it made or changed them, the most important first."""


@dataclass(frozen=True)
class Budget:
    """Minutes of each stage, over all commands."""

    speech: float
    codes: float
    talker: float
    decoder: float


class OneCard:
    """The stages of a chain on card 0."""

    def __init__(
        self, chain: Chain, budget: Budget, options: dict[str, list[str]], gated: bool = True, finishes: bool = False
    ) -> None:
        """`options` are more options of a stage's module, by stage. Without gates, poor codes do not stop the run.

        A command that `finishes` ends the talker's schedule, whatever is left of its budget.
        """
        self.chain, self.budget, self.options = chain, budget, options
        self.gated, self.finishes = gated, finishes

    @property
    def shards(self) -> list[Path]:
        found = self.chain.work.glob("data/shard0_*/done")
        return sorted((done.parent for done in found), key=lambda shard: int(shard.name.partition("_")[2]))

    def stage(self, name: str, module: str, arguments: list[str]) -> None:
        """Run a stage to its end."""
        started = time.time()
        self.chain.finish(name, self.chain.launch(name, module, [*arguments, *self.options.get(name, [])], 0))
        self.chain.note(f"{name} took {time.time() - started:.0f} s")

    def speak(self) -> None:
        """Make the teacher's speech, in shards of a minute. Only the first has audio, unless there is a decoder."""
        minutes = self.budget.speech
        count = max(1, round(minutes / SHARD_MINUTES))
        deadlines = [f"{60 * minutes * (n + 1) / count:.1f}" for n in range(count)]
        given = ["--teacher", str(self.chain.teacher), "--corpus", str(self.chain.corpus)]
        compiling = self.compile_talker()
        self.stage("speech", "synthesize", [*given, "--out", str(self.chain.work / "data"), "--seconds", *deadlines])
        if compiling is not None:
            self.chain.finish("compiling", compiling)

    def compile_talker(self) -> subprocess.Popen[bytes] | None:
        """Compile the talker while the teacher speaks. The talker's own start then finds it in the compiler's cache."""
        options = self.options.get("talker", [])
        if not self.budget.talker or "--eager" in options:
            return None
        return self.chain.launch("compiling", "train_talker", [*self.talker_files([]), "--compile-only", *options], 0)

    def talker_files(self, shards: list[Path]) -> list[str]:
        """Arguments of the talker. Its state lets it go on; the last command ends its schedule."""
        work, start = self.chain.work, self.chain.start
        texts = ["--corpus", str(self.chain.corpus), "--tokenizer", str(work / "tokenizer")]
        files = ["--out", str(work / "talker.pt"), "--state", str(work / "talker_state.pt")]
        if start is not None:
            files += ["--start", str(start / "talker.pt")]
        if not self.finishes:
            files += ["--total-seconds", f"{60 * self.budget.talker:.1f}"]
        return ["--shards", *map(str, shards), *texts, *files, "--end-time", f"{self.end_of('talker'):.1f}"]

    def decoder_files(self) -> list[str]:
        """Arguments of the decoder. It goes on from its own weights and critics, with a schedule for each command."""
        work, start = self.chain.work, self.chain.start
        shards = [str(shard) for shard in self.shards if (shard / "audio.npy").exists()]
        files = ["--codes", str(work / "codes.pt"), "--out", str(work / "decoder.pt")]
        begun = work / "decoder.pt"
        if begun.exists() or start is not None:
            files += ["--start", str(begun if begun.exists() or start is None else start / "decoder.pt")]
        return ["--shards", *shards, *files, "--end-time", f"{self.end_of('decoder'):.1f}"]

    def left_s(self, stage: str) -> float:
        """Rest of a training's budget after the commands before."""
        return 60 * float(getattr(self.budget, stage)) - self.spent_s().get(stage, 0.0)

    def end_of(self, stage: str) -> float:
        """Time at which a training ends: with its budget or with the command."""
        return min(self.chain.end_time, time.time() + self.left_s(stage))

    def prepare(self) -> None:
        """Everything before the trainings."""
        work, start = self.chain.work, self.chain.start
        if not self.shards:
            self.speak()
        if not self.shards:
            raise GateError("the teacher made no speech; see speech.log")
        if not (work / "tokenizer" / "vocab.json").exists():
            if start is not None and (start / "tokenizer").exists():
                shutil.copytree(start / "tokenizer", work / "tokenizer")
            else:
                self.stage(
                    "tokenizer",
                    "text_tokenizer",
                    ["--corpus", str(self.chain.corpus), "--out", str(work / "tokenizer")],
                )
        codes = work / "codes.pt"
        if not codes.exists() and start is not None and (start / "codes.pt").exists():
            shutil.copy(start / "codes.pt", codes)
        if not codes.exists():
            first = ["--shards", *map(str, self.shards[:CODES_SHARDS]), "--out", str(codes)]
            self.stage("codes", "train_codes", [*first, "--seconds", f"{60 * self.budget.codes:.1f}"])
        try:
            self.chain.note(code_gate(codes))
        except GateError as error:
            if self.gated:
                raise
            self.chain.note(str(error))
        missing = [str(shard) for shard in self.shards if not (shard / "codes.npy").exists()]
        if missing:
            self.stage("encode", "encode_shards", ["--shards", *missing, "--codes", str(codes)])

    def spent_s(self) -> dict[str, float]:
        """Seconds of the trainings in all commands."""
        file = self.chain.work / SPENT
        found: dict[str, float] = json.loads(file.read_text()) if file.exists() else {}
        return found

    def train(self, stage: str, arguments: Callable[[], list[str]]) -> bool:
        """Train until the command's end or the stage's budget -> true if the budget is used up."""
        if self.left_s(stage) < LEAST_TRAINING_S:
            return True
        if self.chain.end_time - time.time() < LEAST_TRAINING_S:
            return False
        started = time.time()
        self.stage(stage, f"train_{stage}", arguments())
        spent = self.spent_s()
        spent[stage] = spent.get(stage, 0.0) + time.time() - started
        (self.chain.work / SPENT).write_text(json.dumps(spent))
        return self.finishes or self.left_s(stage) < LEAST_TRAINING_S

    def run(self) -> None:
        work = self.chain.work
        self.prepare()
        done = self.train("talker", lambda: self.talker_files(self.shards)) and self.train(
            "decoder", self.decoder_files
        )
        if (work / "talker.pt").exists() and (work / "decoder.pt").exists():
            export(work, work / "checkpoint")
        self.chain.note("all stages are done" if done else "not done: the same command again goes on")


def give(work: Path, folder: Path, since: float) -> str:
    """Pack what has been made since a time -> a line about what did not fit."""
    made = {name: work / name for name in GIVEN if (work / name).exists() and (work / name).stat().st_mtime >= since}
    left_out = pack(folder, made)
    return f"packed {[name for name in made if name not in left_out]}, no room for {left_out}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--teacher", type=Path, required=True, help="folder with kokoro_int8.npz, voices_en_fp16.npz")
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--minutes", type=float, required=True, help="time of this command")
    parser.add_argument("--speech-minutes", type=float, default=5.6)
    parser.add_argument("--codes-minutes", type=float, default=1.4)
    parser.add_argument("--talker-minutes", type=float, default=16.0, help="over all commands; 0: none")
    parser.add_argument("--decoder-minutes", type=float, default=0.0, help="over all commands; 0: none")
    parser.add_argument(
        "--start", type=Path, help="folder with what there is of talker.pt, decoder.pt, codes.pt, tokenizer"
    )
    parser.add_argument("--finish", action="store_true", help="end the talker's schedule with this command")
    parser.add_argument("--give", type=Path, help="folder for what this command made, in pieces (parcels)")
    parser.add_argument("--no-gates", action="store_true", help="go on with poor codes, for a trial of the chain")
    for stage in ("speech", "codes", "talker", "decoder"):
        parser.add_argument(f"--{stage}-options", default="", help=f"more options of {stage}'s module, in one string")
    args = parser.parse_args()
    started = time.time()
    args.work.mkdir(parents=True, exist_ok=True)
    end_time = started + 60 * args.minutes - (GIVING_S if args.give else 0)
    chain = Chain(args.teacher, args.corpus, args.work, 1, end_time, start=args.start)
    budget = Budget(args.speech_minutes, args.codes_minutes, args.talker_minutes, args.decoder_minutes)
    options = {stage: getattr(args, f"{stage}_options").split() for stage in ("speech", "codes", "talker", "decoder")}
    try:
        OneCard(chain, budget, options, not args.no_gates, args.finish).run()
    except GateError as error:
        raise SystemExit(f"stopped: {error}") from error
    finally:
        if args.give:
            print(give(args.work, args.give, started), flush=True)


if __name__ == "__main__":
    main()
