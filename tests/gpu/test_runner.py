"""The GPU's runner says what the CPU's says: every kind of start, rows used again, prompts cut in parts."""

import asyncio
import os
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is imported
pytest.importorskip("triton")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

from vivavoce_bench.cards.layout import SHAPE, Kind  # noqa: E402
from vivavoce_engine import Engine, EngineConfig, NotServing, SynthesisRequest, VoiceReference, WordTime  # noqa: E402
from vivavoce_engine.batching.runner import Outcome, Step  # noqa: E402
from vivavoce_engine.batching.scheduler import Plan  # noqa: E402
from vivavoce_engine.batching.sequence import Sequence  # noqa: E402
from vivavoce_engine.checkpoint.alignment import Alignment  # noqa: E402
from vivavoce_engine.checkpoint.files import read_checkpoint  # noqa: E402
from vivavoce_engine.cpu.runner import TorchRunner  # noqa: E402
from vivavoce_engine.front.stream import AudioStream  # noqa: E402
from vivavoce_engine.gpu import steps as gpu_steps  # noqa: E402
from vivavoce_engine.gpu.launch import Launcher  # noqa: E402
from vivavoce_engine.gpu.runner import GraphRunner  # noqa: E402
from vivavoce_engine.models.codec_decoder import CodecDecoder, CodecRows  # noqa: E402
from vivavoce_engine.request import SpokenContext  # noqa: E402
from vivavoce_engine.text.prompt import TextFrontend  # noqa: E402
from vivavoce_engine.text.transcript import TranscriptJudge  # noqa: E402

from tests.support.speaking import GREEDY, Speech, running, speak  # noqa: E402
from tests.support.tiny_checkpoints import write_checkpoint  # noqa: E402
from tests.support.utterances import pending  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")  # Triton's interpreter
ROWS, FRAMES, REFERENCE_FRAMES = 2, 3, 5
WAVE_TOLERANCE = 1e-4
SMALLEST = replace(
    SHAPE["tiny"],
    groups=3,
    codes=64,
    codec_window=4,
    talker=replace(SHAPE["tiny"].talker, layers=1),
    predictor=replace(SHAPE["tiny"].predictor, layers=1),
)
"""The interpreter takes its time."""


class PlainCodec(CodecRows):
    """Code2Wav by PyTorch, as a GPU's runner calls it; its kernels have tests of their own, and take minutes."""

    def __init__(
        self, decoder: CodecDecoder, rows: int, max_frames: int, dtype: torch.dtype, *, launch: Launcher
    ) -> None:
        super().__init__(decoder, rows + 1, decoder.quantizer.codebooks[0])

    def reset(self, row: int) -> None:  # type: ignore[override]
        super().reset(torch.tensor([row], device=DEVICE))


def config() -> EngineConfig:
    return EngineConfig(
        max_streams=ROWS,
        max_context=256,
        max_chunk_frames=2,
        max_prefills_per_step=2,
        device=DEVICE.type,
        dtype="float32",
    )


def said(runner: GraphRunner | TorchRunner, *requests: SynthesisRequest) -> list[Speech]:
    with running(Engine(runner, config())) as engine:
        return speak(engine, *requests)


def preset(text: str, *, streaming_text: bool) -> SynthesisRequest:
    return SynthesisRequest(text, speaker="ryan", sampling=GREEDY, streaming_text=streaming_text, max_frames=FRAMES)


def clone(hidden: int, groups: int, *, in_context: bool, own: bool = False) -> SynthesisRequest:
    chance = np.random.default_rng(4)
    codes = chance.integers(0, 32, (REFERENCE_FRAMES, groups)).astype(np.int16)
    reference = VoiceReference(
        chance.normal(0, 0.1, hidden).astype(np.float32), codes if in_context else None, "it's fine"
    )
    context = SpokenContext("Hello. ", codes[:4]) if own else None
    return SynthesisRequest("Yes.", reference=reference, context=context, sampling=GREEDY, max_frames=FRAMES)


@pytest.mark.parametrize("kind", ["custom_voice", "base"])
def test_it_says_what_the_cpu_says(tmp_path: Path, kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """More utterances than rows, so that rows are used again; prompts of more tokens than go at once."""
    monkeypatch.setitem(SHAPE, "tiny", SMALLEST)
    checkpoint = read_checkpoint(write_checkpoint(tmp_path, "tiny", kind))
    hidden, groups = checkpoint.talker.transformer.hidden_size, checkpoint.talker.num_code_groups
    if kind == "base":
        requests = [
            clone(hidden, groups, in_context=in_context, own=own)
            for in_context, own in ((False, False), (True, False), (True, True))
        ]
    else:
        requests = [
            preset("The lazy dog jumps over.", streaming_text=False),
            preset("The lazy dog jumps over.", streaming_text=True),
            preset("你好。", streaming_text=True),
        ]
    expected = said(TorchRunner("plain", checkpoint, config()), *requests)
    monkeypatch.setattr(gpu_steps, "PROMPT_TOKENS", (16, 24))
    monkeypatch.setattr(gpu_steps, "GpuCodec", PlainCodec)
    ours = said(GraphRunner("kernels", checkpoint, config(), DEVICE, torch.float32), *requests)
    for number, (mine, theirs) in enumerate(zip(ours, expected, strict=True)):
        assert mine.codes.tolist() == theirs.codes.tolist(), number
        assert np.abs(mine.pcm - theirs.pcm).max() < WAVE_TOLERANCE, number


def test_it_judges_transcripts_as_the_cpu_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the weights of its kernels, and after it has spoken."""
    monkeypatch.setitem(SHAPE, "tiny", SMALLEST)
    monkeypatch.setattr(gpu_steps, "GpuCodec", PlainCodec)
    checkpoint = read_checkpoint(write_checkpoint(tmp_path, "tiny", "base"))
    request = clone(checkpoint.talker.transformer.hidden_size, checkpoint.talker.num_code_groups, in_context=True)
    assert request.reference is not None
    runners = (
        GraphRunner("kernels", checkpoint, config(), DEVICE, torch.float32),
        TorchRunner("plain", checkpoint, config()),
    )
    said(runners[0], request)
    fits = []
    for runner in runners:
        assert isinstance(runner.text, TextFrontend)
        fits.append(TranscriptJudge(runner.text, runner.forcing(), 256).fit(request.reference))
    assert abs(fits[0] - fits[1]) < 1e-4
    assert abs(fits[0]) > 1e-3


@dataclass(frozen=True)
class Told:
    """The words of one utterance, and the attention scores of its steps."""

    codes: list[list[int]]
    pcm: NDArray[np.float32]
    words: tuple[WordTime, ...]
    scores: list[NDArray[np.float32]]


def told(runner: GraphRunner | TorchRunner, monkeypatch: pytest.MonkeyPatch, *requests: SynthesisRequest) -> list[Told]:
    """Speaks all requests at once, which are submitted in their order."""
    scores: defaultdict[int, list[NDArray[np.float32]]] = defaultdict(list)
    launch = runner.launch

    def launching(plan: Plan) -> Step:
        step = launch(plan)

        def wait() -> None:
            step.wait()
            for attention in step.outcome.attention:
                for sequence, found in zip(attention.sequences, attention.scores, strict=True):
                    if sequence.tells_words:
                        scores[sequence.utterance_id].append(found)

        return Step(step.outcome, wait)

    monkeypatch.setattr(runner, "launch", launching)

    async def heard(stream: AudioStream) -> Told:
        chunks = [chunk async for chunk in stream]
        codes, pcm = (np.concatenate([getattr(chunk, name) for chunk in chunks]) for name in ("codes", "pcm"))
        words = tuple(word for chunk in chunks for word in chunk.words)
        return Told(codes.tolist(), pcm, words, scores[stream.utterance_id])

    async def together(engine: Engine) -> list[Told]:
        return await asyncio.gather(*(heard(engine.submit(request)) for request in requests))

    with running(Engine(runner, config())) as engine:
        return asyncio.run(together(engine))


def test_it_tells_the_words_that_the_cpu_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of the rows ask. The codes and the audio are those of a checkpoint that has no head to follow."""
    monkeypatch.setitem(SHAPE, "tiny", SMALLEST)
    plain = read_checkpoint(write_checkpoint(tmp_path, "tiny", "custom_voice"))
    checkpoint = replace(plain, alignment=Alignment(0, 1, -45.0))
    unasked = [preset("The lazy dog jumps over.", streaming_text=live) for live in (False, True, True)]
    requests = [replace(unasked[0], word_times=True), unasked[1], replace(unasked[2], word_times=True)]
    expected = told(TorchRunner("plain", checkpoint, config()), monkeypatch, *requests)
    monkeypatch.setattr(gpu_steps, "GpuCodec", PlainCodec)
    ours = told(GraphRunner("kernels", checkpoint, config(), DEVICE, torch.float32), monkeypatch, *requests)
    without = told(GraphRunner("kernels", plain, config(), DEVICE, torch.float32), monkeypatch, *unasked)
    for request, mine, theirs, silent in zip(requests, ours, expected, without, strict=True):
        assert mine.codes == silent.codes == theirs.codes
        assert np.abs(mine.pcm - silent.pcm).max() < WAVE_TOLERANCE  # PyTorch's Code2Wav, in pieces of any size
        assert (silent.words, silent.scores) == ((), [])
        assert bool(mine.words) == bool(mine.scores) == request.word_times
        assert len(theirs.scores) == len(theirs.codes) * request.word_times
        for found, exact in zip(mine.scores, theirs.scores, strict=False):  # void frames of ours may follow
            np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-4)
        for word, other in zip(mine.words, theirs.words, strict=True):
            assert (word.start, word.end) == (other.start, other.end)
            assert (word.start_s is None) == (other.start_s is None)
            if word.start_s is not None:
                assert (word.start_s, word.end_s) == pytest.approx((other.start_s, other.end_s), abs=1e-3)


class Recorded:
    """Stands for the graphs of a runner: makes silence, or finds no memory for some of them."""

    def __init__(self, runner: GraphRunner, full: set[object]) -> None:
        self._runner, self._full = runner, full

    def launch(self, key: object, _: object) -> None:
        if key in self._full:
            raise RuntimeError("CUDA error: out of memory")
        match key:
            case (int(batch), int(frames)):
                info, groups = self._runner.info, SMALLEST.groups
                pcm, codes = torch.zeros(batch, frames * info.samples_per_frame), torch.zeros(batch, frames, groups)
                self._runner._steps.decoded[batch, frames] = pcm, codes


def run_plan(path: Path, full: set[object], monkeypatch: pytest.MonkeyPatch) -> tuple[Outcome, list[int]]:
    """A step of two rows: a piece of two frames of the first, and of one of the second."""
    monkeypatch.setitem(SHAPE, "tiny", SMALLEST)
    checkpoint = read_checkpoint(write_checkpoint(path, "tiny", "custom_voice"))
    runner = GraphRunner("kernels", checkpoint, config(), DEVICE, torch.float32)
    runner._graphs = runner._codec_graphs = Recorded(runner, full)  # type: ignore[assignment]
    first, second = (Sequence(pending(number), row=number - 1) for number in (1, 2))
    step = runner.launch(Plan((), (first, second), ((first, 2), (second, 1))))
    step.wait()
    return step.outcome, [len(chunk.codes) for chunk in step.outcome.audio.values()]


def test_a_call_of_code2wav_without_memory_fails_its_utterances(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome, frames = run_plan(tmp_path, {(1, 2)}, monkeypatch)
    assert {number: type(error) for number, error in outcome.failed.items()} == {1: NotServing}
    assert (list(outcome.audio), frames) == ([2], [1])
    assert outcome.ended == {1: False, 2: False}


def test_a_frame_without_memory_fails_the_rows_of_the_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome, frames = run_plan(tmp_path, {("frame", 2)}, monkeypatch)
    assert {number: type(error) for number, error in outcome.failed.items()} == {1: NotServing, 2: NotServing}
    assert (frames, outcome.ended) == ([], {})


def test_a_step_with_memory_fails_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome, frames = run_plan(tmp_path, set(), monkeypatch)
    assert (outcome.failed, list(outcome.audio), frames) == ({}, [1, 2], [2, 1])
