"""stream_format=sse: OpenAI's events, with the same file inside them."""

import base64
import json
from typing import Any

import httpx
import pytest
from vivavoce_engine.batching.scheduler import Plan
from vivavoce_server import streaming

from tests.support.broken import broken_text
from tests.support.live_server import Gate, LiveServer, fake_engine, live_server

TEXT = "Hello there."
BODY = {"input": TEXT, "voice": "heart", "seed": 7, "response_format": "pcm"}


def events(text: str) -> list[tuple[str, dict[str, Any]]]:
    """Event names and data; comments are left out."""
    found = []
    for block in text.split("\r\n\r\n"):
        lines = [line for line in block.split("\r\n") if line and not line.startswith(":")]
        if lines:
            name, data = lines
            assert name.startswith("event: ")
            assert data.startswith("data: ")
            found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


def post(server: LiveServer, **fields: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/audio/speech", json={**BODY, **fields})


def test_deltas_are_the_file_and_done_counts(server: LiveServer) -> None:
    bare, response = post(server), post(server, stream_format="sse")
    assert response.headers["content-type"].split(";")[0] == "text/event-stream"
    assert response.headers["x-accel-buffering"] == "no"
    *deltas, done = events(response.text)
    assert {name for name, _ in deltas} == {"speech.audio.delta"}
    assert all(data["type"] == name and data.keys() == {"type", "audio"} for name, data in deltas)
    assert b"".join(base64.b64decode(data["audio"]) for _, data in deltas) == bare.content
    usage: dict[str, float] = {"input_tokens": 12, "output_tokens": 12, "total_tokens": 24}
    usage |= {"characters_per_minute": 750.0, "words_per_minute": 125.0}
    assert done == ("speech.audio.done", {"type": "speech.audio.done", "usage": usage})
    assert "[DONE]" not in response.text


@pytest.mark.parametrize("response_format", ["mp3", "opus", "aac", "flac", "wav"])
def test_every_format_travels_in_events(server: LiveServer, response_format: str) -> None:
    bare = post(server, response_format=response_format)
    *deltas, _ = events(post(server, response_format=response_format, stream_format="sse").text)
    received = b"".join(base64.b64decode(data["audio"]) for _, data in deltas)
    if response_format == "opus":  # Ogg streams carry a random serial number
        assert len(received) == len(bare.content)
    else:
        assert received == bare.content


def test_the_first_delta_comes_before_the_end() -> None:
    gate = Gate(hold_from_step=1)
    with (
        live_server(fake_engine(before_step=gate)) as server,
        httpx.stream("POST", f"{server.url}/v1/audio/speech", json={**BODY, "stream_format": "sse"}) as response,
    ):
        lines = response.iter_lines()
        assert next(lines) == "event: speech.audio.delta"
        assert server.engine.stats().frames <= 1
        gate.open()
        assert list(lines)[-2].startswith('data: {"type":"speech.audio.done"')


def test_failure_after_the_first_audio_is_an_event() -> None:
    def fail_at_third_step(_: Plan) -> None:
        steps.append(1)
        if len(steps) == 3:
            raise ZeroDivisionError("boom")

    steps: list[int] = []
    with live_server(fake_engine(before_step=fail_at_third_step)) as server:
        url, fields = f"{server.url}/v1/audio/speech", {**BODY, "stream_format": "sse"}
        with httpx.stream("POST", url, json=fields) as response:
            text = broken_text(response)
    name, data = events(text)[-1]
    assert name == "speech.audio.error"
    error = {"message": "the engine stopped: boom", "type": "service_unavailable", "param": None, "code": "not_serving"}
    assert data == {"type": "speech.audio.error", "error": error}


def test_failure_before_the_first_audio_is_a_status(server: LiveServer) -> None:
    assert post(server, stream_format="sse", voice="nobody").status_code == 400


def test_silence_is_filled_with_comments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "HEARTBEAT_S", 0.02)
    gate = Gate()
    with (
        live_server(fake_engine(before_step=gate)) as server,
        httpx.stream("POST", f"{server.url}/v1/audio/speech", json={**BODY, "stream_format": "sse"}) as response,
    ):
        lines = response.iter_lines()
        assert next(lines) == ": keep-alive"
        gate.open()
        assert "event: speech.audio.done" in list(lines)


def test_events_cannot_be_whole(server: LiveServer) -> None:
    response = post(server, stream_format="sse", stream=False)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "stream")
