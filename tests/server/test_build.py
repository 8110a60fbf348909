"""The version and the commit, as /health and the metrics tell them."""

import subprocess
from pathlib import Path

import httpx
import pytest
from vivavoce_server import build
from vivavoce_server.build import COMMIT_CHARS, COMMIT_VARIABLE, VERSION, build_commit
from vivavoce_server.config import load_settings
from vivavoce_server.setting_sources import BUILD_VARIABLES

from tests.support.live_server import LiveServer


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(COMMIT_VARIABLE, raising=False)
    monkeypatch.setattr(build, "build_commit", build_commit.__wrapped__)


def test_health_and_metrics_tell_the_build(server: LiveServer) -> None:
    answer = httpx.get(f"{server.url}/health").json()
    assert answer == {"status": "ok", "version": VERSION, "commit": build_commit()}
    line = f'vivavoce_build_info{{commit="{build_commit()}",version="{VERSION}"}} 1.0'
    assert line in httpx.get(f"{server.url}/metrics").text.splitlines()


def test_the_variable_of_an_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(COMMIT_VARIABLE, "0123456789abcdef")
    assert build.build_commit() == "0123456789ab"
    load_settings({})  # it is no setting
    assert COMMIT_VARIABLE in BUILD_VARIABLES


def test_a_checkout_asks_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "ROOT", tmp_path)
    assert build.build_commit() == ""
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run([*git, "init", "-q"], check=True)
    assert build.build_commit() == ""  # nothing is committed yet
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "first"], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout
    assert build.build_commit() == head[:COMMIT_CHARS]


def test_a_machine_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".git").mkdir()
    monkeypatch.setattr(build, "ROOT", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert build.build_commit() == ""
