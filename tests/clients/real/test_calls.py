"""Published clients: every call that speaks or lists, in the formats that it asks for."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.real.harness import ROOT, Session
from tests.support.live_server import live_server
from tests.support.programs import needs
from tests.support.replay import CHARACTER_S, duration_s

TEXT = "Hello there, this is a test."
ELEVENLABS_FILES = {"convert.mp3", "stream.mp3", "opus.opus", "timed.mp3", "timed_stream.mp3"}
ELEVENLABS_LISTS = {"voices": ["heart", "michael"], "found": ["heart", "michael"], "models": ["fake"]}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with live_server() as running:
        yield running.url


def answer(name: str, url: str, folder: Path) -> dict[str, Any]:
    """The last line of a script, whose files are audio of the whole text each."""
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "PYTHONPATH": str(ROOT)}
    command = [*Session(name, live=False).command, url, TEXT]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, cwd=folder, env=environment
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    for file in folder.iterdir():
        assert duration_s(file.read_bytes()) == pytest.approx(len(TEXT) * CHARACTER_S, abs=0.1), file.name
    told: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return told


def names(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


def assert_aligned(told: dict[str, Any]) -> None:
    """Each character has its times, which are 80 ms of the fake engine's speech, in a whole file as in a stream."""
    for whole, streamed in (told.pop("written"), told.pop("said")):
        assert whole == streamed
        assert whole["text"].strip() == TEXT
        assert len(whole["text"]) == len(whole["starts"]) == len(whole["ends"])
        delay_s = whole["starts"][0]
        assert 0 <= delay_s < 0.1, "more than an encoder's delay"
        assert whole["starts"][6] == pytest.approx(6 * CHARACTER_S + delay_s, abs=0.001), "there"
        assert whole["ends"] == sorted(whole["ends"])
        assert whole["ends"][-1] == pytest.approx(len(TEXT) * CHARACTER_S + delay_s, abs=0.1)


def test_elevenlabs(url: str, tmp_path: Path) -> None:
    told = answer("elevenlabs/calls", url, tmp_path)
    assert_aligned(told)
    assert told == {**ELEVENLABS_LISTS, "tier": "self-hosted"}
    assert names(tmp_path) == ELEVENLABS_FILES


@needs("node", "npm")
def test_elevenlabs_npm(url: str, tmp_path: Path) -> None:
    told = answer("elevenlabs_npm/calls", url, tmp_path)
    assert_aligned(told)
    assert told == {**ELEVENLABS_LISTS, "tier": "self-hosted"}
    assert names(tmp_path) == ELEVENLABS_FILES


@needs("node", "npm")
def test_ai_sdk(url: str, tmp_path: Path) -> None:
    types = answer("ai_sdk/calls", url, tmp_path)
    assert names(tmp_path) == {f"speech.{name}" for name in ("default", "mp3", "opus", "aac", "flac", "wav")}
    assert types["default"] == "audio/mpeg"
