"""The engine on a GPU, with the shipped voice: `make test-gpu`."""

import asyncio
import random
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from vivavoce_engine import Engine, EngineConfig, SynthesisRequest, WordTime
from vivavoce_engine.checkpoint.files import read_checkpoint
from vivavoce_engine.cpu.runner import TorchRunner
from vivavoce_engine.gpu.runner import GraphRunner
from vivavoce_voice import CHECKPOINT

from tests.engine.test_reference_parity import servable
from tests.support.golden import load_golden
from tests.support.seeds import assert_seeds_hold
from tests.support.speaking import GREEDY, Speech, running, speak

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA card: `make test-gpu` on one")

ROWS = 64
SENTENCES = (
    "The train to the coast leaves at nine.",
    "Could you tell me where the library is?",
    "She packed two sandwiches and an old map.",
    "Hello!",
    "Rain is expected in the evening, so take an umbrella with you.",
)
WAVE_TOLERANCE = 1e-3
SPEAKERS = ("bella", "emma")
SPOKEN_S = 1800.0
"""Speech of the long test."""


@cache
def runner(dtype: str, eager: bool = False, deterministic: bool = True, aligned: bool = True) -> GraphRunner:
    config = EngineConfig(
        max_streams=ROWS, max_context=512, max_queue=1000, max_queue_s=1e6, dtype=dtype, eager=eager,
        deterministic=deterministic, max_prefills_per_step=8,
    )  # fmt: skip
    kind = {"float32": torch.float32, "bfloat16": torch.bfloat16}[dtype]
    checkpoint = read_checkpoint(CHECKPOINT)
    checkpoint = checkpoint if aligned else replace(checkpoint, alignment=None)
    return GraphRunner("voice", checkpoint, config, torch.device("cuda"), kind)


@pytest.fixture(params=["float32", "bfloat16"])
def dtype(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def said(engine_runner: GraphRunner | TorchRunner, *requests: SynthesisRequest) -> list[Speech]:
    with running(Engine(engine_runner, engine_runner.config)) as engine:
        return speak(engine, *requests)


def requests(count: int) -> list[SynthesisRequest]:
    return [
        SynthesisRequest(
            SENTENCES[number % len(SENTENCES)],
            speaker=SPEAKERS[number % 2],
            seed=number,
            streaming_text=number % 3 == 0,
        )
        for number in range(count)
    ]


def test_greedy_codes_equal_the_reference_in_float32() -> None:
    golden = load_golden("shipped_voice")
    wanted = servable(golden, read_checkpoint(CHECKPOINT))
    for name, speech in zip(wanted, said(runner("float32"), *wanted.values()), strict=True):
        codes, safe = golden.tensors[f"{name}/codes"], golden.calls[name]["safe_frames"]
        different = np.argwhere(speech.codes[:safe] != codes[:safe])
        assert not len(different), f"{name}: {len(different)} codes differ, the first at {different[0]}"


def said_plainly(device: str, request: SynthesisRequest) -> Speech:
    """The speech of PyTorch's own kernels, in float32."""
    config = EngineConfig(max_streams=4, max_context=512, device=device, dtype="float32", runner="torch")
    with running(Engine(TorchRunner("voice", read_checkpoint(CHECKPOINT), config), config)) as engine:
        return speak(engine, request)[0]


@pytest.mark.parametrize("kernels", ["triton", "torch"])
def test_audio_equals_the_cpu_s_in_float32(kernels: str) -> None:
    request = SynthesisRequest(SENTENCES[0], speaker="bella", sampling=GREEDY)
    expected = said_plainly("cpu", request)
    ours = said_plainly("cuda", request) if kernels == "torch" else said(runner("float32"), request)[0]
    assert (ours.codes == expected.codes).all()
    assert np.abs(ours.pcm - expected.pcm).max() < WAVE_TOLERANCE


@pytest.mark.parametrize("deterministic", [True, False])
def test_most_greedy_codes_are_the_same_in_bfloat16(deterministic: bool) -> None:
    """Teacher-forcing apart: up to the first frame that differs, which is the first that may."""
    golden = load_golden("shipped_voice")
    wanted = servable(golden, read_checkpoint(CHECKPOINT))
    same = total = 0
    speeches = said(runner("bfloat16", deterministic=deterministic), *wanted.values())
    for name, speech in zip(wanted, speeches, strict=True):
        codes = golden.tensors[f"{name}/codes"]
        count = min(len(codes), len(speech.codes))
        equal = (speech.codes[:count] == codes[:count]).all(axis=1)
        first = count if equal.all() else int(equal.argmin())
        same, total = same + first, total + len(codes)
    print(f"bfloat16: {same} of {total} frames before the first that differs")
    assert same > 0


def test_a_graph_does_what_single_launches_do(dtype: str) -> None:
    recorded, launched = (said(runner(dtype, eager), *requests(9)) for eager in (False, True))
    for ours, theirs in zip(recorded, launched, strict=True):
        assert (ours.codes == theirs.codes).all()
        assert (ours.pcm == theirs.pcm).all()


def test_a_seeded_request_says_the_same_alone_and_in_any_batch() -> None:
    together = said(runner("bfloat16"), *requests(ROWS))
    for number in (0, 7, 33):
        (alone,) = said(runner("bfloat16"), requests(ROWS)[number])
        assert (alone.codes == together[number].codes).all()
        assert alone.pcm.tobytes() == together[number].pcm.tobytes()
    few = said(runner("bfloat16"), *requests(ROWS)[20:25])
    for ours, theirs in zip(few, together[20:25], strict=True):
        assert (ours.codes == theirs.codes).all()
        assert ours.pcm.tobytes() == theirs.pcm.tobytes()


def test_a_seed_is_the_same_pcm_whatever_else_goes_on(dtype: str) -> None:
    """Whole and live, beside neighbours that come and go, while steps take random times."""
    assert_seeds_hold(runner(dtype), runner(dtype).config, 60, range(12))


async def spoken(engine: Engine, request: SynthesisRequest) -> tuple[bytes, bytes, tuple[WordTime, ...]]:
    """Codes, audio and words of an utterance."""
    chunks = [chunk async for chunk in engine.submit(request)]
    codes, pcm = (np.concatenate([getattr(chunk, name) for chunk in chunks]) for name in ("codes", "pcm"))
    return codes.tobytes(), pcm.tobytes(), tuple(word for chunk in chunks for word in chunk.words)


async def spoken_together(engine: Engine, requests: list[SynthesisRequest]) -> list[tuple[bytes, bytes, object]]:
    return list(await asyncio.gather(*(spoken(engine, request) for request in requests)))


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("count", [1, 4, 32])
def test_word_times_change_no_code_and_no_sample(count: int, deterministic: bool) -> None:
    """Asked for by all, by some and by none, and with kernels that keep no scores at all."""
    ours = runner("bfloat16", deterministic=deterministic)
    bare = runner("bfloat16", deterministic=deterministic, aligned=False)
    plain = requests(count)
    with running(Engine(bare, bare.config)) as engine:
        expected = asyncio.run(spoken_together(engine, plain))
    assert not any(words for _, _, words in expected)
    with running(Engine(ours, ours.config)) as engine:
        for every in (1, 2):
            asked = [replace(request, word_times=at % every == 0) for at, request in enumerate(plain)]
            said_so = asyncio.run(spoken_together(engine, asked))
            assert [one[:2] for one in said_so] == [one[:2] for one in expected]
            assert [bool(words) for _, _, words in said_so] == [request.word_times for request in asked]


@pytest.mark.parametrize("streaming_text", [False, True])
def test_words_are_those_of_the_cpu_in_float32(streaming_text: bool) -> None:
    request = SynthesisRequest(
        SENTENCES[0], speaker="bella", sampling=GREEDY, word_times=True, streaming_text=streaming_text
    )
    config = EngineConfig(max_streams=4, max_context=512, device="cpu", dtype="float32", runner="torch")
    with running(Engine(TorchRunner("voice", read_checkpoint(CHECKPOINT), config), config)) as engine:
        *_, expected = asyncio.run(spoken(engine, request))
    with running(Engine(runner("float32"), runner("float32").config)) as engine:
        *_, words = asyncio.run(spoken(engine, request))
    assert [(word.start, word.end) for word in words] == [(word.start, word.end) for word in expected]
    assert len(words) == len(SENTENCES[0].split())
    for word, other in zip(words, expected, strict=True):
        assert (word.start_s, word.end_s) == pytest.approx((other.start_s, other.end_s), abs=0.02)


def test_half_an_hour_of_speech_over_all_rows_with_joins_and_cancels() -> None:
    """Every utterance that is heard to its end is whole, every row is free in the end, and the engine agrees."""
    chance = random.Random(5)
    heard_frames = cancelled = finished = 0

    async def listener(engine: Engine, number: int) -> None:
        nonlocal heard_frames, cancelled, finished
        turn = 0
        while heard_frames * engine.info.frame_s < SPOKEN_S:
            request = requests(5)[(number + turn) % 5]
            leave_after = chance.randrange(1, 6) if chance.random() < 0.3 else None
            turn += 1
            pieces = 0
            async with engine.submit(request) as stream:
                async for chunk in stream:
                    heard_frames += chunk.frames
                    pieces += 1
                    assert np.isfinite(chunk.pcm).all()
                    if pieces == leave_after:
                        break
                if stream.finished is None:
                    cancelled += 1
                else:
                    finished += 1

    async def everybody(engine: Engine) -> None:
        await asyncio.gather(*(listener(engine, number) for number in range(ROWS + 8)))
        for _ in range(200):
            if engine.stats().running == engine.stats().queued == 0:
                return
            await asyncio.sleep(0.05)

    with running(Engine(runner("bfloat16"), runner("bfloat16").config)) as engine:
        asyncio.run(everybody(engine))
        assert engine.ready
        assert engine.stats().running == engine.stats().queued == 0
    print(f"{heard_frames * 0.08:.0f} s of speech, {finished} utterances finished, {cancelled} cancelled")
    assert finished > 100
    assert cancelled > 30
