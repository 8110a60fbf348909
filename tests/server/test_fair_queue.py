"""Fairness in the queue of a server: a client with many requests keeps no other client out."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import httpx
import pytest
from pydantic import SecretStr
from vivavoce_engine import EngineConfig
from vivavoce_server import ServerConfig
from vivavoce_server.access import Caller, KeyEntry
from vivavoce_server.context import address_of, client_address
from vivavoce_server.errors import ApiError

from tests.support.live_server import Gate, LiveServer, fake_engine, live_server
from tests.support.waiting import wait_until

BODY = {"input": "Hello.", "voice": "heart", "response_format": "pcm"}
QUEUE = 2
Headers = dict[str, str]
PROXY = ServerConfig(trusted_proxies=("127.0.0.1",))
NO_PROXY = ServerConfig()
KEYS = ServerConfig(api_keys=(SecretStr("one"), SecretStr("two")))


def bearer(key: str) -> Headers:
    return {"Authorization": f"Bearer {key}"}


def behind(address: str) -> Headers:
    return {"X-Forwarded-For": address}


Crowd = tuple[LiveServer, httpx.AsyncClient, list[asyncio.Task[httpx.Response]]]


@asynccontextmanager
async def crowded(config: ServerConfig, headers: Headers) -> AsyncIterator[Crowd]:
    """A server whose only row and whole queue belong to one client. Its requests are all served at the end."""
    gate = Gate()
    engine = fake_engine(EngineConfig(max_streams=1, max_queue=QUEUE), before_step=gate)
    with live_server(engine, config) as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            crowd = []
            for number in range(1 + QUEUE):
                crowd.append(asyncio.create_task(client.post("/v1/audio/speech", json=BODY, headers=headers)))
                await asyncio.to_thread(wait_until, partial(_has_accepted, server, number + 1))
            yield server, client, crowd
            gate.open()
            assert [(await task).status_code for task in crowd] == [200] * len(crowd)


def _has_accepted(server: LiveServer, requests: int) -> bool:
    stats = server.engine.stats()
    return stats.queued + stats.running == requests


@pytest.mark.parametrize(
    ("config", "crowd", "other", "is_taken"),
    [
        (KEYS, bearer("one"), bearer("two"), True),
        (KEYS, bearer("one"), bearer("one"), False),
        (PROXY, behind("192.0.2.1"), behind("192.0.2.2"), True),
        (PROXY, behind("192.0.2.1"), behind("192.0.2.1"), False),
        (PROXY, behind("2001:db8::1"), behind("2001:db8::2"), False),
        (PROXY, behind("2001:db8::1"), behind("2001:db8:0:1::1"), True),
        (NO_PROXY, behind("192.0.2.1"), behind("192.0.2.2"), False),
    ],
    ids=range(7),
)
async def test_a_crowd_of_one_client_keeps_no_other_out(
    config: ServerConfig, crowd: Headers, other: Headers, is_taken: bool
) -> None:
    async with crowded(config, crowd) as (server, client, served):
        more = asyncio.create_task(client.post("/v1/audio/speech", json=BODY, headers=other))
        if is_taken:
            served.append(more)
            await asyncio.to_thread(wait_until, partial(_has_accepted, server, 2 + QUEUE))
            beyond = await client.post("/v1/audio/speech", json=BODY, headers=other)
            assert beyond.status_code == 429, "its share is one of two places"
            assert 1 <= int(beyond.headers["Retry-After"]) <= 60
        else:
            assert (await more).status_code == 429


async def test_a_batch_counts_each_of_its_items_that_waits() -> None:
    async with crowded(KEYS, bearer("one")) as (_, client, _):
        batch = {**BODY, "response_format": "wav", "items": [{"input": "Hello."}] * 3}
        del batch["input"]
        done = (await client.post("/v1/audio/speech/batch", json=batch, headers=bearer("one"))).json()
    assert [result["status_code"] for result in done["results"]] == [429] * 3


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("unknown\nx", ""),
        ("", ""),
        (None, ""),
    ],
)
def test_addresses(host: str | None, address: str) -> None:
    assert address_of(host) == address


def test_a_caller_is_its_key_or_its_address() -> None:
    token = client_address.set("192.0.2.1")
    try:
        assert Caller("alice").client == "alice"
        assert Caller("").client == "address 192.0.2.1"
    finally:
        client_address.reset(token)


def test_the_limit_of_a_key_tells_when_its_speech_will_have_ended() -> None:
    now_s = 0.0
    caller = Caller("alice", KeyEntry(key=SecretStr("k"), max_concurrent=1), lambda: now_s)

    def told_s() -> float | None:
        with pytest.raises(ApiError) as refused, caller.speaking():
            pass
        return refused.value.retry_after_s

    for _ in range(60):
        with caller.speaking():
            now_s += 20.0
    with caller.speaking():
        assert told_s() == pytest.approx(20.0, abs=0.1)
        now_s += 15.0
        assert told_s() == pytest.approx(5.0, abs=0.1)
        now_s += 15.0
        assert told_s() == 1.0


async def test_later_texts_and_pauses_of_a_request_count_while_it_waits() -> None:
    """A row is held for all texts of a request, one after the other."""
    gate = Gate()
    engine = fake_engine(EngineConfig(max_streams=1), before_step=gate)
    with live_server(engine) as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            bodies = [BODY, {**BODY, "input": "Hello.[pause:2s]Hello, hello.[pause:6s]Hello."}, BODY]
            requests = []
            for number, body in enumerate(bodies):
                requests.append(asyncio.create_task(client.post("/v1/audio/speech", json=body)))
                await asyncio.to_thread(wait_until, partial(_has_accepted, server, number + 1))
            long, short = engine.line.queued[-2:]
            gate.open()
            assert [(await request).status_code for request in requests] == [200] * 3
    assert (long.silent_frames, short.silent_frames) == (8 / engine.info.frame_s, 0)
    assert long.frames == pytest.approx(short.frames * len("Hello.Hello, hello.Hello.") / len("Hello."))
