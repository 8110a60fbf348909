"""--root-path: everything works behind a prefix, whether the proxy takes it off or not. The proxies are real ones."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import cast
from urllib.parse import urljoin

import httpx
import pytest
from vivavoce_server import ServerConfig, create_app
from vivavoce_server.config import load_settings
from vivavoce_server.setting_sources import SettingError
from websockets.sync.client import connect

from tests.support.fleet import answers, free_port, running
from tests.support.live_server import fake_engine
from tests.support.programs import needs, path_of
from tests.support.server_process import serving
from tests.support.waiting import HUNG_S, wait_until

PREFIX = "/speech"
SPEECH = {"input": "Hi!", "voice": "heart", "response_format": "pcm"}
NGINX = """
{user} daemon off; pid {folder}/nginx.pid; error_log stderr; worker_processes 1;
events {{}}
http {{
  access_log off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  proxy_http_version 1.1; proxy_set_header Host $http_host;
  proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection $connection_upgrade;
  map $http_upgrade $connection_upgrade {{ default upgrade; "" ""; }}
  server {{ listen 127.0.0.1:{taken_off}; location /speech/ {{ proxy_pass http://unix:{socket}:/; }} }}
  server {{ listen 127.0.0.1:{left}; location /speech/ {{ proxy_pass http://unix:{socket}; }} }}
}}
"""
CADDY = """
{{
  admin off
  auto_https off
}}
http://127.0.0.1:{taken_off} {{
  handle_path /speech/* {{
    reverse_proxy unix/{socket}
  }}
}}
http://127.0.0.1:{left} {{
  handle /speech/* {{
    reverse_proxy unix/{socket}
  }}
}}
"""


@pytest.fixture(scope="module")
def socket_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("server")
    flags = ("--model", "fake", "--root-path", f"{PREFIX}/", "--uds", str(folder / "a.sock"))
    with serving(folder, *flags):
        yield folder / "a.sock"


@pytest.fixture(
    scope="module",
    params=[pytest.param("nginx", marks=needs("nginx")), pytest.param("caddy", marks=needs("caddy"))],
)
def proxies(
    request: pytest.FixtureRequest, socket_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """`taken off` and `left` → the URL of a proxy that does that with the prefix."""
    name, folder = cast(str, request.param), tmp_path_factory.mktemp("proxy")
    ports = {"taken_off": free_port(), "left": free_port()}
    user = "user root;" if os.geteuid() == 0 else ""  # nginx's worker would be another user, who may not connect
    text = {"nginx": NGINX, "caddy": CADDY}[name].format(folder=folder, socket=socket_file, user=user, **ports)
    (folder / "config").write_text(text)
    command = [path_of("nginx"), "-c", str(folder / "config"), "-p", str(folder)]
    if name == "caddy":
        command = [path_of("caddy"), "run", "--config", str(folder / "config"), "--adapter", "caddyfile"]
    with ExitStack() as stack:
        stack.enter_context(running(command, folder / "log", {"HOME": str(folder)}))
        urls = {way.replace("_", " "): f"http://127.0.0.1:{port}" for way, port in ports.items()}
        for url in urls.values():
            wait_until(lambda url=url: answers(f"{url}{PREFIX}/ready"))  # type: ignore[misc]
        yield urls
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize("way", ["taken off", "left"])
def test_everything_works_behind_the_prefix(proxies: dict[str, str], way: str) -> None:
    with httpx.Client(base_url=proxies[way]) as client:
        assert client.get(f"{PREFIX}/v1/models").json()["data"][0]["id"] == "fake"
        assert len(client.post(f"{PREFIX}/v1/audio/speech", json=SPEECH).content) == 3 * 1920 * 2
        documentation = client.get(f"{PREFIX}/docs").text
        (script, *_) = re.findall(r'src="([^"]+)"', documentation)
        assert client.get(urljoin(f"{PREFIX}/docs", script)).status_code == 200
        servers = client.get(f"{PREFIX}/openapi.json").json()["servers"]
        assert [urljoin(f"{PREFIX}/openapi.json", server["url"]) for server in servers] == [f"{PREFIX}/"]
        page = client.get(f"{PREFIX}/")
        assert 'src="playground/app.js"' in page.text
        assert client.get(f"{PREFIX}/playground/app.js").status_code == 200
        assert client.head(f"{PREFIX}/v1/models").status_code == 200
        assert "POST" in client.options(f"{PREFIX}/v1/audio/speech").headers["allow"]
        missing = client.get(f"{PREFIX}/v1/nothing")
        assert (missing.status_code, missing.json()["error"]["type"]) == (404, "invalid_request_error")
    address = f"{proxies[way].replace('http', 'ws')}{PREFIX}/v1/audio/speech/stream"
    with connect(address, proxy=None) as live:
        live.send(json.dumps({"type": "session.config", "voice": "heart"}))
        assert json.loads(live.recv(HUNG_S))["type"] == "session.created"


@pytest.mark.parametrize("prefix", ["", PREFIX])
async def test_keys_are_asked_for_behind_the_prefix_too(prefix: str) -> None:
    config, _ = load_settings({"root_path": PREFIX, "api_keys": "secret"})
    transport = httpx.ASGITransport(create_app(fake_engine(), config))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        assert (await client.get(f"{prefix}/v1/models")).status_code == 401
        assert (await client.post(f"{prefix}/v1/audio/speech", json=SPEECH)).status_code == 401
        assert (await client.get(f"{prefix}/health")).status_code == 200
        assert (await client.get(f"{prefix}/docs")).status_code == 200
        allowed = await client.get(f"{prefix}/v1/models", headers={"Authorization": "Bearer secret"})
        assert allowed.status_code == 200


@pytest.mark.parametrize("given", ["/speech", "/speech/", "/a/b-c_d.e~f", "", "/"])
def test_a_prefix_is_taken_without_a_slash_at_its_end(given: str) -> None:
    assert load_settings({"root_path": given})[0].root_path == given.rstrip("/")
    assert ServerConfig(root_path=given).root_path == given.rstrip("/")


@pytest.mark.parametrize("given", ["speech", "//a", "/a b", "/a?b", "/../a", "/ä", "http://a", "/v1", "/v1/a", "/v2"])
def test_what_is_no_prefix_is_told_in_a_line(given: str) -> None:
    with pytest.raises(SettingError, match=r"^--root-path: must .* such as /speech$"):
        load_settings({"root_path": given})
