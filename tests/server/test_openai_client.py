"""The `openai` package as a client of the server, with only the base URL changed."""

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import openai
import pytest
from vivavoce_engine import EngineConfig
from vivavoce_engine.batching.scheduler import Plan
from vivavoce_engine.fake_runner import tone
from vivavoce_server.formats import FORMATS, FormatName

from tests.server.test_metrics import scrape
from tests.support.live_server import Gate, LiveServer, fake_engine, live_server
from tests.support.waiting import wait_until

TEXT = "Hello there."


@pytest.fixture
def client(server: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client:
        yield client


def expected_pcm(seed: int) -> bytes:
    return np.rint(tone(seed, 0, len(TEXT)) * 32767).astype("<i2").tobytes()


def test_create(client: openai.OpenAI) -> None:
    speech = client.audio.speech.create(
        model="tts-1", voice="alloy", input=TEXT, response_format="pcm", extra_body={"seed": 3}
    )
    assert speech.content == expected_pcm(3)


def test_streaming_response(client: openai.OpenAI) -> None:
    with client.audio.speech.with_streaming_response.create(
        model="gpt-4o-mini-tts", voice="coral", input=TEXT, response_format="wav", extra_body={"seed": 3}
    ) as speech:
        received = b"".join(speech.iter_bytes(1000))
    assert received[:4] == b"RIFF"
    assert received[44:] == expected_pcm(3)


async def test_async_client(server: LiveServer) -> None:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client:
        speech = await client.audio.speech.create(
            model="tts-1", voice="michael", input=TEXT, response_format="pcm", extra_body={"seed": 4}
        )
    assert speech.content == expected_pcm(4)


@pytest.mark.parametrize("name", ["mp3", "opus", "aac", "flac", "wav", "pcm"])
def test_every_format_by_every_way(client: openai.OpenAI, name: FormatName) -> None:
    options: dict[str, Any] = {"model": "tts-1", "voice": "alloy", "input": TEXT, "response_format": name}
    seeded: dict[str, Any] = {"extra_body": {"seed": 3}}
    at_once = client.audio.speech.create(**options, **seeded)
    with client.audio.speech.with_streaming_response.create(**options, **seeded) as speech:
        streamed = b"".join(speech.iter_bytes())
    whole = client.audio.speech.create(**options, extra_body={"seed": 3, "stream": False})
    assert at_once.response.headers["content-type"] == FORMATS[name].media_type
    assert len(at_once.content) == len(streamed) == len(whole.content) > 5000
    if name in ("aac", "pcm"):  # Opus has a random serial number, and the others headers that tell the length
        assert at_once.content == streamed == whole.content


def test_the_default_is_mp3(client: openai.OpenAI) -> None:
    speech = client.audio.speech.create(model="tts-1", voice="alloy", input=TEXT)
    assert speech.response.headers["content-type"] == "audio/mpeg"


async def test_a_full_queue_is_retried_as_long_as_the_server_asked_for() -> None:
    gate = Gate()
    with live_server(fake_engine(EngineConfig(max_streams=1, max_queue=1), before_step=gate)) as server:
        stats = server.engine.stats
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client:

            async def speak(client: openai.AsyncOpenAI) -> bytes:
                speech = await client.audio.speech.create(model="tts-1", voice="alloy", input=TEXT)
                return speech.content

            running = asyncio.create_task(speak(client))
            await asyncio.to_thread(wait_until, lambda: stats().running == 1)
            queued = asyncio.create_task(speak(client))
            await asyncio.to_thread(wait_until, lambda: stats().queued == 1)
            with pytest.raises(openai.RateLimitError) as refused:
                await speak(client)
            assert refused.value.response.headers["retry-after"] in {"1", "2"}
            patient = asyncio.create_task(speak(client.with_options(max_retries=2)))
            # Let go once the patient one has been refused, too.
            await asyncio.to_thread(wait_until, lambda: scrape(server)["vivavoce_requests_total", "refused"] == 2)
            gate.open()
            assert all(await asyncio.gather(running, queued, patient))


def test_server_errors_have_openais_class() -> None:
    def fail(_: Plan) -> None:
        raise ZeroDivisionError("boom")

    with (
        live_server(fake_engine(before_step=fail)) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client,
        pytest.raises(openai.InternalServerError),
    ):
        client.audio.speech.create(model="tts-1", voice="alloy", input=TEXT)


def test_errors_have_openais_classes(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        client.audio.speech.create(model="tts-1", voice="nobody", input=TEXT, response_format="pcm")
    assert (bad.value.param, bad.value.code) == ("voice", "voice_not_found")
    with pytest.raises(openai.NotFoundError) as unknown:
        client.audio.speech.create(model="gpt-5", voice="alloy", input=TEXT, response_format="pcm")
    assert unknown.value.code == "model_not_found"


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["fake"]
    assert client.models.retrieve("tts-1").id == "fake"
