"""A transcript that is not of its recording is flagged or refused, on every route that takes one."""

import base64
import json
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from vivavoce_engine import Engine, EngineConfig, VoiceStore
from vivavoce_engine.config import RefTextCheck
from vivavoce_engine.fake_runner import FAKE_INFO, FakeRunner, fake_voices
from vivavoce_engine.voices.recognizer import Recognizer

from tests.support.cloning import BATCH, SPEECH, VOICES, as_base64, recording, refusal
from tests.support.live_server import LiveServer, live_server
from tests.support.live_socket import dial
from tests.support.waiting import HUNG_S

FITS, DOES_NOT = "What is said.", "la " * 100
"""The fake model takes 100 syllables in a second for a mismatch."""
AUDIO = as_base64(recording(0))
WARNING = "ref_text_mismatch: ref_text is most likely not what is said in the recording: their fit is -10.0"
HEADER = "x-vivavoce-warnings"
INFO = replace(FAKE_INFO, task="base")


def server_that(check: RefTextCheck, folder: Path) -> AbstractContextManager[LiveServer]:
    voices = fake_voices(VoiceStore(folder), INFO, check)
    return live_server(Engine(FakeRunner(INFO), EngineConfig(ref_text_check=check), voices))


@pytest.fixture
def flagging(tmp_path: Path) -> Iterator[LiveServer]:
    with server_that("flag", tmp_path) as running:
        yield running


@pytest.fixture
def refusing(tmp_path: Path) -> Iterator[LiveServer]:
    with server_that("refuse", tmp_path) as running:
        yield running


def post(server: LiveServer, ref_text: str, **fields: Any) -> httpx.Response:
    body = {"input": "Hello.", "ref_audio": AUDIO, "ref_text": ref_text, **fields}
    return httpx.post(server.url + SPEECH, json=body, timeout=HUNG_S)


def store(server: LiveServer, ref_text: str, name: str = "ada") -> httpx.Response:
    parts: dict[str, Any] = {"name": (None, name), "consent": (None, "I agree."), "ref_text": (None, ref_text)}
    parts["audio_sample"] = ("a.wav", base64.b64decode(AUDIO))
    return httpx.post(server.url + VOICES, files=parts, timeout=HUNG_S)


@pytest.mark.parametrize("fields", [{}, {"stream": True}, {"stream_format": "sse"}])
def test_an_answer_carries_the_warning(flagging: LiveServer, fields: dict[str, Any]) -> None:
    good, bad = (post(flagging, text, **fields) for text in (FITS, DOES_NOT))
    assert (good.status_code, bad.status_code) == (200, 200)
    assert HEADER not in good.headers
    (warning,) = json.loads(bad.headers[HEADER])
    assert warning.startswith(WARNING)


def test_the_warning_tells_what_a_recognizer_has_heard(tmp_path: Path) -> None:
    hears = Recognizer(lambda: lambda: lambda samples: "Déjà\r\nvu, he said.")
    voices = fake_voices(VoiceStore(tmp_path), INFO, recognizer=hears)
    with live_server(Engine(FakeRunner(INFO), EngineConfig(), voices)) as server:
        good, bad = (post(server, text) for text in ("déjà vu he said", "déjà"))
        (stored,) = store(server, "déjà", "bad").json()["warnings"]
        later = httpx.post(server.url + SPEECH, json={"input": "Hello.", "voice": "bad"}, timeout=HUNG_S)
    assert HEADER not in good.headers
    (warning,) = json.loads(bad.headers[HEADER])
    assert "a speech recognizer hears 'Déjà vu, he said.', where 75% of the words differ;" in warning
    assert stored == warning
    (warning,) = json.loads(later.headers[HEADER])
    assert "a speech recognizer found that 75% of the words differ;" in warning


def test_a_voice_without_its_recording_has_no_warning(flagging: LiveServer) -> None:
    assert HEADER not in post(flagging, DOES_NOT, x_vector_only_mode=True).headers


def test_an_item_of_a_batch_carries_the_warning(flagging: LiveServer) -> None:
    items = [{"input": "Hello.", "ref_text": text} for text in (FITS, DOES_NOT)]
    answer = httpx.post(flagging.url + BATCH, json={"items": items, "ref_audio": AUDIO}, timeout=HUNG_S)
    good, bad = (result["warnings"] for result in answer.json()["results"])
    assert good == []
    assert [text.startswith(WARNING) for text in bad] == [True]


async def test_a_live_session_carries_the_warning(flagging: LiveServer) -> None:
    async with dial(flagging) as socket:
        created = await socket.configure(voice=None, ref_audio=AUDIO, ref_text=DOES_NOT)
        await socket.say("Hello.")
        await socket.send("input.done")
        done = (await socket.utterance()).done
    warnings = done.get("warnings") or created.get("warnings")
    assert warnings is not None
    assert [text.startswith(WARNING) for text in warnings] == [True]


def test_a_stored_voice_carries_the_warning_from_then_on(flagging: LiveServer) -> None:
    assert "warnings" not in store(flagging, FITS, "good").json()
    (warning,) = store(flagging, DOES_NOT, "bad").json()["warnings"]
    assert warning.startswith(WARNING)
    for name, warns in (("good", False), ("bad", True)):
        answer = httpx.post(flagging.url + SPEECH, json={"input": "Hello.", "voice": name}, timeout=HUNG_S)
        assert answer.status_code == 200
        assert (HEADER in answer.headers) is warns


@pytest.mark.parametrize("fields", [{}, {"stream": True}, {"stream_format": "sse"}])
def test_a_request_is_refused(refusing: LiveServer, fields: dict[str, Any]) -> None:
    assert post(refusing, FITS, **fields).status_code == 200
    bad = post(refusing, DOES_NOT, **fields)
    assert refusal(bad)[:2] == (400, "ref_text")
    assert bad.json()["error"]["code"] == "ref_text_mismatch"


def test_an_item_of_a_batch_is_refused_alone(refusing: LiveServer) -> None:
    items = [{"input": "Hello.", "ref_text": text} for text in (FITS, DOES_NOT)]
    answer = httpx.post(refusing.url + BATCH, json={"items": items, "ref_audio": AUDIO}, timeout=HUNG_S)
    good, bad = answer.json()["results"]
    assert good["status"] == "success"
    assert (bad["status_code"], bad["error"]["code"]) == (400, "ref_text_mismatch")


async def test_a_live_session_is_refused(refusing: LiveServer) -> None:
    async with dial(refusing) as socket:
        await socket.send("session.config", ref_audio=AUDIO, ref_text=DOES_NOT)
        error = await socket.error()
    assert (error["param"], error["code"]) == ("ref_text", "ref_text_mismatch")


def test_a_voice_is_not_stored(refusing: LiveServer) -> None:
    bad = store(refusing, DOES_NOT)
    assert refusal(bad)[:2] == (400, "ref_text")
    assert bad.json()["error"]["code"] == "ref_text_mismatch"
    assert store(refusing, FITS).status_code == 200  # the name is free


def test_a_voice_that_was_stored_before_is_treated_as_the_setting_says(tmp_path: Path) -> None:
    with server_that("flag", tmp_path) as server:
        assert store(server, DOES_NOT, "bad").status_code == 200
    request = {"input": "Hello.", "voice": "bad"}
    with server_that("refuse", tmp_path) as server:
        bad = httpx.post(server.url + SPEECH, json=request, timeout=HUNG_S)
        assert refusal(bad)[:2] == (400, "voice")
        assert bad.json()["error"]["code"] == "ref_text_mismatch"
        by_elevenlabs = httpx.post(f"{server.url}/v1/text-to-speech/bad", json={"text": "Hello."}, timeout=HUNG_S)
        assert by_elevenlabs.status_code == 400
        embedding_alone = {**request, "x_vector_only_mode": True}
        assert httpx.post(server.url + SPEECH, json=embedding_alone, timeout=HUNG_S).status_code == 200
    with server_that("off", tmp_path) as server:
        answer = httpx.post(server.url + SPEECH, json=request, timeout=HUNG_S)
        assert (answer.status_code, answer.headers.get(HEADER)) == (200, None)
