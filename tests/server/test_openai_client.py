"""The `openai` package against the server: the base URL is all that changes."""

from collections.abc import Iterator

import numpy as np
import openai
import pytest
from vivavoce_engine.fake_runner import tone

from tests.server.live import LiveServer

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
