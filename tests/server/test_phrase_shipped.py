"""The phrase cache of a server process with the shipped voice: the same bytes in every format, and after a restart."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import vivavoce_voice
from vivavoce_server.formats import FORMATS

from tests.support.server_process import serving

pytestmark = pytest.mark.long

STATE = "X-Vivavoce-Cache"
LOAD_S = 600.0
"""Longest wait for an answer whose model has to be loaded."""
TEXT = "Hello there. [pause:200ms] This is a test."


@contextmanager
def client_of(folder: Path, *flags: str) -> Iterator[httpx.Client]:
    """A client of a server that keeps its address in this new folder."""
    folder.mkdir()
    with (
        serving(folder, "--max-voices", "0", "--device", "cpu", "--max-wait-s", "600", *flags) as (_, url),
        httpx.Client(base_url=f"{url}/v1/audio", timeout=LOAD_S) as client,
    ):
        yield client


def say(client: httpx.Client, tag: str = "", **changes: Any) -> httpx.Response:
    body = {"model": "tts-1", "input": TEXT, "voice": "alloy", "seed": 3, "response_format": "pcm", **changes}
    return client.post("/speech", json=body, headers={"If-None-Match": tag})


def copy_with_one_bit_changed(copy: Path) -> None:
    """Copies the shipped voice. The weights' file has the same size and times as the original."""
    shutil.copytree(vivavoce_voice.CHECKPOINT, copy)
    weights = max(copy.rglob("*.safetensors"), key=lambda path: path.stat().st_size)
    with weights.open("r+b") as file:
        file.seek(-1000, 2)
        byte = file.read(1)[0]
        file.seek(-1000, 2)
        file.write(bytes([byte ^ 1]))
    shutil.copystat(vivavoce_voice.CHECKPOINT / weights.relative_to(copy), weights)


def test_hits_are_the_speech_of_a_server_without_cache_also_after_a_restart(tmp_path: Path) -> None:
    caching = ("--cache-dir", str(tmp_path / "cache"))
    with client_of(tmp_path / "one") as client:
        plain = {name: say(client, response_format=name).content for name in FORMATS}

    with client_of(tmp_path / "two", *caching, "--default-seed", "3") as client:
        first = say(client, response_format="mp3", seed=None)
        assert (first.headers[STATE], first.content) == ("miss", plain["mp3"])
        for name in FORMATS:
            hit = say(client, response_format=name)
            assert (hit.headers[STATE], hit.content) == ("hit", plain[name]), name
        whole = say(client, response_format="wav", stream=False)
        assert whole.headers[STATE] == "hit"
        assert whole.content[44:] == plain["wav"][44:]
        events = say(client, stream_format="sse")
        usage = json.loads(events.text.rpartition("data: ")[2])["usage"]
        assert str(usage["output_tokens"]) == whole.headers["X-Usage-Output-Tokens"]
        assert str(usage["input_tokens"]) == whole.headers["X-Usage-Input-Tokens"]

    copy_with_one_bit_changed(tmp_path / "changed")
    models = ("--model", f"same={vivavoce_voice.CHECKPOINT}", "--model", f"changed={tmp_path / 'changed'}")
    with client_of(tmp_path / "three", *caching, *models, "--load", "on-demand", "--default-seed", "3") as client:
        # The identity of a model is not known before it has been loaded.
        assert say(client, response_format="mp3").headers[STATE] == "bypass"
        hit = say(client, response_format="mp3")
        assert (hit.headers[STATE], hit.content) == ("hit", plain["mp3"])
        assert hit.headers["ETag"] == first.headers["ETag"]
        assert say(client, hit.headers["ETag"], response_format="mp3").status_code == 304
        assert say(client, voice="echo").headers[STATE] == "miss"
        assert say(client, response_format="mp3", model="changed").headers[STATE] == "bypass"
        other = say(client, hit.headers["ETag"], response_format="mp3", model="changed")
        assert (other.status_code, other.headers[STATE]) == (200, "miss")
