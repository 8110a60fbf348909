"""Words of speech whose end a device tells one step late: the frame that it makes too much has no place in the path."""

from dataclasses import replace

import numpy as np
import pytest
from vivavoce_engine import AudioChunk, Engine, EngineConfig, SynthesisRequest, WordTime
from vivavoce_engine.batching.runner import Attention, Outcome, Runner
from vivavoce_engine.batching.scheduler import Plan
from vivavoce_engine.batching.sequence import Sequence
from vivavoce_engine.batching.text_paths import WINDOW
from vivavoce_engine.fake_runner import FAKE_INFO, FakeRunner, FakeText
from vivavoce_engine.text.prompt import NO_ID, Prompt
from vivavoce_engine.text.words import words_of

from tests.support.speaking import running
from tests.support.stepping import LateRunner

TEXT = "ab cd ef gh ij"
LENGTH = 10
"""Frames of the speech, which stops in front of the last word."""


class WordText(FakeText):
    """Tells the words of a text, each of whose characters is a token, and has all of it in the prompt."""

    def prompt(self, request: SynthesisRequest) -> Prompt:
        spans = [(at, at + 1) for at in range(len(request.text))]
        ids = tuple(map(ord, request.text))
        words = words_of(request.text, spans)
        return replace(super().prompt(request), text_ids=ids, codec_ids=(NO_ID,) * len(ids), words=words)


class AttentiveRunner(FakeRunner):
    """Looks at a further character in each frame. The frame behind the last one looks at the next word."""

    def __init__(self) -> None:
        super().__init__()
        self.text = WordText(FAKE_INFO)
        self.void_frames = 0

    def run(self, plan: Plan) -> Outcome:
        outcome = super().run(plan)
        scores = np.zeros((len(plan.step), WINDOW), np.float32)
        for line, sequence in zip(scores, plan.step, strict=True):
            self.void_frames += sequence.frames_made >= LENGTH
            line[sequence.frames_made + 1 + 2 * (sequence.frames_made >= LENGTH) - sequence.window_from] = 20.0
        outcome.attention.append(Attention(plan.step, scores))
        return outcome

    def _ends(self, sequence: Sequence) -> bool:
        return sequence.frames_made + 1 >= LENGTH


async def heard(runner: Runner, max_chunk_frames: int) -> list[WordTime]:
    with running(Engine(runner, EngineConfig(max_chunk_frames=max_chunk_frames))) as engine:
        chunks: list[AudioChunk] = []
        async for chunk in engine.submit(SynthesisRequest(TEXT, speaker="heart", seed=1, word_times=True)):
            chunks.append(chunk)
    assert sum(chunk.frames for chunk in chunks) == LENGTH
    return [word for chunk in chunks for word in chunk.words]


@pytest.mark.parametrize("max_chunk_frames", [1, 8])
async def test_the_frame_behind_the_end_moves_no_word(max_chunk_frames: int) -> None:
    at_once, late = AttentiveRunner(), AttentiveRunner()
    words = await heard(at_once, max_chunk_frames)
    assert [TEXT[word.start : word.end] for word in words] == TEXT.split()
    assert [word.start_s is None for word in words] == [False, False, False, False, True]
    assert words[3].end_s == pytest.approx(LENGTH * FAKE_INFO.frame_s)
    assert await heard(LateRunner(late), max_chunk_frames) == words
    assert (at_once.void_frames, late.void_frames) == (0, 1)
