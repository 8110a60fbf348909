"""The npm package `openai`: every format, and the class of an error."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from vivavoce_server import ServerConfig

from tests.clients.real.harness import Session
from tests.support.live_server import live_server
from tests.support.programs import needs
from tests.support.server_process import serving

TEXT = "Hello there."
PCM_BYTES = round(len(TEXT) * 0.08 * 24000) * 2

pytestmark = needs("node", "npm")


@pytest.fixture
def fake_url() -> Iterator[str]:
    """A server whose speech has a known length."""
    with live_server(config=ServerConfig(model_name="vivavoce")) as running:
        yield running.url


@pytest.fixture
def shipped_url(tmp_path: Path) -> Iterator[str]:
    """A server process with the voice that ships."""
    with serving(tmp_path) as (_, url):
        yield url


def answer(url: str, folder: Path) -> dict[str, Any]:
    command = [*Session("openai_npm/speak", live=False).command, f"{url}/v1", TEXT]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=folder)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    heard: dict[str, Any] = json.loads(ended.stdout)
    return heard


def test_formats_and_errors(fake_url: str, tmp_path: Path) -> None:
    heard = answer(fake_url, tmp_path)
    assert heard["bytes"]["pcm"] == PCM_BYTES
    assert heard["bytes"]["wav"] == PCM_BYTES + 44
    assert all(count > 5000 for count in heard["bytes"].values())
    assert heard["error"] == {"name": "BadRequestError", "status": 400, "code": "voice_not_found", "param": "voice"}
    assert heard["models"] == ["vivavoce"]


def test_the_shipped_voice(shipped_url: str, tmp_path: Path) -> None:
    assert all(count > 2000 for count in answer(shipped_url, tmp_path)["bytes"].values())
