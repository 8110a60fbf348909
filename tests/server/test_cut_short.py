"""Speech that a limit cuts off: told if the client set the limit, and otherwise an error, never a complete answer."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from vivavoce_engine import Engine, EngineConfig
from vivavoce_engine.fake_runner import FAKE_INFO, FakeRunner, fake_voices

from tests.server.test_sse import events
from tests.support.broken import broken_text
from tests.support.live_server import LiveServer, live_server
from tests.support.live_socket import dial, pcm_of

SPEECH, BATCH = "/v1/audio/speech", "/v1/audio/speech/batch"
MOST_FRAMES, FEW_FRAMES = 20, 4
LONG = "One two three four five six."
assert len(LONG) > MOST_FRAMES


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    """A model that makes few frames."""
    runner = FakeRunner(replace(FAKE_INFO, max_frames=MOST_FRAMES))
    with live_server(Engine(runner, EngineConfig(), fake_voices())) as running:
        yield running


def body(**fields: Any) -> dict[str, Any]:
    return {"input": LONG, "voice": "heart", "response_format": "pcm", "seed": 5, **fields}


def test_a_whole_answer_that_the_model_cuts_is_an_error(server: LiveServer) -> None:
    response = httpx.post(server.url + SPEECH, json=body(stream=False))
    assert (response.status_code, response.json()["error"]["code"]) == (500, "endless_speech")


def test_a_stream_that_the_model_cuts_breaks_off(server: LiveServer) -> None:
    with httpx.stream("POST", server.url + SPEECH, json=body()) as response:
        broken_text(response)


def test_an_item_of_a_batch_that_the_model_cuts_is_an_error(server: LiveServer) -> None:
    items = [{"input": LONG}, {"input": "Short."}, {"input": LONG, "max_new_tokens": FEW_FRAMES}]
    results = httpx.post(server.url + BATCH, json={"voice": "heart", "items": items}).json()["results"]
    assert [(result["status"], result["finish_reason"]) for result in results] == [
        ("error", None),
        ("success", "stop"),
        ("success", "length"),
    ]


async def test_a_live_utterance_that_the_model_cuts_ends_with_an_error(server: LiveServer) -> None:
    async with dial(server) as socket:
        await socket.configure()
        await socket.say(LONG)
        await socket.send("input.done")
        await socket.expect("audio.start")
        while isinstance(message := await socket.receive(), bytes):
            pass
        assert message["error"]["code"] == "endless_speech"
        assert (await socket.expect("audio.done"))["cancelled"]


def test_the_clients_own_limit_is_told_in_a_header(server: LiveServer) -> None:
    response = httpx.post(server.url + SPEECH, json=body(stream=False, max_new_tokens=FEW_FRAMES))
    assert response.content == pcm_of(5, FEW_FRAMES)
    assert response.headers["x-finish-reason"] == "length"
    assert "x-finish-reason" not in httpx.post(server.url + SPEECH, json=body(stream=False, input="Short.")).headers


def test_the_clients_own_limit_is_told_in_an_event(server: LiveServer) -> None:
    response = httpx.post(server.url + SPEECH, json=body(stream_format="sse", max_new_tokens=FEW_FRAMES))
    assert events(response.text)[-1][1]["finish_reason"] == "length"


async def test_the_clients_own_limit_is_told_on_a_socket(server: LiveServer) -> None:
    async with dial(server) as socket:
        await socket.configure(max_new_tokens=FEW_FRAMES)
        for text, cut_short in ((LONG, True), ("Hi!", False)):
            await socket.say(text)
            await socket.send("input.done")
            heard = await socket.utterance()
            assert heard.audio == pcm_of(5, FEW_FRAMES if cut_short else 3)
            assert heard.done.get("finish_reason") == ("length" if cut_short else None)
            assert not heard.done["cancelled"]
