"""The pages of the API, in a real browser and by plain HTTP: they show everything, and load nothing from other hosts.

npm ci --prefix tests/web && apt-get install chromium
"""

import asyncio
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from pydantic import SecretStr
from starlette.applications import Starlette
from starlette.routing import Mount
from vivavoce_server import ServerConfig, create_app
from vivavoce_server.app import TAGS
from vivavoce_server.listeners import bind

from tests.support.live_server import LiveServer, fake_engine, live_server
from tests.support.programs import needs
from tests.support.waiting import HUNG_S, wait_until
from tests.web.test_playground import drive, run_steps

DRIVER = "reference.mjs"
METHODS = ("get", "post", "delete", "put", "patch")
PAGES = ("docs", "redoc", "asyncapi")

needs_browser = needs("chromium", "node", "tests/web/node_modules")


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with live_server() as running:
        yield running


@contextmanager
def behind_a_prefix(prefix: str) -> Iterator[str]:
    """Serves an app below a path, as a proxy with a prefix does. Yields the address with the prefix."""
    engine = fake_engine()
    app = Starlette(routes=[Mount(prefix, create_app(engine, ServerConfig()))])
    listener = bind("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])))
    engine.start()
    thread.start()
    try:
        wait_until(lambda: server.started)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}{prefix}"
    finally:
        server.should_exit = True
        thread.join(HUNG_S)
        engine.stop()


def operations_of(url: str) -> list[dict[str, Any]]:
    paths = httpx.get(f"{url}/openapi.json").json()["paths"]
    return [path[method] for path in paths.values() for method in METHODS if method in path]


@needs_browser
def test_the_pages_show_every_operation_and_ask_no_other_host(server: LiveServer, tmp_path: Path) -> None:
    seen = drive(server.url, tmp_path, "swagger", "tryModels", "redoc", "sockets", driver=DRIVER)
    count = len(operations_of(server.url))
    assert seen["swagger"] == {"operations": count, "tags": list(TAGS), "authorize": False}
    assert seen["tryModels"] == {"status": 200, "url": f"{server.url}/v1/models"}
    assert seen["redoc"] == {"operations": count, "logo": True}
    assert seen["sockets"] == ["/v1/audio/speech/stream", "/v1/realtime", "stream-input", "input.cancel"]


@needs_browser
def test_a_key_given_to_the_page_is_sent(tmp_path: Path) -> None:
    with live_server(config=ServerConfig(api_keys=(SecretStr("sk-right"),))) as server:
        seen = run_steps(server.url, tmp_path, "swagger", "authorize", driver=DRIVER)
    assert seen["results"]["swagger"]["authorize"] is True
    assert seen["results"]["authorize"] == {"before": 401, "after": 200}
    # The browser itself notes the refused request.
    assert all("401" in complaint for complaint in seen["complaints"])


@needs_browser
def test_the_pages_work_behind_a_prefix(tmp_path: Path) -> None:
    with behind_a_prefix("/speech") as url:
        seen = drive(url, tmp_path, "swagger", "tryModels", "redoc", "sockets", driver=DRIVER)
    assert seen["swagger"]["operations"] > 0
    assert seen["tryModels"] == {"status": 200, "url": f"{url}/v1/models"}
    assert len(seen["sockets"]) == 4


@pytest.mark.parametrize("name", PAGES)
def test_a_page_names_no_other_host_and_all_its_files_are_here(server: LiveServer, name: str) -> None:
    page = httpx.get(f"{server.url}/{name}")
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self';")
    assert "http" not in policy
    addresses = re.findall(r'(?:src|href|spec-url)="([^"]+)"', page.text)
    assert len(addresses) >= 3
    for address in addresses:
        assert not re.match(r"[a-z]+:|/", address), "an address is relative"
        assert httpx.get(f"{server.url}/{address}").status_code == 200, address


def test_the_programs_of_the_pages_are_files_of_packages(server: LiveServer) -> None:
    for name in ("swagger-ui-bundle.js", "redoc.standalone.js", "asyncapi-viewer.js"):
        program = httpx.get(f"{server.url}/reference/{name}")
        assert program.headers["content-type"].startswith("text/javascript")
        assert len(program.content) > 100_000
    for name in ("nothing.js", "..%2Fapp.py", "__init__.py"):
        refused = httpx.get(f"{server.url}/reference/{name}")
        assert refused.status_code == 404
        assert refused.json()["error"]["code"] == "not_found"


def test_the_pages_load_without_a_key() -> None:
    paths = (
        "docs",
        "redoc",
        "redoc/logo-mini.svg",
        "asyncapi",
        "openapi.json",
        "asyncapi.json",
        "reference/start-docs.js",
    )
    with live_server(config=ServerConfig(api_keys=(SecretStr("k"),))) as server:
        assert [httpx.get(f"{server.url}/{path}").status_code for path in paths] == [200] * len(paths)
        assert httpx.get(f"{server.url}/metrics").status_code == 401
