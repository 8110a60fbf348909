"""x-request-timeout and the operator's default: a request that cannot start in time gets a 429 as early as possible."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest
from vivavoce_engine import EngineConfig
from vivavoce_engine.batching.scheduler import Plan
from vivavoce_server import ServerConfig

from tests.server.test_metrics import scrape
from tests.support.live_server import Gate, LiveServer, fake_engine, live_server
from tests.support.live_socket import dial, pcm_of
from tests.support.texts import plain_text
from tests.support.waiting import wait_until

SPEECH, BATCH = "/v1/audio/speech", "/v1/audio/speech/batch"
HEADER = "x-request-timeout"
SHORT = {"input": "Hi!", "voice": "heart", "seed": 5, "response_format": "pcm"}
LONG = {**SHORT, "input": plain_text(4000)}
"""Estimated at 640 s of work before anything has been measured."""
BAD = ["0", "-1", "nan", "inf", "1e999", "soon", "1 s", "", "86401"]


@asynccontextmanager
async def busy(config: ServerConfig | None = None) -> AsyncIterator[tuple[LiveServer, httpx.AsyncClient, Gate]]:
    """A server whose only row is held at its first step, with a long text in the queue behind it."""
    gate = Gate()
    engine = fake_engine(EngineConfig(max_streams=1), before_step=gate)
    with live_server(engine, config) as server:
        async with httpx.AsyncClient(base_url=server.url) as client:
            patient = {HEADER: "86400"}
            running = asyncio.create_task(client.post(SPEECH, json=SHORT, headers=patient))
            await asyncio.to_thread(wait_until, lambda: engine.stats().running == 1)
            queued = asyncio.create_task(client.post(SPEECH, json=LONG, headers=patient))
            await asyncio.to_thread(wait_until, lambda: engine.stats().queued == 1)
            try:
                yield server, client, gate
            finally:
                gate.open()
                assert [(await task).status_code for task in (running, queued)] == [200, 200]


def assert_refused(response: httpx.Response, words: str) -> None:
    assert response.status_code == 429
    assert int(response.headers["retry-after"]) >= 1
    error = response.json()["error"]
    assert (error["type"], error["param"], error["code"]) == ("rate_limit_error", None, "queue_full")
    assert words in error["message"]


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("path", [SPEECH, BATCH])
def test_a_wrong_header_is_named(server: LiveServer, path: str, value: str) -> None:
    body = SHORT if path == SPEECH else {"voice": "heart", "items": [{"input": "Hi!"}]}
    response = httpx.post(server.url + path, json=body, headers={HEADER: value})
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (400, HEADER, "invalid_value")
    assert HEADER in error["message"]


def test_an_idle_server_keeps_any_deadline(server: LiveServer) -> None:
    for value in ("0.5", "86400"):
        response = httpx.post(server.url + SPEECH, json=SHORT, headers={HEADER: value})
        assert (response.status_code, response.content) == (200, pcm_of(5, 3))


async def test_a_wait_that_is_too_long_is_refused_while_the_queue_stands_still() -> None:
    async with busy() as (server, client, _):
        for body in (SHORT, {**SHORT, "stream": False}, {**SHORT, "stream_format": "sse"}):
            response = await client.post(SPEECH, json=body, headers={HEADER: "60"})
            assert_refused(response, "longer than the request allows")
        assert server.engine.stats().queued == 1
        assert (await asyncio.to_thread(scrape, server))["vivavoce_requests_total", "refused"] == 3


async def test_the_operators_default_holds_where_the_client_says_nothing() -> None:
    async with busy(ServerConfig(max_wait_s=60)) as (server, client, gate):
        assert_refused(await client.post(SPEECH, json=SHORT), "longer than the request allows")
        patient = asyncio.create_task(client.post(SPEECH, json=SHORT, headers={HEADER: "86400"}))
        await asyncio.to_thread(wait_until, lambda: server.engine.stats().queued == 2)
        gate.open()
        assert (await patient).content == pcm_of(5, 3)


async def test_a_deadline_that_passes_in_the_queue_is_a_429_too() -> None:
    gate = Gate()
    with live_server(fake_engine(EngineConfig(max_streams=1), before_step=gate)) as server:
        async with httpx.AsyncClient(base_url=server.url) as client:
            running = asyncio.create_task(client.post(SPEECH, json=LONG))
            await asyncio.to_thread(wait_until, lambda: server.engine.stats().running == 1)
            # Nothing waits yet, so there is no reason to refuse it at once.
            queued = asyncio.create_task(client.post(SPEECH, json=SHORT, headers={HEADER: "0.01"}))
            await asyncio.to_thread(wait_until, lambda: server.engine.stats().queued == 1)
            await asyncio.sleep(0.02)
            gate.open()
            assert_refused(await queued, "time to wait has passed")
            assert (await running).content == pcm_of(5, 4000)
        numbers = scrape(server)
    assert (numbers["vivavoce_requests_total", "refused"], numbers["vivavoce_requests_total", "completed"]) == (1, 1)


async def test_no_reference_is_fetched_for_what_is_refused() -> None:
    async with busy() as (server, client, _):
        server.engine.info = replace(server.engine.info, clones=True)
        server.service.references.clone = None  # type: ignore[assignment, method-assign]  # whoever calls it fails
        cloned = {**SHORT, "ref_audio": "http://127.0.0.1/voice.wav"}
        assert_refused(await client.post(SPEECH, json=cloned, headers={HEADER: "60"}), "longer than the request allows")
        batch = {"voice": "", "items": [{"input": "Hi!", "ref_audio": cloned["ref_audio"]}]}
        (result,) = (await client.post(BATCH, json=batch, headers={HEADER: "60"})).json()["results"]
        assert result["status_code"] == 429


async def test_of_a_batch_each_item_has_its_deadline() -> None:
    async with busy() as (_, client, _):
        batch = {"voice": "heart", "items": [{"input": "Hi!"}]}
        response = await client.post(BATCH, json=batch, headers={HEADER: "60"})
        (result,) = response.json()["results"]
        assert (response.status_code, result["status_code"], result["error"]["code"]) == (200, 429, "queue_full")


def test_what_has_begun_has_no_deadline() -> None:
    waits: list[float | None] = []

    def note(plan: Plan) -> None:
        waits.extend(sequence.pending.request.max_wait_s for sequence in plan.start)

    with live_server(fake_engine(before_step=note), ServerConfig(max_part_chars=10)) as server:
        body = {**SHORT, "input": "One two. Three. Four five."}
        assert httpx.post(server.url + SPEECH, json=body, headers={HEADER: "30"}).status_code == 200
    first, *later = waits
    assert first is not None
    assert 0 < first <= 30
    assert later == [None, None]


@pytest.mark.parametrize("value", BAD)
async def test_a_wrong_header_of_a_live_socket_is_named(server: LiveServer, value: str) -> None:
    async with dial(server, additional_headers={HEADER: value}) as socket:
        error = await socket.error()
        assert (error["param"], error["code"]) == (HEADER, "invalid_value")
        assert await socket.close_code() == 1008


async def test_a_live_utterance_that_would_wait_too_long_is_told_and_may_be_tried_again() -> None:
    async with busy() as (server, _, gate), dial(server, additional_headers={HEADER: "60"}) as socket:
        await socket.configure()
        await socket.say("Hi there ")  # a word is spoken once the word behind it is complete
        await socket.expect("audio.start")
        assert (await socket.error())["code"] == "queue_full"
        assert (await socket.expect("audio.done"))["cancelled"]
        await socket.send("input.done")
        gate.open()
        await asyncio.to_thread(wait_until, lambda: server.engine.stats().queued == 0)
        await socket.say("Hi!")
        await socket.send("input.done")
        assert (await socket.utterance()).audio == pcm_of(5, 3)


def test_the_document_tells_the_header(server: LiveServer) -> None:
    paths: dict[str, Any] = httpx.get(f"{server.url}/openapi.json").json()["paths"]
    for path in (SPEECH, BATCH):
        (parameter,) = [one for one in paths[path]["post"]["parameters"] if one["name"] == HEADER]
        assert (parameter["in"], parameter["required"]) == ("header", False)
