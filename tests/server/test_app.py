"""An app is complete before its first request, because clients wait for that one too."""

import threading
import time
from typing import Any

import httpx
import pytest
from fastapi.dependencies.utils import get_dependant
from vivavoce_server import ServerConfig, create_app

from tests.support.live_server import LiveServer, fake_engine
from tests.support.live_socket import dial
from tests.support.waiting import HUNG_S

APPS = 4
BUILDER = "fastapi.routing.get_dependant"
"""FastAPI's function that takes a route's signature apart, once for each route that it builds."""


async def test_no_request_builds_a_route(server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(*_: Any, **__: Any) -> None:
        pytest.fail("a request built a route")

    monkeypatch.setattr(BUILDER, build)
    async with httpx.AsyncClient() as client:
        assert (await client.get(f"{server.url}/v1/models")).status_code == 200
    async with dial(server) as socket:
        await socket.configure()


def test_apps_of_several_threads_are_built_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """While one is built, FastAPI silences a warning in all threads, which the next one would then lack."""
    engine, barrier = fake_engine(), threading.Barrier(APPS)
    builders: list[int] = []

    def noted(*given: Any, **options: Any) -> Any:
        builders.append(threading.get_ident())
        time.sleep(0.001)  # another thread would have its turn here
        return get_dependant(*given, **options)

    monkeypatch.setattr(BUILDER, noted)

    def build() -> None:
        barrier.wait(HUNG_S)
        create_app(engine, ServerConfig())

    threads = [threading.Thread(target=build) for _ in range(APPS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HUNG_S)
    turns = [builder for index, builder in enumerate(builders) if index == 0 or builder != builders[index - 1]]
    assert len(turns) == len(set(turns)) == APPS
