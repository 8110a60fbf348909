"""The package `openai`, and curl as OpenAI's documents show it: every call of the server, once."""

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.support.live_server import LiveServer
from tests.support.openai_table import PCM_BYTES, TEXT, TOLD, openai_server
from tests.support.programs import needs, path_of
from tests.support.recordings import voice_like, wav

SPEECH: dict[str, Any] = {"model": "gpt-4o-mini-tts", "voice": "ash", "input": TEXT, "response_format": "pcm"}
FAST_BYTES = pytest.approx(PCM_BYTES / 2, abs=4800)
"""Speech at twice the speed, whose end is not exact."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    with openai_server(tmp_path / "voices") as running:
        yield running


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "a.wav"
    path.write_bytes(wav(voice_like(0, 1.5)))
    return path


def refusal(call: Callable[[], object]) -> dict[str, Any]:
    with pytest.raises(openai.APIStatusError) as refused:
        call()
    error = refused.value
    return {"name": type(error).__name__, "status": error.status_code, "code": error.code, "param": error.param}


def test_the_python_package(server: LiveServer, recording: Path) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client:
        told = {**models_of(client), **speech_of(client), **voices_of(client, recording)}
    assert told.pop("deletedModel")["status"] == 405
    assert told.pop("fast") == FAST_BYTES
    assert told == TOLD


def models_of(client: openai.OpenAI) -> dict[str, Any]:
    return {
        "model": client.models.retrieve("gpt-4o-mini-tts-2025-12-15").object,
        "unknownModel": refusal(lambda: client.models.retrieve("gpt-5")),
        "deletedModel": refusal(lambda: client.models.delete("tts-1")),
    }


def speech_of(client: openai.OpenAI) -> dict[str, Any]:
    create = client.audio.speech.create
    nulls: dict[str, Any] = {"instructions": None, "speed": None, "stream_format": None}
    styled = create(**SPEECH, instructions="Speak calmly.").response
    events = create(**SPEECH, stream_format="sse").text
    timed = create(**SPEECH, stream_format="sse", extra_body={"word_timestamps": True}).text
    whole = create(**SPEECH, extra_body={"word_timestamps": True, "stream": False}).response
    return {
        "words": json.loads(timed.splitlines()[-2].removeprefix("data: "))["words"],
        "wordsOfFile": json.loads(whole.headers["x-word-timestamps"]),
        "nulls": len(create(**SPEECH, **nulls).content),
        "ignored": styled.headers["x-vivavoce-ignored"],
        "fast": len(create(**SPEECH, speed=2).content),
        "events": list(dict.fromkeys(re.findall(r"^event: \S*", events, re.MULTILINE))),
        "unknownField": refusal(lambda: create(**SPEECH, extra_body={"sped": 1})),
    }


def voices_of(client: openai.OpenAI, recording: Path) -> dict[str, Any]:
    consents, voices = client.audio.voice_consents, client.audio.voices
    made = [consents.create(name=name, language="en-US", recording=recording) for name in ("one", "two", "three")]
    first = made[0].id
    told: dict[str, Any] = {
        "consent": made[0].object,
        "renamed": consents.update(first, name="first").name,
        "retrieved": consents.retrieve(first).name,
        "listed": [consent.name for consent in consents.list(limit=2)],
    }
    voice = voices.create(name="My voice", consent=first, audio_sample=recording)
    told["voice"] = {"id": voice.id, "name": voice.name, "object": voice.object, "type": voice.type}
    told["own"] = len(client.audio.speech.create(**{**SPEECH, "voice": {"id": voice.id}}).content)
    told["prompt"] = refusal(
        lambda: voices.create(name="other", type="prompt", prompt="An old man.", model="auto", script_hint="A script.")
    )
    told["deletedVoice"] = voices.delete(voice.id).model_dump()
    told["deletedTwice"] = refusal(lambda: voices.delete(voice.id))
    deleted = [consents.delete(consent.id) for consent in made]
    told["deletedConsent"] = {**deleted[-1].model_dump(), "id": deleted[-1].id == made[-1].id}
    return told


@needs("curl")
def test_curl(server: LiveServer, recording: Path) -> None:
    def call(path: str, *options: str) -> bytes:
        command = [path_of("curl"), "-sS", f"{server.url}/v1{path}", "-H", "Authorization: Bearer unused", *options]
        return subprocess.run(command, check=True, timeout=120, capture_output=True).stdout

    def tell(path: str, *options: str) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(call(path, *options))
        return told

    def speak(*options: str, **fields: object) -> bytes:
        body = json.dumps({**SPEECH, **fields})
        return call("/audio/speech", "-H", "Content-Type: application/json", "-d", body, *options)

    assert tell("/models")["data"][0]["id"] == tell("/models/tts-1-hd")["id"] == "fake"
    assert tell("/models/gpt-5")["error"]["code"] == "model_not_found"
    assert len(speak()) == len(speak(speed=None, instructions=None)) == PCM_BYTES
    assert len(speak(speed=2)) == FAST_BYTES
    head = speak("-o", "/dev/null", "-D", "-", instructions="Speak calmly.").lower()
    assert b"\r\nx-vivavoce-ignored: instructions\r\n" in head
    assert b"\r\ncontent-type: audio/pcm\r\n" in head
    assert set(re.findall(rb"^event: \S*", speak(stream_format="sse"), re.MULTILINE)) == {
        event.encode() for event in TOLD["events"]
    }
    without_type = call("/audio/speech", "-d", json.dumps(SPEECH))
    assert b"Content-Type: application/json" in without_type
    form = ("-F", "name=one", "-F", "language=en-US", "-F", f"recording=@{recording};type=audio/x-wav")
    consent = tell("/audio/voice_consents", *form)
    assert consent["object"] == TOLD["consent"]
    renaming = ("-H", "Content-Type: application/json", "-d", '{"name": "first"}')
    assert tell(f"/audio/voice_consents/{consent['id']}", *renaming)["name"] == "first"
    assert tell("/audio/voice_consents?limit=1")["data"] == [{**consent, "name": "first"}]
    sample = ("-F", "name=My voice", "-F", f"consent={consent['id']}", "-F", f"audio_sample=@{recording}")
    voice = tell("/audio/voices", *sample)
    assert {**voice, "created_at": None} == {**TOLD["voice"], "created_at": None}
    assert len(speak(voice={"id": voice["id"]})) == PCM_BYTES
    assert tell(f"/audio/voices/{voice['id']}", "-X", "DELETE") == TOLD["deletedVoice"]
    assert tell(f"/audio/voice_consents/{consent['id']}", "-X", "DELETE")["deleted"]
