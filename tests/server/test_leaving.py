"""A client that leaves, over any transport and at any moment, frees its row at the next step. Nothing of it remains."""

import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from vivavoce_engine import AudioStream, EngineConfig
from vivavoce_server import ServerConfig
from vivavoce_server.audio import SpeechEncoder
from vivavoce_server.speech import Speech

from tests.server.test_metrics import scrape
from tests.support.live_server import Gate, LiveServer, ask_and_leave, fake_engine, live_server
from tests.support.live_socket import pcm_of
from tests.support.texts import plain_text
from tests.support.waiting import wait_until

pytestmark = pytest.mark.long

SPEECH, BATCH = "/v1/audio/speech", "/v1/audio/speech/batch"
TEXT = "One two three. " * 20
TRANSPORTS: dict[str, dict[str, Any]] = {
    "stream": {},
    "whole": {"stream": False},
    "events": {"stream_format": "sse"},
    "mp3": {"response_format": "mp3"},
    "batch": {"items": [{"input": TEXT}]},
}


def body(transport: str, text: str = TEXT) -> dict[str, Any]:
    fields = {"voice": "heart", "response_format": "pcm", "seed": 5, **TRANSPORTS[transport]}
    return fields if transport == "batch" else {"input": text, **fields}


def path_of(transport: str) -> str:
    return BATCH if transport == "batch" else SPEECH


def remains() -> int:
    gc.collect()
    # By type: to ask strange objects what they are an instance of can warn.
    return sum(type(thing) in (Speech, AudioStream, SpeechEncoder) for thing in gc.get_objects())


def assert_nothing_remains(server: LiveServer, before: int) -> None:
    stats = server.engine.stats
    wait_until(lambda: stats().running == stats().queued == server.service.speaking == 0)
    wait_until(lambda: remains() <= before)
    numbers = scrape(server)
    assert numbers["vivavoce_active_rows", ""] == numbers["vivavoce_queued", ""] == 0
    assert numbers["vivavoce_requests_total", "disconnected"] == 1
    response = httpx.post(server.url + SPEECH, json=body("stream", "Hi!"))
    assert response.content == pcm_of(5, 3)


def leave_when(server: LiveServer, transport: str, moment: Callable[[], bool]) -> None:
    ask_and_leave(server, path_of(transport), body(transport), moment)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_while_another_has_the_row(transport: str) -> None:
    gate, before = Gate(), remains()
    with live_server(fake_engine(EngineConfig(max_streams=1), before_step=gate)) as server:
        stats = server.engine.stats
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(httpx.post, server.url + SPEECH, json=body("stream", "Hi!"))
            wait_until(lambda: stats().running == 1)
            leave_when(server, transport, lambda: stats().queued == 1)
            wait_until(lambda: server.service.speaking == 1)
            gate.open()
            assert other.result().content == pcm_of(5, 3)
        assert_nothing_remains(server, before)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("steps", [0, 1, 5])
def test_at_its_first_step_and_later(transport: str, steps: int) -> None:
    gate, before = Gate(hold_from_step=steps), remains()
    with live_server(fake_engine(before_step=gate)) as server:
        stats = server.engine.stats
        leave_when(server, transport, lambda: stats().running >= 1 and stats().steps == steps)
        wait_until(lambda: server.service.speaking == 0)
        gate.open()
        assert_nothing_remains(server, before)
        assert stats().frames <= 2 * (steps + 1) + 3


@pytest.mark.parametrize("transport", ["stream", "events"])
def test_when_all_is_made_and_little_is_read(transport: str) -> None:
    """The engine is done with it; encoder, buffers and the response still have it."""
    before = remains()
    with live_server() as server:
        stats = server.engine.stats
        ask_and_leave(server, SPEECH, body(transport, plain_text(900)), lambda: stats().frames == 900)
        wait_until(lambda: server.service.speaking == 0)
        wait_until(lambda: remains() <= before)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_between_the_parts_of_a_text(transport: str) -> None:
    gate, before = Gate(hold_from_step=20), remains()
    with live_server(fake_engine(before_step=gate), ServerConfig(max_part_chars=15)) as server:
        stats = server.engine.stats
        leave_when(server, transport, lambda: stats().steps == 20)
        wait_until(lambda: server.service.speaking == 0)
        gate.open()
        assert_nothing_remains(server, before)
        assert stats().frames < 100
