"""POST /v1/audio/speech over real sockets: answers, their times, and the effect of leaving early."""

import asyncio
import struct
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray
from vivavoce_engine import Engine, EngineConfig
from vivavoce_engine.batching.scheduler import Plan
from vivavoce_engine.fake_runner import FAKE_INFO, SAMPLES_PER_FRAME, FakeRunner, fake_voices, tone
from vivavoce_engine.request import SpeechTask
from vivavoce_server import ServerConfig

from tests.support.live_server import Gate, LiveServer, ask_and_leave, fake_engine, live_server, spoken_request
from tests.support.texts import plain_text
from tests.support.waiting import wait_until

TEXT = "Hello there."
STREAM_HEADER = bytes.fromhex(
    "52494646 ffffffff 57415645 666d7420 10000000 0100 0100 c05d0000 80bb0000 0200 1000 64617461 ffffffff"
)
"""RIFF, open size, WAVE, 'fmt ' of 16 bytes: PCM, mono, 24000 Hz, 48000 bytes/s, 2 bytes a sample, 16 bits; data."""


def body(**fields: Any) -> dict[str, Any]:
    return {"input": TEXT, "voice": "heart", "seed": 7, **fields}


def samples(pcm: bytes) -> NDArray[np.int16]:
    return np.frombuffer(pcm, "<i2")


def expected_samples(text: str = TEXT, seed: int = 7) -> NDArray[np.int16]:
    return np.rint(tone(seed, 0, len(text)) * 32767).astype(np.int16)


def post(server: LiveServer, **fields: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/audio/speech", json=body(**fields))


def test_streamed_wav_has_one_header_with_open_sizes(server: LiveServer) -> None:
    response = post(server, response_format="wav")
    assert response.status_code == 200
    assert response.headers["content-type"] == "audio/wav"
    assert response.headers["transfer-encoding"] == "chunked"
    assert response.headers["x-accel-buffering"] == "no"
    assert response.headers["cache-control"] == "no-store"
    assert "content-length" not in response.headers
    assert response.content[:44] == STREAM_HEADER
    np.testing.assert_array_equal(samples(response.content[44:]), expected_samples())


@pytest.mark.parametrize("voice", ["", {"id": ""}])
def test_an_empty_voice_is_none(server: LiveServer, voice: object) -> None:
    refused = post(server, voice=voice)
    assert refused.status_code == 400
    assert refused.json() == post(server, voice=None).json()


def test_whole_wav_has_exact_sizes(server: LiveServer) -> None:
    response = post(server, response_format="wav", stream=False)
    data_bytes = len(TEXT) * SAMPLES_PER_FRAME * 2
    assert response.headers["content-length"] == str(44 + data_bytes)
    assert "transfer-encoding" not in response.headers
    assert struct.unpack_from("<I", response.content, 4) == (data_bytes + 36,)
    assert struct.unpack_from("<I", response.content, 40) == (data_bytes,)
    np.testing.assert_array_equal(samples(response.content[44:]), expected_samples())


def test_pcm_is_bare_samples_streamed_and_whole(server: LiveServer) -> None:
    streamed, whole = (
        post(server, response_format="pcm", stream=True),
        post(server, response_format="pcm", stream=False),
    )
    assert streamed.headers["content-type"] == "audio/pcm"
    assert streamed.content == whole.content
    np.testing.assert_array_equal(samples(streamed.content), expected_samples())


@pytest.mark.parametrize("voice", ["heart", "HEART", "alloy", "Alloy", {"id": "heart"}])
def test_voices_are_found_by_any_of_their_names(server: LiveServer, voice: str | dict[str, str]) -> None:
    assert post(server, voice=voice).status_code == 200


@pytest.mark.parametrize("model", ["fake", "tts-1", "tts-1-hd", "gpt-4o-mini-tts", None])
def test_models_are_found_by_name_and_alias(server: LiveServer, model: str | None) -> None:
    assert post(server, model=model).status_code == 200


def test_every_option_reaches_the_engine() -> None:
    plans: list[Plan] = []
    options = {
        "temperature": 0.5,
        "top_p": 0.8,
        "top_k": -1,
        "repetition_penalty": 1.2,
        "max_new_tokens": 5,
        "non_streaming_mode": False,
        "initial_codec_chunk_frames": 3,
        "language": "English",
        "instructions": "Whisper.",
        "task_type": "CustomVoice",
        "sample_rate": 24000,
        "response_format": "pcm",
        "stream_format": "audio",
        "speed": 1,
    }
    with live_server(fake_engine(before_step=plans.append)) as server:
        response = post(server, **options)
    request = spoken_request(plans[0].step[0])
    talker = request.sampling.talker
    assert (talker.temperature, talker.top_p, talker.top_k, talker.repetition_penalty) == (0.5, 0.8, 0, 1.2)
    assert request.sampling.predictor == server.engine.info.sampling.predictor
    assert (request.text, request.speaker, request.language) == (TEXT, "heart", "English")
    assert (request.instructions, request.seed, request.streaming_text) == ("Whisper.", 7, True)
    assert request.first_chunk_frames == 3
    assert len(response.content) == 5 * SAMPLES_PER_FRAME * 2


def test_what_is_absent_keeps_the_checkpoints_defaults() -> None:
    plans: list[Plan] = []
    with live_server(fake_engine(before_step=plans.append)) as server:
        post(server)
    request = plans[0].step[0].pending.request
    assert request.sampling == server.engine.info.sampling
    assert (request.language, request.streaming_text, request.max_frames) == ("auto", False, None)


@pytest.mark.parametrize("task", ["base", "custom_voice"])
@pytest.mark.parametrize("asked", [None, True, False])
def test_all_parts_of_a_text_have_the_layout_that_was_asked_for(task: SpeechTask, asked: bool | None) -> None:
    """Whole text first, unless the request wants the text while it is spoken: speech hurries there."""
    plans: list[Plan] = []
    runner = FakeRunner(replace(FAKE_INFO, task=task), before_step=plans.append)
    with live_server(Engine(runner, EngineConfig(), fake_voices()), ServerConfig(max_part_chars=20)) as server:
        response = post(server, input="One part of this. Then another part.", non_streaming_mode=asked)
    requests = [spoken_request(row) for plan in plans for row in plan.start]
    assert response.status_code == 200
    assert [(each.context is not None, each.streaming_text) for each in requests] == [
        (False, asked is False),
        (True, asked is False),
    ]


def test_first_audio_arrives_before_the_utterance_is_finished() -> None:
    gate = Gate(hold_from_step=1)
    with live_server(fake_engine(before_step=gate)) as server, httpx.Client() as client:
        request = client.build_request("POST", f"{server.url}/v1/audio/speech", json=body(response_format="pcm"))
        response = client.send(request, stream=True)
        pieces = response.iter_raw()
        first = next(pieces)
        assert len(first) == SAMPLES_PER_FRAME * 2
        assert server.engine.stats().frames <= 1
        gate.open()
        rest = b"".join(pieces)
    np.testing.assert_array_equal(samples(first + rest), expected_samples())


async def test_four_at_once_share_the_engines_steps() -> None:
    gate = Gate()
    engine = fake_engine(EngineConfig(max_prefills_per_step=4), before_step=gate)
    with live_server(engine) as server:
        async with httpx.AsyncClient(base_url=server.url) as client:
            asked = [
                asyncio.create_task(client.post("/v1/audio/speech", json=body(response_format="pcm", seed=seed)))
                for seed in range(4)
            ]
            await asyncio.to_thread(wait_until, lambda: engine.stats().queued + engine.stats().running == 4)
            gate.open()
            responses = await asyncio.gather(*asked)
    # Those that came while the gate held the first step begin in the second.
    assert gate.batches.count(4) >= len(TEXT) - 1
    assert sum(gate.batches) == 4 * len(TEXT)
    for seed, response in enumerate(responses):
        np.testing.assert_array_equal(samples(response.content), expected_samples(seed=seed))


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("steps", [0, 3])
def test_a_listener_that_leaves_frees_the_row(stream: bool, steps: int) -> None:
    gate = Gate(hold_from_step=steps)
    with live_server(fake_engine(before_step=gate)) as server:
        stats = server.engine.stats
        long = body(input=plain_text(4000), stream=stream)
        ask_and_leave(server, "/v1/audio/speech", long, lambda: stats().running > 0 and stats().steps == steps)
        gate.open()
        wait_until(lambda: stats().running == 0)
        assert stats().frames < 4000
        assert post(server).status_code == 200


def test_a_listener_that_leaves_the_queue_is_forgotten() -> None:
    gate = Gate()
    with live_server(fake_engine(EngineConfig(max_streams=1), before_step=gate)) as server:
        stats = server.engine.stats
        ask_and_leave(server, "/v1/audio/speech", body(), lambda: stats().running == 1)
        for queued in (1, 2):
            ask_and_leave(server, "/v1/audio/speech", body(), lambda queued=queued: stats().queued == queued)  # type: ignore[misc]
        gate.open()
        wait_until(lambda: stats().running == stats().queued == 0)
        assert post(server).status_code == 200


@pytest.mark.parametrize("stream", [True, False])
def test_failure_before_the_first_byte_is_an_error_response(stream: bool) -> None:
    def fail(_: Plan) -> None:
        raise ZeroDivisionError("boom")

    with live_server(fake_engine(before_step=fail)) as server:
        response = post(server, stream=stream)
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "not_serving"
        assert httpx.get(f"{server.url}/ready").status_code == 503
        assert httpx.get(f"{server.url}/health").status_code == 503
        assert post(server).status_code == 503


def test_failure_after_the_first_byte_breaks_the_transfer() -> None:
    def fail_at_third_step(_: Plan) -> None:
        steps.append(1)
        if len(steps) == 3:
            raise ZeroDivisionError("boom")

    steps: list[int] = []
    with (
        live_server(fake_engine(before_step=fail_at_third_step)) as server,
        httpx.stream("POST", f"{server.url}/v1/audio/speech", json=body()) as response,
    ):
        assert response.status_code == 200
        with pytest.raises(httpx.RemoteProtocolError, match="incomplete chunked read"):
            response.read()


def test_a_full_queue_is_429_with_retry_after() -> None:
    gate = Gate()
    with live_server(fake_engine(EngineConfig(max_streams=1, max_queue=1), before_step=gate)) as server:

        async def crowd() -> list[httpx.Response]:
            async with httpx.AsyncClient() as client:
                url = f"{server.url}/v1/audio/speech"
                first = asyncio.create_task(client.post(url, json=body()))
                await asyncio.to_thread(wait_until, lambda: server.engine.stats().running == 1)
                second = asyncio.create_task(client.post(url, json=body()))
                await asyncio.to_thread(wait_until, lambda: server.engine.stats().queued == 1)
                third = await client.post(url, json=body())
                gate.open()
                return [await first, await second, third]

        first, second, third = asyncio.run(crowd())
    assert (first.status_code, second.status_code) == (200, 200)
    assert third.status_code == 429
    assert third.headers["retry-after"] in {"1", "2"}, "a row of a second, whose account may not have come yet"
    error = {
        "message": "1 requests are waiting already",
        "type": "rate_limit_error",
        "param": None,
        "code": "queue_full",
    }
    assert third.json() == {"error": error}


def test_a_draining_engine_is_503_with_retry_after_while_running_speech_goes_on() -> None:
    gate = Gate(hold_from_step=1)
    with (
        live_server(fake_engine(before_step=gate)) as server,
        httpx.stream("POST", f"{server.url}/v1/audio/speech", json=body(response_format="pcm")) as response,
    ):
        server.engine.drain()
        refused = post(server)
        gate.open()
        audio = response.read()
    assert refused.status_code == 503
    assert refused.headers["retry-after"] == "5"
    assert refused.json()["error"]["code"] == "not_serving"
    np.testing.assert_array_equal(samples(audio), expected_samples())


def test_several_models_are_served_by_name() -> None:
    plans: list[Plan] = []
    engines = {"one": fake_engine(), "two": fake_engine(before_step=plans.append)}
    with live_server(engines) as server:
        assert post(server, model="one").status_code == 200
        assert plans == []
        assert post(server, model="two").status_code == 200
        assert sum(len(plan.step) for plan in plans) == len(TEXT)
        assert [model["id"] for model in httpx.get(f"{server.url}/v1/models").json()["data"]] == ["one", "two"]


def test_the_length_limit_is_the_operators() -> None:
    with live_server(config=ServerConfig(max_input_chars=5)) as server:
        assert post(server, input="12345").status_code == 200
        response = post(server, input="123456")
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "string_above_max_length"
