"""`vivavoce eval align`: finds the attention head that follows the text, and its constant offset, without a judge.

The checkpoint speaks texts in both layouts, and all heads of the talker are recorded. heads.py says how the best one is
chosen. What is found is stored beside the checkpoint, or in the cache folder if that cannot be written.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from vivavoce_engine import AudioChunk, Engine, EngineConfig, Finished, SynthesisRequest, VoiceReference
from vivavoce_engine.batching.runner import builder_of
from vivavoce_engine.checkpoint.alignment import Alignment
from vivavoce_engine.checkpoint.alignment_cache import write_cached_alignment
from vivavoce_engine.checkpoint.files import Checkpoint, locate_checkpoint, read_checkpoint
from vivavoce_engine.cpu.runner import TorchRunner
from vivavoce_engine.errors import EngineError
from vivavoce_engine.front.stream import collect
from vivavoce_engine.load import ModelRunner
from vivavoce_engine.models.reference_encoder import ReferenceEncoder
from vivavoce_voice import CHECKPOINT

from vivavoce_eval.attention import Utterance, record
from vivavoce_eval.errors import Unusable
from vivavoce_eval.heads import LEAST_SILENCES, THRESHOLD, Head, Survey, choose
from vivavoce_eval.hearing import FRAME_LIMIT
from vivavoce_eval.json_edit import replace_file, set_keys

TEXTS = (
    "Well... I am not so sure about that; let me think.",
    "First, open the box. Then, very slowly, take out the glass.",
    "The trees along the river have lost nearly all of their leaves.",
    "Stop! Who goes there? Nobody answered.",
    "The answer, as far as I know, is simple: wait.",
    "My sister bought a small red car last summer.",
    "She paused - just for a moment - and went on.",
    "Yes. No. Perhaps. It depends on the weather.",
    "You need three things: flour, butter, and a little salt.",
    "Do you hear that? It comes from the kitchen.",
    "We should leave now if we want to catch the last train home.",
    "The lights went out; then, all at once, everybody laughed.",
    "Thank you. That is very kind of you.",
    "Oh, I see! You have been here before.",
    "He looked at the letter... and put it back on the table.",
    "Nobody could remember when the old clock had stopped.",
    "Please sit down. The doctor will see you in a minute.",
    "It was cold; it was dark; it was late.",
    "Are you ready? Good. Let us begin.",
    "In the end, after many years, they came back.",
)
"""English texts, most of them with signs inside: the silences behind those tell a head's offset."""
SHOWN = 8
STREAMS = 4
MAX_CONTEXT = 1024
DESCRIPTION = "A calm adult voice that speaks clearly."
"""Voice of a model that designs voices."""
RECORDING_TEXT = "The weather was fine, and so we walked along the river until it grew dark."
"""Text of the recording that a model which clones voices is given."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default=str(CHECKPOINT), help="checkpoint folder or hub id [the shipped voice]")
    parser.add_argument(
        "--write", action="store_true", help="store head and offset beside the checkpoint, or in the cache folder"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures as JSON")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N [cpu]")
    parser.add_argument("--texts", type=int, default=len(TEXTS), metavar="N", help=f"number of texts [{len(TEXTS)}]")


def run(args: argparse.Namespace) -> int:
    """Prints the best heads, and the two keys of the chosen one. Returns 1 if no head can be chosen."""
    if not 1 <= args.texts <= len(TEXTS):
        raise Unusable(f"--texts must be from 1 to {len(TEXTS)}, not {args.texts}")
    try:
        config = EngineConfig(max_streams=STREAMS, max_context=MAX_CONTEXT, device=args.device, runner="torch")
        checkpoint = read_checkpoint(locate_checkpoint(args.model))
        heads = survey(checkpoint, config, TEXTS[: args.texts])
    except (EngineError, ValueError) as error:
        raise Unusable(str(error)) from error
    print(as_table(heads))
    chosen = choose(heads)
    if args.json:
        write_figures(args.json, as_figures(args.texts, heads, chosen))
    if chosen is None:
        print(f"vivavoce: {refusal(heads)}", file=sys.stderr)
        return 1
    print(
        f"Head {chosen.name} follows the text. The keys for generation_config.json are {json.dumps(keys(chosen))[1:-1]}"
    )
    if args.write:
        print(f"They are in {store(checkpoint, chosen)}")
    return 0


def survey(checkpoint: Checkpoint, config: EngineConfig, texts: Sequence[str]) -> list[Head]:
    """Speaks the texts in both layouts, and measures all heads, the best score first."""
    runner = TorchRunner("align", checkpoint, config)
    heads = Survey(checkpoint)
    for utterance in speak(runner, requests(checkpoint, runner, texts)):
        prompt = builder_of(runner.text).prompt(replace(utterance.request, word_times=True))
        heads.add(utterance, prompt, record(checkpoint, runner.models, prompt, utterance.codes))
        print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return heads.ranked()


def requests(checkpoint: Checkpoint, runner: TorchRunner, texts: Sequence[str]) -> list[SynthesisRequest]:
    """All texts in both layouts, by the checkpoint's speakers in turn."""
    info = runner.info
    names = info.speakers or ("",)
    common = SynthesisRequest(
        "",
        language="english" if "english" in info.languages else "auto",
        reference=cloned(checkpoint, runner) if checkpoint.task == "base" and not info.speakers else None,
        instructions=DESCRIPTION if checkpoint.task == "voice_design" else "",
        sampling=info.sampling,
        max_frames=FRAME_LIMIT,
    )
    return [
        replace(common, text=text, speaker=names[number % len(names)], seed=number, streaming_text=streaming)
        for streaming in (False, True)
        for number, text in enumerate(texts)
    ]


def cloned(checkpoint: Checkpoint, runner: ModelRunner) -> VoiceReference:
    """The voice of a recording that the shipped voice speaks, for a model that only clones voices."""
    asked = SynthesisRequest(RECORDING_TEXT, speaker="heart", language="english", seed=0)
    config = EngineConfig(max_streams=1, max_context=MAX_CONTEXT, device="cpu")
    (recording,) = speak(TorchRunner("recording", read_checkpoint(CHECKPOINT), config), [asked])
    return replace(ReferenceEncoder(checkpoint, runner.device).encode(recording.pcm), codes=None)


def speak(runner: ModelRunner, asked: Sequence[SynthesisRequest]) -> list[Utterance]:
    async def together() -> list[tuple[list[AudioChunk], Finished]]:
        return await asyncio.gather(*(collect(engine.submit(request)) for request in asked))

    engine = Engine(runner, runner.config)
    engine.start()
    try:
        spoken = asyncio.run(together())
    finally:
        engine.stop()
    return [
        Utterance(
            request,
            np.concatenate([chunk.codes for chunk in chunks]).astype(np.int64),
            np.concatenate([chunk.pcm for chunk in chunks]),
        )
        for request, (chunks, _) in zip(asked, spoken, strict=True)
    ]


def keys(chosen: Head) -> dict[str, Any]:
    return {"alignment_heads": [[chosen.layer, chosen.head]], "alignment_offset_ms": chosen.offset_ms}


def as_figures(texts: int, heads: Sequence[Head], chosen: Head | None) -> dict[str, Any]:
    best = [{**asdict(head), "score": head.score} for head in heads[:SHOWN]]
    stored = None if chosen is None else keys(chosen)
    return {"texts": texts, "threshold": THRESHOLD, "heads": best, "chosen": stored}


def write_figures(file: Path, figures: dict[str, Any]) -> None:
    try:
        file.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise Unusable(f"--json: {error}") from error


def as_table(heads: Sequence[Head]) -> str:
    def lines() -> Iterator[str]:
        yield "head    score: whole text    a token a frame    offset    quartiles    silences"
        for head in heads[:SHOWN]:
            offset, spread = ("" if ms is None else f"{ms} ms" for ms in (head.offset_ms, head.spread_ms))
            yield (
                f"{head.name:<8}{head.whole:>17.2f}{head.streaming:>19.2f}"
                f"{offset:>10}{spread:>13}{head.silences or '':>12}"
            )

    return "\n".join(lines())


def refusal(heads: Sequence[Head]) -> str:
    """The reason for which no head can be chosen."""
    best = heads[0]
    if best.score >= THRESHOLD:
        return (
            f"head {best.name} follows the text, but its offset needs {LEAST_SILENCES} silences behind signs, and the "
            f"speech has {best.silences}: nothing is stored"
        )
    return (
        f"no head of this checkpoint follows the text: the best one, {best.name}, scores {best.score:.2f}, and "
        f"{THRESHOLD} is needed. The model has no word times"
    )


def store(checkpoint: Checkpoint, chosen: Head) -> Path:
    """Writes the keys into the checkpoint's generation_config.json → the file written.

    A hub's snapshot is made of links into the hub's cache, and a folder may be read-only. The engine's own cache keeps
    the head then.

    Raises:
        Unusable: neither can be written, or a file that cannot be written names a head already.
    """
    file = checkpoint.path / "generation_config.json"
    try:
        if file.is_symlink():
            raise OSError("it is a link")
        with file.open(encoding="utf-8", newline="") as opened:
            text = opened.read()
        replace_file(file, set_keys(text, keys(chosen)))
    except OSError as error:
        if checkpoint.alignment is not None:
            raise Unusable(
                f"{file} names a head and cannot be written ({error}): give the engine the settings alignment_heads "
                "and alignment_offset_ms, which go before the file"
            ) from error
        return store_in_cache(checkpoint, chosen)
    return file


def store_in_cache(checkpoint: Checkpoint, chosen: Head) -> Path:
    assert chosen.offset_ms is not None
    try:
        return write_cached_alignment(checkpoint.path, Alignment(chosen.layer, chosen.head, chosen.offset_ms))
    except OSError as error:
        raise Unusable(f"neither the checkpoint's folder nor the cache can be written: {error}") from error
