"""POST, GET and DELETE /v1/audio/voices: stored voices have names, survive a restart, and reach other servers."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from numpy.typing import NDArray
from pydantic import SecretStr
from vivavoce_engine import VoiceStore
from vivavoce_engine.fake_runner import EMBEDDING_SIZE
from vivavoce_server import ServerConfig
from vivavoce_server.forms import MAX_PARTS

from tests.support.cloning import (
    REF_TEXT,
    SPEECH,
    VOICES,
    as_base64,
    base_engine,
    recording,
    refusal,
    say,
    storing_engine,
    storing_server,
)
from tests.support.live_server import LiveServer, live_server
from tests.support.recordings import voice_like, wav
from tests.support.speaking import assert_other_samples, assert_same_samples
from tests.support.waiting import HUNG_S

CONSENT = "I, Ada, agree that my voice is cloned."
EMBEDDING = json.dumps([0.5] * EMBEDDING_SIZE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "voices"


@pytest.fixture
def server(folder: Path) -> Iterator[LiveServer]:
    with storing_server(folder) as running:
        yield running


def add(server: LiveServer, audio: bytes | None = None, **fields: Any) -> httpx.Response:
    """Multipart, whether there is a recording or not. A field that is None is left out."""
    given = {"name": "ada", "consent": CONSENT, **fields}
    parts: dict[str, Any] = {name: (None, value) for name, value in given.items() if value is not None}
    if audio is not None:
        parts["audio_sample"] = ("a.wav", audio)
    return httpx.post(server.url + VOICES, files=parts, timeout=HUNG_S)


def stored_names(server: LiveServer) -> list[str]:
    voices = httpx.get(server.url + VOICES).json()["voices"]
    return [voice["id"] for voice in voices if voice["created_at"] is not None]


def test_openais_client_stores_a_voice_and_speaks_with_it_after_a_restart(base_checkpoint: Path, folder: Path) -> None:
    spoken: list[NDArray[np.int16]] = []
    with (
        live_server(base_engine(base_checkpoint, VoiceStore(folder))) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client,
    ):
        made = client.audio.voices.create(
            name="Ada", consent=CONSENT, audio_sample=("a.wav", recording(0)), extra_body={"ref_text": REF_TEXT}
        )
        assert (made.id, made.name, made.object, made.type) == ("ada", "Ada", "audio.voice", "audio_sample")
        spoken.append(say(server, voice={"id": made.id}))
        spoken.append(say(server, ref_audio=as_base64(recording(0)), ref_text=REF_TEXT))
        by_embedding = say(server, voice="ada", x_vector_only_mode=True)
        assert_same_samples(by_embedding, say(server, ref_audio=as_base64(recording(0))))
        body = {"input": "Hello.", "voice": "ada", "ref_audio": as_base64(recording(0))}
        assert refusal(httpx.post(server.url + SPEECH, json=body))[:2] == (400, "voice")
    with (
        live_server(base_engine(base_checkpoint, VoiceStore(folder))) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client,
    ):
        (listed,) = httpx.get(server.url + VOICES).json()["voices"]
        expected = {"object": "audio.voice", "id": "ada", "name": "Ada", "model": "base", "aliases": []}
        assert {name: listed[name] for name in expected} == expected
        assert listed["created_at"] == made.created_at
        assert [listed[name] for name in ("sex", "accent", "language", "description")] == [None] * 4
        assert {"chinese", "english"} < set(listed["languages"])
        spoken.append(say(server, voice="ADA"))
        deleted = client.audio.voices.delete("ada")
        assert (deleted.id, deleted.deleted, deleted.object) == ("ada", True, "audio.voice.deleted")
        status, param, _ = refusal(httpx.post(server.url + SPEECH, json={"input": "Hello.", "voice": "ada"}))
        assert (status, param) == (400, "voice")
    for again in spoken[1:]:
        assert_same_samples(again, spoken[0])
    assert_other_samples(by_embedding, spoken[0])


def test_two_servers_with_one_folder_see_each_others_voices(folder: Path) -> None:
    with storing_server(folder) as one, storing_server(folder) as other:
        assert add(one, recording(0)).status_code == 200
        assert add(other, recording(1), name="bob").status_code == 200
        assert stored_names(one) == stored_names(other) == ["ada", "bob"]
        assert refusal(add(other, recording(1)))[:2] == (400, "name")
        assert httpx.delete(f"{other.url}{VOICES}/ada").status_code == 200
        assert stored_names(one) == ["bob"]
        assert httpx.delete(f"{one.url}{VOICES}/ada").status_code == 404


def test_an_embedding_and_a_mix_are_stored(server: LiveServer, folder: Path) -> None:
    weighted = [{"embedding": [3.0] * EMBEDDING_SIZE, "weight": 3}, {"embedding": [1.0] * EMBEDDING_SIZE}]
    assert add(server, name="one", speaker_embedding=EMBEDDING).status_code == 200
    assert add(server, name="two", speaker_embedding=json.dumps(weighted)).status_code == 200
    assert add(server, name="three", voice="heart(3)+one(1)").status_code == 200
    store = VoiceStore(folder)
    found = {voice.name: voice.reference.embedding.tolist() for voice in store.all()}
    assert found == {
        "one": [0.5] * EMBEDDING_SIZE,
        "two": [2.5] * EMBEDDING_SIZE,
        "three": [0.875] * EMBEDDING_SIZE,  # heart is 1
    }
    assert {voice.consent for voice in store.all()} == {CONSENT}


def test_the_model_that_can_take_a_voice_takes_it(base_checkpoint: Path, folder: Path) -> None:
    store = VoiceStore(folder)
    with live_server({"fake": storing_engine(store), "base": base_engine(base_checkpoint, store)}) as server:
        assert add(server, name="small", speaker_embedding=EMBEDDING, model="auto").status_code == 200
        assert add(server, name="large", speaker_embedding=json.dumps([0.5] * 64)).status_code == 200
        assert add(server, recording(0), name="chosen", model="base").status_code == 200
        voices = {voice["id"]: voice["model"] for voice in httpx.get(server.url + VOICES).json()["voices"]}
        assert voices == {"heart": "fake", "michael": "fake", "chosen": "base", "large": "base", "small": "fake"}
        body = {"input": "Hello.", "voice": "large"}
        status, param, message = refusal(httpx.post(server.url + SPEECH, json=body))
        assert (status, param) == (400, "voice")
        assert "embeddings of 64; this one's have 8" in message


BAD: list[tuple[bytes | None, dict[str, Any], str, str]] = [
    (recording(0), {"name": None}, "name", "Missing"),
    (recording(0), {"name": ""}, "name", ""),
    (recording(0), {"name": "../ada"}, "name", "letters a-z"),
    (recording(0), {"name": "a/b"}, "name", "letters a-z"),
    (recording(0), {"name": "a" * 65}, "name", "letters a-z"),
    (recording(0), {"name": "_ada"}, "name", "letters a-z"),
    (recording(0), {"name": "adä"}, "name", "letters a-z"),
    (recording(0), {"name": " Heart "}, "name", "speaker 'heart' already"),
    (recording(0), {"consent": None}, "consent", "Missing"),
    (recording(0), {"consent": " "}, "consent", "consent"),
    (recording(0), {"consent": "x" * 5000}, "consent", "5000 characters"),
    (recording(0), {"ref_text": "x" * 5000}, "ref_text", "5000 characters"),
    (recording(0), {"sex": "f"}, "sex", "Unknown field"),
    (recording(0), {"type": "prompt"}, "audio_sample", "in words"),
    (recording(0), {"type": "video"}, "type", "'audio_sample' or 'prompt'"),
    (recording(0), {"speaker_embedding": EMBEDDING}, "speaker_embedding", "several voices"),
    (recording(0), {"voice": "heart"}, "voice", "several voices"),
    (None, {}, "audio_sample", "Missing"),
    (None, {"audio_sample": "text"}, "audio_sample", ""),
    (b"", {}, "audio_sample", ""),
    (b"no audio at all", {}, "audio_sample", "no audio file"),
    (wav(voice_like(0, 0.5)), {}, "audio_sample", "at least 1 s"),
    (wav(voice_like(0, 31)), {}, "audio_sample", "longer than 30 s"),
    (wav(np.zeros(48000)), {}, "audio_sample", "silent"),
    (bytes(10 * 2**20 + 1), {}, "audio_sample", "larger than 10 MiB"),
    (None, {"speaker_embedding": EMBEDDING, "ref_text": REF_TEXT}, "ref_text", "missing"),
    (None, {"speaker_embedding": "[1, 2"}, "speaker_embedding", "JSON"),
    (None, {"speaker_embedding": "[]"}, "speaker_embedding", "list of numbers"),
    (None, {"speaker_embedding": "[1, 2]"}, "speaker_embedding", "takes 8 values, not 2"),
    (None, {"speaker_embedding": EMBEDDING.replace("0.5", "NaN")}, "speaker_embedding", "finite"),
    (None, {"speaker_embedding": EMBEDDING.replace("0.5", "1e300")}, "speaker_embedding", "finite"),
    (None, {"speaker_embedding": EMBEDDING.replace("0.5", "5000")}, "speaker_embedding", "between"),
    (None, {"voice": "nobody"}, "voice", "there is no voice 'nobody'"),
    (None, {"voice": "heart(0)"}, "voice", "a weight of a mix is from"),
]


@pytest.mark.parametrize(("audio", "fields", "param", "words"), BAD)
def test_bad_uploads(server: LiveServer, audio: bytes | None, fields: dict[str, Any], param: str, words: str) -> None:
    status, named, message = refusal(add(server, audio, **fields))
    assert (status, named) == (400, param), message
    assert words in message
    assert stored_names(server) == []


@pytest.mark.parametrize("twice", ["audio_sample", "consent", "name", "sex"])
def test_a_field_that_comes_twice_is_refused(server: LiveServer, twice: str) -> None:
    parts: list[tuple[str, Any]] = [("name", (None, "ada")), ("consent", (None, CONSENT))]
    parts.append(("audio_sample", ("a.wav", recording(0))))
    one_more = ("b.wav", recording(1)) if twice == "audio_sample" else (None, "bob")
    parts += [(twice, one_more)] * (2 if twice == "sex" else 1)
    status, param, message = refusal(httpx.post(server.url + VOICES, files=parts, timeout=HUNG_S))
    assert (status, param) == (400, twice)
    assert "twice" in message
    assert stored_names(server) == []


@pytest.mark.parametrize("what", ["field", "file"])
def test_a_form_of_many_parts_is_refused(server: LiveServer, what: str) -> None:
    parts: list[tuple[str, Any]] = [("name", (None, "ada")), ("consent", (None, CONSENT))]
    parts += [(f"part{number}", ("a.wav", b"") if what == "file" else (None, "")) for number in range(MAX_PARTS + 1)]
    status, _, message = refusal(httpx.post(server.url + VOICES, files=parts, timeout=HUNG_S))
    assert (status, message) == (400, f"Too many {what}s. Maximum number of {what}s is {MAX_PARTS}.")


def test_half_a_recording_is_refused(server: LiveServer) -> None:
    whole = wav(voice_like(0, 6.0))
    status, param, message = refusal(add(server, whole[: len(whole) // 2]))
    assert (status, param) == (400, "audio_sample")
    assert "ends after 3.0 s, but its header says 6.0 s" in message


def test_a_model_that_is_not_there(server: LiveServer) -> None:
    assert refusal(add(server, recording(0), model="x"))[:2] == (404, "model")


@pytest.mark.parametrize("name", ["nobody", "heart", "..%2Fada", "%2e%2e", "a%00b"])
def test_only_stored_voices_are_deleted(server: LiveServer, folder: Path, name: str) -> None:
    (folder.parent / "ada.safetensors").touch()
    assert httpx.delete(f"{server.url}{VOICES}/{name}").status_code in (404, 405)
    assert (folder.parent / "ada.safetensors").exists()


def test_a_full_folder_is_a_409_that_is_not_tried_again(folder: Path) -> None:
    with storing_server(folder, max_voices=1) as server:
        assert add(server, recording(0)).status_code == 200
        response = add(server, recording(0), name="bob")
        assert refusal(response)[0] == 409
        assert response.json()["error"]["code"] == "store_full"
        assert response.headers["x-should-retry"] == "false"
        assert httpx.delete(f"{server.url}{VOICES}/ada").status_code == 200
        assert add(server, recording(0), name="bob").status_code == 200


def test_a_server_without_a_folder_says_so(base_checkpoint: Path) -> None:
    with live_server(base_engine(base_checkpoint)) as server:
        assert "stores no voices" in refusal(add(server, recording(0)))[2]
        assert httpx.delete(f"{server.url}{VOICES}/ada").status_code == 404


def test_keys_and_limits_hold_here_too(folder: Path) -> None:
    config = ServerConfig(api_keys=(SecretStr("k"),), key_requests_per_minute=1, max_body_bytes=10_000)
    with storing_server(folder, config) as server:
        url, key = server.url + VOICES, {"Authorization": "Bearer k"}
        form = {"name": "ada", "consent": CONSENT, "speaker_embedding": EMBEDDING}
        assert httpx.get(url).status_code == httpx.delete(f"{url}/ada").status_code == 401
        assert httpx.post(url, data=form).status_code == 401
        large = {"audio_sample": recording(0)}
        assert httpx.post(url, data=form, files=large, headers=key).status_code == 413
        assert httpx.post(url, data=form, headers=key).status_code == 200
        assert httpx.post(url, data={**form, "name": "bob"}, headers=key).status_code == 429
        assert stored_names_of(httpx.get(url, headers=key)) == ["ada"]


def stored_names_of(response: httpx.Response) -> list[str]:
    return [voice["id"] for voice in response.json()["voices"] if voice["created_at"] is not None]


def test_speech_goes_on_while_a_recording_is_encoded(server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    encoding, release = threading.Event(), threading.Event()
    clone = server.engine.voices.clone

    def slow_clone(audio: bytes, text: str = "") -> Any:
        encoding.set()
        assert release.wait(HUNG_S)
        return clone(audio, text)

    monkeypatch.setattr(server.engine.voices, "clone", slow_clone)
    uploads = [threading.Thread(target=add, args=(server, recording(n)), kwargs={"name": f"v{n}"}) for n in range(8)]
    for upload in uploads:
        upload.start()
    assert encoding.wait(HUNG_S)
    assert len(say(server, voice="heart")) > 0
    assert stored_names(server) == []
    release.set()
    for upload in uploads:
        upload.join()
    assert stored_names(server) == [f"v{n}" for n in range(8)]
