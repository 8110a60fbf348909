"""`vivavoce eval numerics`: effect of rounding on a voice: greedy codes, logits, word errors and DNSMOS by variant.

Each variant is compared with float32. *Teacher-forced*, it reads float32's codes. The figures are the share of equal
most likely codes, and the error of the logits (RMS, in percent of the spread of float32's). Only the latter tells a
small fault from ordinary rounding. *Free*, it reads its own codes. The figures are the frames before the first
difference, and the share of places with the same code. For the judges it speaks with the checkpoint's own sampling and
the sentence's number as seed.
"""

import argparse
import asyncio
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import mean

import numpy as np
import torch
from numpy.typing import NDArray
from vivavoce_engine import Engine, EngineConfig, Sampling, SamplingParams, SynthesisRequest
from vivavoce_engine.batching.runner import builder_of
from vivavoce_engine.checkpoint.files import Checkpoint, locate_checkpoint, read_checkpoint
from vivavoce_engine.cpu.runner import TorchRunner
from vivavoce_engine.errors import CheckpointError
from vivavoce_engine.front.stream import collect
from vivavoce_engine.models.code_predictor import CodePredictor
from vivavoce_engine.models.layers import KVCache, RowView
from vivavoce_engine.models.prompts import embed_prompt
from vivavoce_engine.models.talker import CONTROL_CODES, Talker
from vivavoce_engine.text.prompt import MIN_FRAMES, Prompt
from vivavoce_voice import CHECKPOINT

from vivavoce_eval.asr import Transcriber
from vivavoce_eval.errors import Unusable
from vivavoce_eval.figures import figures_of
from vivavoce_eval.hearing import FRAME_LIMIT, Panel, Spoken
from vivavoce_eval.judges import SpeakerEncoder
from vivavoce_eval.sentences import Sentence, pick, read_sentences
from vivavoce_eval.speaking import speaker_of
from vivavoce_eval.variants import VARIANTS, Variant

Codes = NDArray[np.int64]
"""Codes [frames, code groups]."""


@dataclass(frozen=True, slots=True, eq=False)
class Forced:
    """Teacher-forced output of a variant: its choices and their logits.

    `codes` is [frames, groups]. The logits are float32: `talker` [frames, vocabulary] and `predictor`
    [groups - 1, frames, vocabulary].
    """

    codes: Codes
    talker: torch.Tensor
    predictor: torch.Tensor


GREEDY = Sampling(SamplingParams(temperature=0), SamplingParams(temperature=0))
STREAMS = 4
COLUMNS = (
    "variant",
    "forced: code 0, others",
    "logits off: talker, predictor",
    "free: first difference, equal",
    "WER",
    "OVRL, P808",
    "stops",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default=str(CHECKPOINT), help="checkpoint folder [the shipped voice]")
    parser.add_argument("--limit", type=int, default=20, metavar="N", help="number of sentences [20]")
    parser.add_argument(
        "--only", type=int, nargs="+", metavar="K", help="variants to run, by number; 0 (float32) always runs"
    )
    parser.add_argument("--codes-only", action="store_true", help="compare codes and logits only, without judges")
    parser.add_argument("--whisper", choices=("base", "tiny.en"), default="base", help="model that transcribes [base]")
    parser.epilog = "; ".join(f"{number}: {variant.name}" for number, variant in enumerate(VARIANTS))


@dataclass(frozen=True, slots=True)
class VariantFigures:
    """Figures of one variant, with shares in percent.

    `free_first_difference` is the mean frame of the first different code in free speech, or the length if all are
    equal. The figures of the judges are None if they were not asked.
    """

    variant: str
    forced_code_0: float
    forced_others: float
    logits_off: float
    predictor_logits_off: float
    free_first_difference: float
    free_equal: float
    word_error_rate: float | None = None
    ovrl: float | None = None
    p808: float | None = None
    stops: float | None = None


def run(args: argparse.Namespace) -> int:
    """Runs the command. Prints a line for each variant as it is done, and all of them as one line of JSON."""
    sentences = pick(read_sentences(), args.limit)
    numbers = range(len(VARIANTS)) if args.only is None else sorted({0, *args.only})
    try:
        checkpoint = read_checkpoint(locate_checkpoint(args.model))
    except CheckpointError as error:
        raise Unusable(str(error)) from error
    panel = None if args.codes_only else Panel(Transcriber(args.whisper), SpeakerEncoder(), {})
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    reference: Reference | None = None
    outcomes = []
    for number in numbers:
        study = Study(checkpoint, VARIANTS[number], sentences)
        free = [codes for codes, _ in study.say(GREEDY)]
        reference = reference or Reference(free, study.forced(free))
        figures = compared(study, free, reference)
        outcomes.append(figures if panel is None else judged(study, figures, panel))
        print(line(outcomes[-1]), flush=True)
    print(
        json.dumps({"sentences": len(sentences), "torch": torch.__version__, "outcomes": list(map(asdict, outcomes))})
    )
    return 0


@dataclass(frozen=True, slots=True)
class Reference:
    """Output of float32: its own codes of each sentence, and its teacher-forced output along them."""

    codes: Sequence[Codes]
    forced: Sequence[Forced]


def compared(study: "Study", free: Sequence[Codes], reference: Reference) -> VariantFigures:
    forced = study.forced(reference.codes)
    equal = np.concatenate([ours.codes == codes for ours, codes in zip(forced, reference.codes, strict=True)])
    return VariantFigures(
        study.variant.name,
        100 * float(equal[:, 0].mean()),
        100 * float(equal[:, 1:].mean()),
        100 * logits_error([ours.talker for ours in forced], [true.talker for true in reference.forced]),
        100 * logits_error([ours.predictor for ours in forced], [true.predictor for true in reference.forced]),
        mean(first_difference(ours, codes) for ours, codes in zip(free, reference.codes, strict=True)),
        100 * equal_share(free, reference.codes),
    )


def logits_error(ours: Sequence[torch.Tensor], truth: Sequence[torch.Tensor]) -> float:
    """RMS of the difference of logits, over the RMS of the true logits about their mean at each place."""
    pairs = list(zip(ours, truth, strict=True))
    error = sum(float((a - b).double().square().sum()) for a, b in pairs)
    spread = sum(float((b - b.mean(-1, keepdim=True)).double().square().sum()) for _, b in pairs)
    return math.sqrt(error / spread)


def judged(study: "Study", codes_alone: VariantFigures, panel: Panel) -> VariantFigures:
    """Adds the judges' figures of the variant's speech."""
    rows = [panel.judge(Spoken(sentence, speaker, pcm))[0] for sentence, speaker, pcm in study.speech()]
    figures = figures_of(rows)
    return replace(
        codes_alone,
        word_error_rate=figures.word_error_rate,
        ovrl=figures.ovrl,
        p808=figures.p808,
        stops=100 * figures.stops,
    )


def line(figures: VariantFigures) -> str:
    free = f"{figures.free_first_difference:.1f}, {figures.free_equal:.1f} %"
    off = f"{figures.logits_off:.3f}, {figures.predictor_logits_off:.3f} %"
    cells = [figures.variant, f"{figures.forced_code_0:.2f}, {figures.forced_others:.2f} %", off, free]
    if figures.word_error_rate is not None:
        cells += [
            f"{figures.word_error_rate:.1f} %",
            f"{figures.ovrl:.2f}, {figures.p808:.2f}",
            f"{figures.stops:.0f} %",
        ]
    return f"| {' | '.join(cells)} |"


def first_difference(ours: Codes, truth: Codes) -> int:
    """Index of the first frame that differs or lacks a counterpart. The length if all frames are equal."""
    frames = min(len(ours), len(truth))
    different = np.flatnonzero((ours[:frames] != truth[:frames]).any(axis=1))
    return int(different[0]) if len(different) else frames


def equal_share(ours: Sequence[Codes], truth: Sequence[Codes]) -> float:
    """Share of codes that are equal at the same place, of the codes of the longer of each pair."""
    same = sum(int((a[: len(b)] == b[: len(a)]).sum()) for a, b in zip(ours, truth, strict=True))
    return same / sum(max(a.size, b.size) for a, b in zip(ours, truth, strict=True))


class Study:
    """One variant of one checkpoint on the CPU."""

    def __init__(self, checkpoint: Checkpoint, variant: Variant, sentences: Sequence[Sentence]) -> None:
        self.variant = variant
        self._checkpoint = checkpoint
        self._sentences = sentences
        self._config = EngineConfig(
            max_streams=STREAMS,
            max_queue=max(1, len(sentences)),
            max_context=1024,
            device="cpu",
            runner="torch",
            dtype=variant.dtype,
        )
        self._runner = TorchRunner("study", checkpoint, self._config)
        variant.apply(self._runner.models)
        speakers = self._runner.info.speakers
        self._speakers = [speaker_of(sentence, speakers) for sentence in sentences]

    def _request(self, number: int, sampling: Sampling) -> SynthesisRequest:
        sentence = self._sentences[number]
        return SynthesisRequest(
            sentence.text,
            speaker=self._speakers[number],
            sampling=sampling,
            seed=sentence.number,
            max_frames=FRAME_LIMIT,
        )

    def say(self, sampling: Sampling) -> list[tuple[Codes, NDArray[np.float32]]]:
        """Speaks every sentence with the engine. Returns its codes and its speech [samples]."""

        async def all_of_them() -> list[tuple[Codes, NDArray[np.float32]]]:
            requests = [self._request(number, sampling) for number in range(len(self._sentences))]
            spoken = await asyncio.gather(*(collect(engine.submit(request)) for request in requests))
            return [
                (
                    np.concatenate([chunk.codes for chunk in chunks]).astype(np.int64),
                    np.concatenate([c.pcm for c in chunks]),
                )
                for chunks, _ in spoken
            ]

        engine = Engine(self._runner, self._config)
        engine.start()
        try:
            return asyncio.run(all_of_them())
        finally:
            engine.stop()

    def speech(self) -> list[tuple[Sentence, str, NDArray[np.float32]]]:
        """Speech of each sentence with its speaker, by the checkpoint's own sampling."""
        spoken = self.say(self._runner.info.sampling)
        return [
            (sentence, speaker, np.clip(pcm, -1, 1))
            for sentence, speaker, (_, pcm) in zip(self._sentences, self._speakers, spoken, strict=True)
        ]

    @torch.inference_mode()
    def forced(self, truth: Sequence[Codes]) -> list[Forced]:
        """Most likely code at each place of `truth`, given that all codes before it are those of `truth`."""
        prompts = [
            builder_of(self._runner.text).prompt(self._request(number, GREEDY))
            for number in range(len(self._sentences))
        ]
        return [self._forced(prompt, codes) for prompt, codes in zip(prompts, truth, strict=True)]

    def _forced(self, prompt: Prompt, truth: Codes) -> Forced:
        talker, predictor = self._runner.models["talker"], self._runner.models["code predictor"]
        assert isinstance(talker, Talker)
        assert isinstance(predictor, CodePredictor)
        codes, frames = torch.from_numpy(truth), len(truth)
        text = [*prompt.trailing_ids, *[self._checkpoint.tts_pad_token_id] * frames][:frames]
        later = predictor.embed_frame(codes, talker.codec_embedding(codes[:, 0]))
        later = later + talker.text_embedding(torch.tensor(text))
        x = torch.cat([embed_prompt(prompt, talker, predictor), later[None, :-1]], dim=1)
        length = x.shape[1]
        like = talker.codec_head.weight
        cache = KVCache(self._checkpoint.talker.transformer, 1, length, like)
        view = RowView(cache, [0], [0], length)
        hidden = talker(x, view)[0, -frames:]
        of_talker, of_predictor = talker.logits(hidden), []

        def draw(group: int, scores: torch.Tensor) -> torch.Tensor:
            of_predictor.append(scores)
            return codes[:, group]  # the next code is given, not chosen

        predictor(hidden, codes[:, 0], predictor.frame_cache(self._checkpoint.talker, frames), draw)
        choices = [self._allowed(of_talker).argmax(-1), *(scores.argmax(-1) for scores in of_predictor)]
        return Forced(torch.stack(choices, dim=1).numpy(), of_talker, torch.stack(of_predictor))

    def _allowed(self, logits: torch.Tensor) -> torch.Tensor:
        """Masks the codes that the engine never draws: logits [frames, vocabulary] → the same shape."""
        end = self._checkpoint.talker.codec_eos_token_id
        allowed = logits.clone()
        allowed[:, -CONTROL_CODES:] = -torch.inf
        allowed[MIN_FRAMES:, end] = logits[MIN_FRAMES:, end]
        return allowed
