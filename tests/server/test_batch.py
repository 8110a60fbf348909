"""POST /v1/audio/speech/batch."""

import asyncio
import base64
from typing import Any

import httpx
import pytest
from vivavoce_engine import EngineConfig
from vivavoce_server import ServerConfig
from vivavoce_server.access import Caller
from vivavoce_server.batch import RowLimit, Running

from tests.support.live_server import Gate, LiveServer, ask_and_leave, fake_engine, live_server
from tests.support.texts import plain_text
from tests.support.waiting import wait_until

PCM = {"voice": "heart", "response_format": "pcm", "seed": 7}


def post(server: LiveServer, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/audio/speech/batch", json=body)


def test_items_are_spoken_as_alone(server: LiveServer) -> None:
    items: list[dict[str, Any]] = [{"input": "One."}, {"input": "Second.", "seed": 8, "response_format": "wav"}]
    answer = post(server, {**PCM, "items": items}).json()
    assert (answer["total"], answer["succeeded"], answer["failed"]) == (2, 2, 0)
    for index, (item, result) in enumerate(zip(items, answer["results"], strict=True)):
        alone = httpx.post(f"{server.url}/v1/audio/speech", json={**PCM, **item, "stream": False})
        assert (result["index"], result["status"], result["error"]) == (index, "success", None)
        assert base64.b64decode(result["audio_data"]) == alone.content
        assert result["media_type"] == alone.headers["content-type"]
        assert result["usage"]["output_tokens"] == int(alone.headers["x-usage-output-tokens"])


def test_one_bad_item_leaves_the_others_alone(server: LiveServer) -> None:
    items = [{"input": "One."}, {"input": " "}, {"input": "Three.", "voice": "nobody"}, {"input": "a", "model": "x"}]
    answer = post(server, {**PCM, "items": items}).json()
    assert [result["status"] for result in answer["results"]] == ["success", "error", "error", "error"]
    assert [result["status_code"] for result in answer["results"]] == [200, 400, 400, 404]
    assert [result["error"]["param"] for result in answer["results"][1:]] == ["input", "voice", "model"]
    assert (answer["succeeded"], answer["failed"]) == (1, 3)


def test_an_items_reading_overrides_the_batchs_under_either_name(server: LiveServer) -> None:
    text = "See example.com."
    own: list[dict[str, Any]] = [{}, {"normalize": True}, {"normalization_options": {"normalize": True}}]
    for shared in ({"normalize": False}, {"normalization_options": {"normalize": False}}):
        answer = post(server, {**PCM, **shared, "items": [{"input": text, **fields} for fields in own]}).json()
        written, *read = [result["audio_data"] for result in answer["results"]]
        assert len(written) < len(read[0])
        assert read[0] == read[1]


def test_more_items_than_rows_and_queue_wait_their_turn() -> None:
    with live_server(fake_engine(EngineConfig(max_streams=2, max_queue=2))) as server:
        answer = post(server, {**PCM, "items": [{"input": "Some text."}] * 12}).json()
    assert (answer["succeeded"], answer["failed"]) == (12, 0)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"items": []}, "items"),
        ({"items": [{"input": "a"}] * 3}, "items"),
        ({"items": [{"input": "a"}, {"input": "a", "sped": 1}]}, "items[1].sped"),
        ({"items": [{"voice": "heart"}]}, "items[0].input"),
        ({"items": [{"input": "a", "stream": True}]}, "items[0].stream"),
        (
            {"items": [{"input": "a", "normalization_options": {"speling": True}}]},
            "items[0].normalization_options.speling",
        ),
        ({"items": [{"input": "a", "normalize": "yes"}]}, "items[0].normalize"),
        ({"items": [{"input": "a"}], "colour": "red"}, "colour"),
        ({}, "items"),
    ],
)
def test_a_bad_batch_is_refused_by_name(body: dict[str, Any], param: str) -> None:
    with live_server(config=ServerConfig(max_batch_items=2)) as server:
        response = post(server, body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


async def test_rows_that_loading_settles_count_for_items_that_wait() -> None:
    engine, inside, most = fake_engine(EngineConfig(max_streams=1)), 0, 0
    limit, leave = RowLimit(engine, Running(Caller(""))), asyncio.Event()

    async def item() -> None:
        nonlocal inside, most
        async with limit:
            inside += 1
            most = max(most, inside)
            await leave.wait()
            inside -= 1

    items = [asyncio.create_task(item()) for _ in range(6)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert inside == 1
    engine.config = EngineConfig(max_streams=4)
    leave.set()
    leave.clear()
    await items[0]
    for _ in range(10):
        await asyncio.sleep(0)
    assert (inside, most) == (4, 4)
    leave.set()
    await asyncio.gather(*items)
    assert inside == 0


def test_a_client_that_leaves_frees_every_row() -> None:
    gate = Gate()
    with live_server(fake_engine(before_step=gate)) as server:
        stats = server.engine.stats
        body = {**PCM, "items": [{"input": plain_text(4000)}] * 4}
        ask_and_leave(server, "/v1/audio/speech/batch", body, lambda: stats().running + stats().queued == 4)
        gate.open()
        wait_until(lambda: stats().running == stats().queued == 0)
        assert stats().frames < 4 * 4000
