"""Times of words on the CPU: asking for them changes no code and no sample, in any layout, batch and fragments."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from vivavoce_engine import AudioChunk, Engine, EngineConfig, Rejected, SynthesisRequest, UtteranceOptions, WordTime
from vivavoce_engine.checkpoint.alignment import Alignment
from vivavoce_engine.checkpoint.files import read_checkpoint
from vivavoce_engine.cpu.runner import TorchRunner
from vivavoce_engine.front.stream import AudioStream
from vivavoce_engine.models.layers import HeadScores, KVCache, RowView
from vivavoce_voice import CHECKPOINT

from tests.engine.conftest import Checkpoints
from tests.support.cpu_runners import MakeRunner
from tests.support.speaking import running

TEXT = "Hello there, it's 7:45!  The quick brown fox jumps."
WORDS = ["Hello", "there,", "it's", "7:45!", "The", "quick", "brown", "fox", "jumps."]
TINY_FRAMES = 24


@dataclass(frozen=True)
class Said:
    """Everything that an utterance gave."""

    codes: bytes
    pcm: bytes
    words: tuple[WordTime, ...]
    duration_s: float


@pytest.fixture(scope="module")
def tiny(checkpoints: Checkpoints, make_runner: MakeRunner) -> Iterator[Engine]:
    """A random talker, one of whose heads is taken for one that follows the text."""
    config = EngineConfig(max_context=160, max_streams=3, device="cpu", dtype="float32")
    checkpoint = replace(read_checkpoint(checkpoints("tiny", "custom_voice")), alignment=Alignment(1, 1, -45))
    with running(Engine(make_runner("tiny", checkpoint, config), config)) as engine:
        yield engine


@pytest.fixture(scope="module")
def shipped(make_runner: MakeRunner) -> Iterator[Engine]:
    config = EngineConfig(max_context=256, max_streams=3, device="cpu", dtype="float32")
    with running(Engine(make_runner("shipped", read_checkpoint(CHECKPOINT), config), config)) as engine:
        yield engine


def request(engine: Engine, seed: int, *, word_times: bool, streaming_text: bool = False) -> SynthesisRequest:
    return SynthesisRequest(
        TEXT, speaker=engine.info.speakers[0], seed=seed, streaming_text=streaming_text, word_times=word_times,
        sampling=engine.info.sampling, max_frames=TINY_FRAMES if engine.info.name == "tiny" else None,
    )  # fmt: skip


async def heard(stream: AudioStream) -> Said:
    chunks: list[AudioChunk] = [chunk async for chunk in stream]
    pcm = np.concatenate([chunk.pcm for chunk in chunks])
    codes = np.concatenate([chunk.codes for chunk in chunks])
    words = tuple(word for chunk in chunks for word in chunk.words)
    return Said(codes.tobytes(), pcm.tobytes(), words, len(pcm) / 24000)


def together(engine: Engine, requests: Sequence[SynthesisRequest]) -> list[Said]:
    async def run() -> list[Said]:
        return await asyncio.gather(*(heard(engine.submit(each)) for each in requests))

    return asyncio.run(run())


def same_sound(said: Said, other: Said) -> None:
    assert said.codes == other.codes
    assert said.pcm == other.pcm


@pytest.mark.parametrize("streaming_text", [False, True])
def test_a_batch_in_which_some_ask_says_the_same(tiny: Engine, streaming_text: bool) -> None:
    asking = [request(tiny, seed, word_times=True, streaming_text=streaming_text) for seed in range(3)]
    silent = [replace(each, word_times=False) for each in asking]
    everyone, nobody = together(tiny, asking), together(tiny, silent)
    some = together(tiny, [asking[0], silent[1], asking[2]])
    for all_ask, none_asks, some_ask in zip(everyone, nobody, some, strict=True):
        same_sound(all_ask, none_asks)
        same_sound(some_ask, none_asks)
        assert none_asks.words == ()
        assert [TEXT[word.start : word.end] for word in all_ask.words] == WORDS
    assert some[1].words == ()
    assert (some[0].words, some[2].words) == (everyone[0].words, everyone[2].words)


async def live(engine: Engine, seed: int, fragments: Sequence[str], *, word_times: bool) -> Said:
    options = UtteranceOptions(
        speaker=engine.info.speakers[0], seed=seed, word_times=word_times, max_frames=TINY_FRAMES,
        sampling=engine.info.sampling,
    )  # fmt: skip
    utterance = engine.open(options)

    async def write() -> None:
        for fragment in fragments:
            utterance.append(fragment)
            await asyncio.sleep(0)
        utterance.end()

    said, _ = await asyncio.gather(heard(utterance.stream), write())
    return said


@pytest.mark.parametrize("seed", range(2))
def test_fragments_of_live_text_change_neither_samples_nor_words(tiny: Engine, seed: int) -> None:
    rng = np.random.default_rng(seed)
    cuts = [0, *sorted(rng.integers(0, len(TEXT), 7).tolist()), len(TEXT)]
    fragments = [TEXT[start:end] for start, end in pairwise(cuts)]
    whole = asyncio.run(live(tiny, seed, [TEXT], word_times=True))
    cut = asyncio.run(live(tiny, seed, fragments, word_times=True))
    silent = asyncio.run(live(tiny, seed, fragments, word_times=False))
    assert whole == cut
    same_sound(cut, silent)
    assert [TEXT[word.start : word.end] for word in whole.words] == WORDS


@pytest.mark.parametrize("streaming_text", [False, True])
def test_the_shipped_voice_tells_its_words(shipped: Engine, streaming_text: bool) -> None:
    asking = request(shipped, 1, word_times=True, streaming_text=streaming_text)
    said, silent = together(shipped, [asking, replace(asking, word_times=False)])
    same_sound(said, silent)
    assert [TEXT[word.start : word.end] for word in said.words] == WORDS
    times = [edge for word in said.words for edge in (word.start_s, word.end_s) if edge is not None]
    assert len(times) == 2 * len(WORDS)
    assert times == sorted(times)
    assert times[0] >= 0
    assert times[-1] <= said.duration_s


def test_a_model_without_such_a_head_refuses(checkpoints: Checkpoints) -> None:
    config = EngineConfig(max_context=160, max_streams=1, device="cpu", dtype="float32")
    runner = TorchRunner("tiny", read_checkpoint(checkpoints("tiny", "custom_voice")), config)
    assert not runner.info.word_times
    with running(Engine(runner, config)) as engine:

        async def refused() -> None:
            with pytest.raises(Rejected) as error:
                engine.submit(request(engine, 1, word_times=True))
            assert error.value.param == "word_times"
            with pytest.raises(Rejected) as error:
                engine.open(UtteranceOptions(speaker=engine.info.speakers[0], word_times=True))
            assert error.value.param == "word_times"

        asyncio.run(refused())


def test_scores_are_those_of_the_attention(checkpoints: Checkpoints) -> None:
    """They give the attention's own output where all keys are in the span."""
    size = read_checkpoint(checkpoints("tiny", "custom_voice")).talker.transformer
    cache = KVCache(size, 3, 12, torch.zeros(1))
    torch.manual_seed(0)
    heads, kv_heads, dim = size.num_attention_heads, size.num_key_value_heads, size.head_dim
    steps = [torch.randn(2, 12, each, dim) for each in (heads, kv_heads, kv_heads)]
    RowView(cache, [2, 0], [0, 0], 11).attend(1, *(each[:, :11] for each in steps))
    scores = HeadScores(1, heads - 1, [(0, 40), None])
    out = RowView(cache, [2, 0], [11, 11], 1, scores).attend(1, *(each[:, 11:] for each in steps))
    assert list(scores.found) == [0]
    weights = scores.found[0].softmax(0)
    torch.testing.assert_close(weights @ steps[2][0, :, -1], out[0, 0, -dim:])
    plain = RowView(cache, [2, 0], [11, 11], 1).attend(1, *(each[:, 11:] for each in steps))
    assert torch.equal(out, plain)
