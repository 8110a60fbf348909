"""Every field of every route and socket, at and beyond its edges: no fault, no endless speech, an error that names it.

The requests are made from the OpenAPI document, and from the models of the sockets' messages.
"""

import asyncio
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from vivavoce_engine import Engine, EngineConfig, VoiceStore
from vivavoce_engine.fake_runner import FakeRunner, fake_voices
from vivavoce_server import ServerConfig, create_app

from tests.support.edge_requests import OWN_BODY, fault_of, operations, requests_at_edges
from tests.support.edge_talks import Protocol, Talk, hold, protocols, talks_by_address, talks_of
from tests.support.fuzzing import INPUTS
from tests.support.live_server import LiveServer, live_server
from tests.support.waiting import HUNG_S

pytestmark = pytest.mark.long
DOCUMENT: dict[str, Any] = create_app(Engine(FakeRunner(), EngineConfig()), ServerConfig()).openapi()
ALIKE = frozenset(
    f"/v1/text-to-speech/{{voice_id}}{way}" for way in ("", "/with-timestamps", "/stream/with-timestamps")
)
"""Routes with the fields of another one. With FUZZ_INPUTS, as in `make fuzz`, they are tried too."""
OPERATIONS = [
    (method, path, operation) for method, path, operation in operations(DOCUMENT) if INPUTS or path not in ALIKE
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder: Path = tmp_path_factory.mktemp("voices")
    engine = Engine(FakeRunner(), EngineConfig(), fake_voices(VoiceStore(folder, max_voices=50)))
    with live_server(engine) as running:
        yield running


@pytest.mark.parametrize(
    ("method", "path", "operation"), OPERATIONS, ids=[f"{way} {path}" for way, path, _ in OPERATIONS]
)
def test_a_route_at_its_edges(server: LiveServer, method: str, path: str, operation: dict[str, Any]) -> None:
    faults: list[str] = []
    with httpx.Client(base_url=server.url, timeout=HUNG_S, trust_env=False) as http:
        for asked in requests_at_edges(DOCUMENT, method, path, operation, thorough=bool(INPUTS)):
            fault = fault_of(asked, asked.send(http))
            faults += [] if fault is None else [fault]
        good = http.post("/v1/audio/speech", json=OWN_BODY)
    assert not faults, "\n".join(faults)
    assert (good.status_code, len(good.content) > 0) == (200, True)


PROTOCOLS = list(protocols())
AT_ONCE = 8


async def faults_of(url: str, talks: Iterable[Talk]) -> list[str]:
    """The faults of conversations, of which a few are held at once."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def in_turn(talk: Talk) -> str | None:
        async with turns:
            return await hold(url, talk)

    return [fault for fault in await asyncio.gather(*map(in_turn, talks)) if fault is not None]


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=[f"{protocol.path} {protocol.name}" for protocol in PROTOCOLS])
async def test_a_message_at_its_edges(server: LiveServer, protocol: Protocol) -> None:
    faults = await faults_of(server.url, talks_of(protocol, thorough=bool(INPUTS)))
    assert not faults, "\n".join(faults)


async def test_the_addresses_of_sockets_at_their_edges(server: LiveServer) -> None:
    faults = await faults_of(server.url, talks_by_address())
    assert not faults, "\n".join(faults)
