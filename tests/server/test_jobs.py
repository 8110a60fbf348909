"""The translation of requests into jobs: HTTP, a batch and a live socket get the same job for the same options."""

from dataclasses import replace
from typing import Any

import pytest
from vivavoce_engine import Engine, EngineConfig, Overloaded
from vivavoce_engine.batching.line import Line, Rates, Waiting
from vivavoce_engine.fake_runner import FAKE_INFO, FakeRunner, fake_voices
from vivavoce_server import ServerConfig
from vivavoce_server.batch import BatchRequest
from vivavoce_server.errors import ApiError
from vivavoce_server.ignored import INSTRUCTIONS_IGNORED
from vivavoce_server.jobs import prepare
from vivavoce_server.schemas import SpeechOptions, SpeechRequest
from vivavoce_server.service import Service

from tests.support.live_server import fake_engine

OPTIONS: dict[str, Any] = {
    "voice": "Heart",
    "response_format": "opus",
    "speed": 2.0,
    "sample_rate": 16000,
    "language": "english",
    "instructions": "Whisper.",
    "seed": 7,
    "temperature": 0.5,
    "top_k": -1,
    "max_new_tokens": 40,
    "initial_codec_chunk_frames": 3,
}


def service_of(engine: Engine | None = None) -> Service:
    return Service({"fake": engine or fake_engine()}, ServerConfig())


async def test_instructions_reach_only_a_model_that_follows_them() -> None:
    follows, ignores = (
        service_of(Engine(FakeRunner(replace(FAKE_INFO, takes_instructions=able)), EngineConfig(), fake_voices()))
        for able in (True, False)
    )
    request = SpeechRequest(input="Hello", **OPTIONS)
    followed, ignored = (prepare(request, service) for service in (follows, ignores))
    assert (followed.turns[0].options.instructions, followed.warnings) == ("Whisper.", ())
    assert ignored.turns[0].options == replace(followed.turns[0].options, instructions="")
    assert ignored.warnings == (INSTRUCTIONS_IGNORED,)
    assert (await ignored.read()).warnings == (INSTRUCTIONS_IGNORED,)
    live = prepare(SpeechOptions(**OPTIONS), ignores)
    assert (live.turns[0].options, live.warnings) == (ignored.turns[0].options, ignored.warnings)
    plain = prepare(SpeechRequest(input="Hello", **(OPTIONS | {"instructions": " "})), ignores)
    assert plain.warnings == ()


async def test_options_mean_the_same_with_a_text_in_a_batch_and_live() -> None:
    service = service_of()
    live = prepare(SpeechOptions(**OPTIONS), service)
    alone = await prepare(SpeechRequest(input="Hello", **OPTIONS), service).read()
    (item,) = BatchRequest.model_validate({"items": [{"input": "Hello"}], **OPTIONS}).requests()
    batched = await prepare(item, service).read()
    assert live.parts == ()
    assert alone.parts == batched.parts == ("Hello",)
    assert alone.audio == batched.audio
    # The number of an Ogg stream follows from the text, which a socket does not know yet.
    assert alone.audio.stream_number is not None
    assert live.audio == replace(alone.audio, stream_number=None)
    assert live.turns[0].options == alone.turns[0].options == batched.turns[0].options
    assert live.text_plan == alone.text_plan == batched.text_plan
    voiced = [await job.find_voices() for job in (live, alone, batched)]
    assert voiced == [(replace(live.turns[0].options, speaker="heart"),)] * 3


async def test_a_live_job_has_no_seed_for_all_its_utterances() -> None:
    service = service_of()
    live = prepare(SpeechOptions(voice="heart"), service)
    sentence = await prepare(SpeechRequest(voice="heart", input="One."), service).read()
    parts = await prepare(SpeechRequest(voice="heart", input="One.[pause:1s]Two."), service).read()
    seeds = [job.turns[0].options.seed for job in (live, sentence, parts)]
    assert [seed is None for seed in seeds] == [True, True, False]


def test_an_option_that_takes_the_whole_text_is_refused_live() -> None:
    with pytest.raises(ApiError) as refused:
        prepare(SpeechOptions(voice="heart", non_streaming_mode=True), service_of())
    assert (refused.value.status, refused.value.detail.param) == (400, "non_streaming_mode")


def test_word_times_are_an_option_of_the_engine() -> None:
    fields: list[dict[str, Any]] = [{}, {"word_timestamps": True}, {"timestamp_granularities": ["word"]}]
    jobs = [prepare(SpeechOptions(voice="heart", **each), service_of()) for each in fields]
    assert [job.turns[0].options.word_times for job in jobs] == [False, True, True]


async def test_no_reference_is_fetched_for_speech_that_would_be_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Live options wait for no turn when they are set: each utterance does later."""
    engine = fake_engine(EngineConfig(max_queue=1))
    engine.start()
    try:
        line = Line((Waiting("", 1.0),), (("", 1.0),), 0, 1, Rates())
        monkeypatch.setattr(type(engine), "line", line)
        request = SpeechRequest(input="Hello", ref_audio="no audio")
        with pytest.raises(Overloaded):
            await prepare(request, service_of(engine), max_wait_s=30.0).find_voices()
        with pytest.raises(ApiError) as refused:
            await prepare(SpeechOptions(ref_audio="no audio"), service_of(engine)).find_voices()
        assert refused.value.detail.param == "ref_audio"
    finally:
        engine.stop()
