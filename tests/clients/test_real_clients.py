"""Packages in common use, each in its own process and environment (tests/clients/real/README.md)."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from vivavoce_server import ServerConfig

from tests.support.live_server import live_server
from tests.support.programs import needs, path_of
from tests.support.server_process import serving

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).parent / "real"
ENVIRONMENT = ROOT / ".venv-clients/bin"
TEXT = "Hello there."
AUDIO_S = len(TEXT) * 0.08

needs_python_clients = needs(".venv-clients")
needs_npm_client = needs("node", "tests/clients/real/node_modules")


@pytest.fixture
def fake_url() -> Iterator[str]:
    """A server whose speech has a known length."""
    with live_server(config=ServerConfig(model_name="vivavoce")) as running:
        yield running.url


@pytest.fixture(scope="module")
def shipped_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server process with the voice that ships."""
    with serving(tmp_path_factory.mktemp("server"), "--model-name", "vivavoce") as (_, url):
        yield url


def run(folder: Path, *command: str | Path) -> str:
    # An environment of its own: nothing of this test's packages reaches the client.
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder)}
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env=environment, cwd=folder
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def hear(folder: Path, script: str, url: str, model: str) -> dict[str, float]:
    output = run(folder, ENVIRONMENT / "python", SCRIPTS / script, f"{url}/v1", model, TEXT)
    heard: dict[str, float] = json.loads(output.splitlines()[-1])
    return heard


@needs_python_clients
@pytest.mark.parametrize("script", ["livekit_tts.py", "pipecat_tts.py"])
@pytest.mark.parametrize("model", ["tts-1", "gpt-4o-mini-tts", "vivavoce"])
def test_voice_agents_hear_all(fake_url: str, tmp_path: Path, script: str, model: str) -> None:
    heard = hear(tmp_path, script, fake_url, model)
    assert heard["rate"] == 24000
    assert heard["seconds"] == pytest.approx(AUDIO_S, abs=0.06)


@needs_python_clients
@pytest.mark.parametrize("script", ["livekit_tts.py", "pipecat_tts.py"])
def test_voice_agents_hear_the_shipped_voice(shipped_url: str, tmp_path: Path, script: str) -> None:
    heard = hear(tmp_path, script, shipped_url, "gpt-4o-mini-tts")
    assert 0.3 < heard["seconds"] < 10


@needs_npm_client
def test_npm_package(fake_url: str, tmp_path: Path) -> None:
    answer: dict[str, Any] = json.loads(run(tmp_path, path_of("node"), SCRIPTS / "speak.mjs", f"{fake_url}/v1", TEXT))
    pcm_bytes = round(AUDIO_S * 24000) * 2
    assert answer["bytes"]["pcm"] == pcm_bytes
    assert answer["bytes"]["wav"] == pcm_bytes + 44
    assert all(count > 5000 for count in answer["bytes"].values())
    error = {"name": "BadRequestError", "status": 400, "code": "voice_not_found", "param": "voice"}
    assert answer["error"] == error
    assert answer["models"] == ["vivavoce"]


@needs_npm_client
def test_npm_package_with_the_shipped_voice(shipped_url: str, tmp_path: Path) -> None:
    answer: dict[str, Any] = json.loads(
        run(tmp_path, path_of("node"), SCRIPTS / "speak.mjs", f"{shipped_url}/v1", TEXT)
    )
    assert all(count > 2000 for count in answer["bytes"].values())


@needs("curl")
@pytest.mark.parametrize("protocol", ["--http1.1", "--http1.0"])
def test_curl(fake_url: str, tmp_path: Path, protocol: str) -> None:
    output = tmp_path / "hello.pcm"
    body = json.dumps({"input": TEXT, "voice": "alloy", "response_format": "pcm"})
    command = [path_of("curl"), "-sSf", protocol, f"{fake_url}/v1/audio/speech", "-H", "Content-Type: application/json"]
    run(tmp_path, *command, "-d", body, "-o", output)
    assert output.stat().st_size == round(AUDIO_S * 24000) * 2


@needs_python_clients
def test_schemathesis_finds_no_fault(tmp_path: Path) -> None:
    checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
    with live_server(config=ServerConfig(max_input_chars=20)) as server:
        command = ["run", f"{server.url}/openapi.json", "--checks", checks, "--max-examples", "10", "--seed", "1"]
        run(tmp_path, ENVIRONMENT / "st", *command)
