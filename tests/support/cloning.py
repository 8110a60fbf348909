"""A server over a small random Base checkpoint, and requests for tests of voices."""

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch
from numpy.typing import NDArray
from vivavoce_engine import Engine, EngineConfig, VoiceStore
from vivavoce_engine.fake_runner import FakeRunner, fake_voices
from vivavoce_engine.load import load_engine
from vivavoce_server import ServerConfig

from tests.support.live_server import LiveServer, live_server
from tests.support.recordings import voice_like, wav
from tests.support.waiting import HUNG_S

TEXT = "Hello, world!"
SPEECH, VOICES, BATCH = "/v1/audio/speech", "/v1/audio/voices", "/v1/audio/speech/batch"
REF_TEXT = "The lazy dog"
SIZE = 64
"""Size of the checkpoint's speaker embeddings."""
OPTIONS: dict[str, Any] = {"response_format": "pcm", "seed": 7, "max_new_tokens": 8}
"""Options of a short and repeatable request."""


def recording(number: int) -> bytes:
    return wav(voice_like(number, 1.1 + 0.1 * number))


def as_base64(audio: bytes) -> str:
    return base64.b64encode(audio).decode()


def base_engine(checkpoint: Path, store: VoiceStore | None = None) -> Engine:
    torch.set_num_threads(1)  # tiny matrices are slower on several
    config = EngineConfig(max_streams=4, max_context=256, device="cpu", dtype="float32")
    return load_engine(str(checkpoint), config, "base", store)


def storing_engine(store: VoiceStore) -> Engine:
    """A fake engine whose voices are stored."""
    return Engine(FakeRunner(), EngineConfig(), fake_voices(store))


@contextmanager
def storing_server(folder: Path, config: ServerConfig | None = None, max_voices: int = 1000) -> Iterator[LiveServer]:
    with live_server(storing_engine(VoiceStore(folder, max_voices)), config) as running:
        yield running


def say(server: LiveServer, **fields: Any) -> NDArray[np.int16]:
    return samples(httpx.post(server.url + SPEECH, json={"input": TEXT, **OPTIONS, **fields}, timeout=HUNG_S))


def samples(response: httpx.Response) -> NDArray[np.int16]:
    assert response.status_code == 200, response.text
    return np.frombuffer(response.content, "<i2")


def refusal(response: httpx.Response) -> tuple[int, str | None, str]:
    error = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return response.status_code, error["param"], error["message"]
