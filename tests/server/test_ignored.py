"""A field that the model cannot follow is named in the answer and in the log, or refused by a strict server."""

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from vivavoce_engine import Engine, EngineConfig
from vivavoce_engine.fake_runner import FAKE_INFO, FakeRunner, fake_voices
from vivavoce_server import ServerConfig
from vivavoce_server.ignored import IGNORED_HEADER, INSTRUCTIONS_IGNORED

from tests.support.cloning import BATCH, OPTIONS, SPEECH, as_base64, base_engine, recording
from tests.support.live_server import LiveServer, live_server
from tests.support.live_socket import dial
from tests.support.tiny_checkpoints import write_checkpoint

BODY: dict[str, Any] = {"input": "Hello there.", "voice": "alloy", "response_format": "pcm"}
STYLED: dict[str, Any] = {**BODY, "instructions": "Speak calmly."}
STRICT = ServerConfig(strict=True)


def plain_engine() -> Engine:
    """An engine whose model follows no instructions."""
    return Engine(FakeRunner(replace(FAKE_INFO, takes_instructions=False)), EngineConfig(), fake_voices())


@pytest.fixture(scope="module")
def plain() -> Iterator[LiveServer]:
    with live_server(plain_engine()) as running:
        yield running


@pytest.fixture(scope="module")
def strict() -> Iterator[LiveServer]:
    with live_server(plain_engine(), STRICT) as running:
        yield running


def post(server: LiveServer, path: str = SPEECH, **body: Any) -> httpx.Response:
    return httpx.post(server.url + path, json=body, timeout=600)


@pytest.mark.parametrize("how", [{}, {"stream": False}, {"stream_format": "sse"}], ids=str)
def test_the_header_names_the_field(plain: LiveServer, how: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "vivavoce_server.ignored"):
        answer = post(plain, **STYLED, **how)
    assert (answer.status_code, answer.headers[IGNORED_HEADER]) == (200, "instructions")
    assert caplog.messages == ["the model fake ignores instructions"]
    assert IGNORED_HEADER not in post(plain, **{**STYLED, "instructions": " "}, **how).headers


def test_the_field_is_named_where_there_is_no_header_for_it(plain: LiveServer) -> None:
    items = [{"input": "One."}, {"input": "Two.", "instructions": None}, {"input": "Three.", "instructions": ""}]
    results = post(plain, BATCH, voice="heart", instructions="calm", items=items).json()["results"]
    assert [result["ignored"] for result in results] == [["instructions"], ["instructions"], []]
    told = post(plain, **STYLED, **{"return": "text"}).json()
    assert (told["ignored"], told["warnings"]) == (["instructions"], [INSTRUCTIONS_IGNORED])


async def test_a_live_utterance_names_the_field(plain: LiveServer) -> None:
    async with dial(plain) as socket:
        await socket.configure(instructions="calm")
        await socket.say("Hello.")
        await socket.send("input.done")
        assert (await socket.utterance()).done["ignored"] == ["instructions"]
        await socket.send("session.config", voice="heart")
        await socket.say("Hello.")
        await socket.send("input.done")
        assert "ignored" not in (await socket.utterance()).done


@pytest.mark.parametrize("how", [{}, {"stream": False}, {"stream_format": "sse"}, {"return": "text"}], ids=str)
def test_a_strict_server_refuses_the_field(strict: LiveServer, how: dict[str, Any]) -> None:
    answer = post(strict, **STYLED, **how)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, "instructions", "not_available")
    assert post(strict, **BODY, **how).status_code == 200
    assert post(strict, **{**STYLED, "instructions": None}, **how).status_code == 200


async def test_a_strict_server_refuses_it_in_batches_and_on_sockets(strict: LiveServer) -> None:
    items = [{"input": "One."}, {"input": "Two.", "instructions": "calm"}]
    first, second = post(strict, BATCH, voice="heart", items=items).json()["results"]
    assert (first["status_code"], second["status_code"], second["error"]["param"]) == (200, 400, "instructions")
    async with dial(strict) as socket:
        await socket.send("session.config", voice="heart", instructions="calm")
        assert (await socket.error())["param"] == "instructions"


def test_elevenlabs_fields_without_a_meaning_are_named(plain: LiveServer, strict: LiveServer) -> None:
    settings = {"stability": 0.5, "style": None, "speed": 1.0}
    body = {"text": "Hi.", "previous_text": "Before.", "next_text": None, "voice_settings": settings, "é\n": 1}
    for server in (plain, strict):
        answer = post(server, "/v1/text-to-speech/heart", **body)
        assert (answer.status_code, answer.headers[IGNORED_HEADER]) == (200, "previous_text, voice_settings.stability")
    many = {f"field_{number}": 1 for number in range(1000)}
    assert len(post(plain, "/v1/text-to-speech/heart", text="Hi.", **many).headers[IGNORED_HEADER]) < 1000


def test_a_strict_server_replaces_no_voice_of_elevenlabs(plain: LiveServer, strict: LiveServer) -> None:
    path = "/v1/text-to-speech/hpp4J3VqNfWAUOO0d1Us"
    assert post(plain, path, text="Hi.").headers[IGNORED_HEADER] == "voice_id"
    refused = post(strict, path, text="Hi.")
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "voice_not_found")


@pytest.mark.parametrize("is_strict", [False, True])
def test_a_voice_that_is_sent_speaks_instead_of_the_one_that_is_named(base_checkpoint: Path, is_strict: bool) -> None:
    sent = {"input": "Hello.", "ref_audio": as_base64(recording(0)), **OPTIONS}
    with live_server(base_engine(base_checkpoint), ServerConfig(strict=is_strict)) as server:
        unnamed, empty, named = (post(server, **sent, **voice) for voice in ({}, {"voice": ""}, {"voice": "alloy"}))
    assert (unnamed.status_code, empty.status_code) == (200, 200)
    assert IGNORED_HEADER not in unnamed.headers
    assert IGNORED_HEADER not in empty.headers
    if is_strict:
        assert (named.status_code, named.json()["error"]["param"]) == (400, "voice")
    else:
        assert (named.status_code, named.headers[IGNORED_HEADER]) == (200, "voice")
        assert named.content == unnamed.content


@pytest.mark.parametrize("is_strict", [False, True])
def test_a_designed_voice_speaks_instead_of_the_one_that_is_named(tmp_path: Path, is_strict: bool) -> None:
    engine = base_engine(write_checkpoint(tmp_path / "design", "tiny", "voice_design"))
    asked = {"input": "Hello.", "instructions": "An old man.", **OPTIONS}
    with live_server(engine, ServerConfig(strict=is_strict)) as server:
        unnamed, named = (post(server, **asked, **voice) for voice in ({}, {"voice": "alloy"}))
        assert (unnamed.status_code, unnamed.headers.get(IGNORED_HEADER)) == (200, None)
        if is_strict:
            assert (named.status_code, named.json()["error"]["param"]) == (400, "voice")
        else:
            assert (named.status_code, named.headers[IGNORED_HEADER]) == (200, "voice")
