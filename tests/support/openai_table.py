"""The server for tests of OpenAI's clients, and what each of them is to be told, whatever its language."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from vivavoce_engine import Engine, EngineConfig, VoiceStore
from vivavoce_engine.fake_runner import FAKE_INFO, FakeRunner, fake_voices

from tests.support.live_server import LiveServer, live_server

TEXT = "Hello there."
PCM_BYTES = round(len(TEXT) * 0.08 * 24000) * 2
NOT_FOUND = {"name": "NotFoundError", "status": 404, "param": None}
TOLD: dict[str, Any] = {
    "model": "model",
    "unknownModel": {"name": "NotFoundError", "status": 404, "code": "model_not_found", "param": "model"},
    "words": [
        {"word": "Hello", "start": 0.0, "end": 0.4, "text_start": 0, "text_end": 5},
        {"word": "there", "start": 0.48, "end": 0.96, "text_start": 6, "text_end": 11},
    ],
    "wordsOfFile": [
        {"word": "Hello", "start_ms": 0, "end_ms": 400},
        {"word": "there", "start_ms": 480, "end_ms": 960},
    ],
    "nulls": PCM_BYTES,
    "ignored": "instructions",
    "events": ["event: speech.audio.delta", "event: speech.audio.done"],
    "unknownField": {"name": "BadRequestError", "status": 400, "code": "unknown_parameter", "param": "sped"},
    "consent": "audio.voice_consent",
    "renamed": "first",
    "retrieved": "first",
    "listed": ["three", "two", "first"],
    "voice": {"id": "my_voice", "name": "My voice", "object": "audio.voice", "type": "audio_sample"},
    "own": PCM_BYTES,
    "prompt": {"name": "BadRequestError", "status": 400, "code": "not_available", "param": "type"},
    "deletedVoice": {"object": "audio.voice.deleted", "id": "my_voice", "deleted": True},
    "deletedTwice": {**NOT_FOUND, "code": "voice_not_found"},
    "deletedConsent": {"object": "audio.voice_consent", "id": True, "deleted": True},
}
"""Answers that a client gets, in the order of its calls. In `deletedConsent`, the id is True if it is the right one."""


@contextmanager
def openai_server(folder: Path) -> Iterator[LiveServer]:
    """A server that clones and stores voices, whose model follows no instructions."""
    info = replace(FAKE_INFO, takes_instructions=False)
    with live_server(Engine(FakeRunner(info), EngineConfig(), fake_voices(VoiceStore(folder)))) as running:
        yield running
