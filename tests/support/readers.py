"""Servers with a model of each kind of reading, and what they say of a text."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import httpx
from vivavoce_engine import Engine, EngineConfig, ReadableText
from vivavoce_engine.fake_runner import FAKE_INFO, FakeRunner, fake_voices
from vivavoce_server import ServerConfig

from tests.support.live_server import LiveServer, live_server

WORDS = replace(FAKE_INFO, name="words", text=ReadableText("words", "ascii", "names"))
"""A model that reads what the shipped voice reads."""
ANYTHING = replace(FAKE_INFO, name="anything", text=ReadableText("anything"))
MANY = replace(FAKE_INFO, name="many", languages=("auto", "english", "chinese", "german", "russian"))
MODELS = (FAKE_INFO, WORDS, ANYTHING, MANY)


@contextmanager
def reading_server(config: ServerConfig | None = None) -> Iterator[LiveServer]:
    """A server with the models of this module: fake (prose), words, anything, and many (of several languages)."""
    engines = {info.name: Engine(FakeRunner(info), EngineConfig(), fake_voices(info=info)) for info in MODELS}
    with live_server(engines, config) as server:
        yield server


def ask(server: LiveServer, text: str, model: str = "words", **fields: Any) -> httpx.Response:
    """The answer to a request for speech."""
    body = {"input": text, "model": model, "voice": "heart", "response_format": "pcm", **fields}
    return httpx.post(f"{server.url}/v1/audio/speech", json=body)


def answer_of(server: LiveServer, text: str, model: str = "words", **fields: Any) -> dict[str, Any]:
    """The answer to a request for the text that would be said."""
    response = ask(server, text, model, **{"return": "text", **fields})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer
