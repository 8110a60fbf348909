"""/v1/audio/voice_consents, and voices that are stored with a consent or from a description, by OpenAI's own client."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from vivavoce_engine import ConsentStore, Engine, EngineConfig, VoiceStore
from vivavoce_engine.fake_runner import FAKE_INFO, FakeRunner, fake_voices
from vivavoce_server.designing import SCRIPT

from tests.support.cloning import SPEECH, VOICES, recording, refusal, storing_engine, storing_server
from tests.support.live_server import LiveServer, live_server

CONSENTS = "/v1/audio/voice_consents"
A_FILE = "Input should be a file: a part of multipart/form-data with a file name"
SPOKEN = ("a.wav", recording(0), "audio/wav")
DESIGN = replace(FAKE_INFO, task="voice_design", speakers=("",), speaker_infos={}, clones=False)
"""A model that designs its voice; the fake text frontend takes the name of its only speaker."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "voices"


@pytest.fixture
def server(folder: Path) -> Iterator[LiveServer]:
    with storing_server(folder, max_voices=5) as running:
        yield running


@pytest.fixture
def client(server: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client:
        yield client


def test_a_consent_is_stored_listed_renamed_and_deleted(client: openai.OpenAI, folder: Path) -> None:
    consents = client.audio.voice_consents
    made = consents.create(name="John Doe's", language="en-US", recording=SPOKEN)
    assert (made.name, made.language, made.object) == ("John Doe's", "en-US", "audio.voice_consent")
    assert (folder / f"{made.id}.consent").read_bytes().endswith(recording(0))
    assert consents.retrieve(made.id) == made
    renamed = consents.update(made.id, name="Jöhn")
    assert renamed == made.model_copy(update={"name": "Jöhn"})
    assert consents.retrieve(made.id) == renamed
    assert (folder / f"{made.id}.consent").read_bytes().endswith(recording(0))
    assert [consent.id for consent in consents.list()] == [made.id]
    deleted = consents.delete(made.id)
    assert (deleted.id, deleted.deleted, deleted.object) == (made.id, True, "audio.voice_consent")
    for again in (consents.retrieve, consents.delete, lambda id_: consents.update(id_, name="x")):
        with pytest.raises(openai.NotFoundError) as gone:
            again(made.id)
        assert gone.value.code == "consent_not_found"
    assert list(folder.iterdir()) == []


def test_pages_go_from_the_newest_to_the_oldest(client: openai.OpenAI, server: LiveServer, folder: Path) -> None:
    store = ConsentStore(folder, 100)
    ids = [store.add(f"number {number}", "en", b"audio").id for number in range(7)]
    assert [consent.id for consent in client.audio.voice_consents.list(limit=3)] == ids[::-1]
    page = httpx.get(f"{server.url}{CONSENTS}?limit=3&after={ids[5]}").json()
    assert [consent["id"] for consent in page["data"]] == ids[4:1:-1]
    expected = {"object": "list", "first_id": ids[4], "last_id": ids[2], "has_more": True}
    assert {name: page[name] for name in expected} == expected
    store.delete(ids[2])  # the page behind a consent that is gone is still the next one
    last = httpx.get(f"{server.url}{CONSENTS}?limit=2&after={ids[2]}").json()
    assert ([consent["id"] for consent in last["data"]], last["has_more"]) == ([ids[1], ids[0]], False)
    assert httpx.get(f"{server.url}{CONSENTS}?after={ids[0]}").json()["data"] == []


@pytest.mark.parametrize("query", ["limit=0", "limit=101", "limit=x", "after=" + "c" * 65])
def test_wrong_pages_are_named(server: LiveServer, query: str) -> None:
    status, param, _ = refusal(httpx.get(f"{server.url}{CONSENTS}?{query}"))
    assert (status, param) == (400, query.partition("=")[0])


BAD: list[tuple[dict[str, Any], bytes, str]] = [
    ({"name": ""}, recording(0), "name"),
    ({"name": " "}, recording(0), "name"),
    ({"name": "a" * 257}, recording(0), "name"),
    ({"language": "english please"}, recording(0), "language"),
    ({"language": ""}, recording(0), "language"),
    ({}, b"no audio", "recording"),
    ({}, b"", "recording"),
    ({}, recording(0)[: len(recording(0)) // 2], "recording"),
    ({"sped": "1"}, recording(0), "sped"),
]


@pytest.mark.parametrize(("fields", "audio", "param"), BAD)
def test_bad_consents_are_named(
    server: LiveServer, folder: Path, fields: dict[str, Any], audio: bytes, param: str
) -> None:
    data = {"name": "John", "language": "en-US", **fields}
    answer = httpx.post(server.url + CONSENTS, data=data, files={"recording": ("a.wav", audio)})
    assert refusal(answer)[:2] == (400, param)
    assert list(folder.iterdir()) == []


def test_a_consent_without_a_recording(server: LiveServer) -> None:
    for body in ({"json": {"name": "John", "language": "en"}}, {"data": {"name": "John", "language": "en"}}):
        assert refusal(httpx.post(server.url + CONSENTS, **body))[:2] == (400, "recording")  # type: ignore[arg-type]
    text = {"name": "John", "language": "en", "recording": "UklGRg=="}
    for as_text in ({"json": text}, {"data": text}):
        told = refusal(httpx.post(server.url + CONSENTS, **as_text))  # type: ignore[arg-type]
        assert told == (400, "recording", f"recording: {A_FILE}")
    status, param, message = refusal(httpx.post(server.url + CONSENTS, content=b"x"))
    assert (status, param) == (400, None)
    assert "multipart/form-data" in message


def test_there_are_at_most_as_many_consents_as_voices(server: LiveServer, folder: Path) -> None:
    store = ConsentStore(folder, 5)
    for _ in range(5):
        store.add("John", "en", b"audio")
    full = httpx.post(
        server.url + CONSENTS, data={"name": "John", "language": "en"}, files={"recording": ("a.wav", recording(0))}
    )
    assert (full.status_code, full.json()["error"]["code"]) == (409, "store_full")
    assert full.headers["x-should-retry"] == "false"


def test_what_is_no_consent_costs_itself_alone(client: openai.OpenAI, folder: Path) -> None:
    good = client.audio.voice_consents.create(name="John", language="en", recording=SPOKEN)
    for number, content in enumerate(
        (b"", b"{}\n", b'{"name":"\\ud800","language":"en","created_at_s":1}\n', b"\xff\n")
    ):
        (folder / f"cons_{number:024x}.consent").write_bytes(content)
    (folder / f"cons_{'f' * 24}.consent").mkdir()
    assert [consent.id for consent in client.audio.voice_consents.list()] == [good.id]
    for name in ("..", "cons_", "cons_%2e%2e", f"cons_{0:024x}"):
        assert httpx.get(f"{client.base_url}audio/voice_consents/{name}").status_code == 404


def test_a_voice_is_stored_with_a_consent_that_exists(client: openai.OpenAI, folder: Path) -> None:
    consent = client.audio.voice_consents.create(name="Ada", language="en-GB", recording=SPOKEN)
    voice = client.audio.voices.create(name="My new Voice", consent=consent.id, audio_sample=SPOKEN)
    assert (voice.id, voice.name, voice.type, voice.prompt) == ("my_new_voice", "My new Voice", "audio_sample", None)
    kept = VoiceStore(folder).get(voice.id)
    assert kept is not None
    assert kept.consent == f"{consent.id}: Ada (en-GB)"
    client.audio.voice_consents.delete(consent.id)
    for named in (voice.id, voice.name, {"id": voice.id}):
        spoken = client.audio.speech.create(model="tts-1", voice=named, input="Hi.")  # type: ignore[arg-type]
        assert spoken.response.status_code == 200
    with pytest.raises(openai.BadRequestError) as missing:
        client.audio.voices.create(name="other", consent=consent.id, audio_sample=SPOKEN)
    assert (missing.value.param, missing.value.code) == ("consent", "consent_not_found")
    with pytest.raises(openai.BadRequestError) as taken:
        client.audio.voices.create(name="my  new voice", consent="I agree.", audio_sample=SPOKEN)
    assert taken.value.param == "name"
    assert client.audio.voices.delete(voice.id).deleted


def test_a_voice_is_designed_from_a_description(folder: Path) -> None:
    store = VoiceStore(folder)
    design = Engine(FakeRunner(DESIGN), EngineConfig(), fake_voices(None, DESIGN))
    with (
        live_server({"base": storing_engine(store), "design": design}) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client,
    ):
        voice = client.audio.voices.create(name="Old Man", type="prompt", prompt="An old man.", model="auto")
        assert (voice.id, voice.name, voice.type, voice.prompt) == ("old_man", "Old Man", "prompt", "An old man.")
        asked = {"name": "young", "type": "prompt", "prompt": "Young.", "script_hint": "A script of this length."}
        made = httpx.post(server.url + VOICES, json={**asked, "model": "2026-10-08", "consent": None}).json()
        listed = {voice["id"]: voice for voice in httpx.get(server.url + VOICES).json()["voices"]}
        assert (listed["young"]["type"], listed["young"]["prompt"]) == (made["type"], made["prompt"])
        said = {voice.name: (voice.reference.text, voice.consent) for voice in store.all()}
        assert said == {"old_man": (SCRIPT, ""), "young": (asked["script_hint"], "")}
        spoken = httpx.post(server.url + SPEECH, json={"input": "Hi.", "voice": {"id": "young"}, "model": "base"})
        assert spoken.status_code == 200
        for fields, param in (
            ({"script_hint": "Hi."}, "script_hint"),
            ({"script_hint": " "}, "script_hint"),
            ({"script_hint": "..."}, "script_hint"),
            ({"script_hint": "word " * 200}, "script_hint"),
            ({"prompt": " "}, "prompt"),
            ({"prompt": None}, "prompt"),
            ({"consent": "I agree."}, "consent"),
            ({"voice": "heart"}, "voice"),
            ({"model": "base"}, "type"),
            ({"name": "young"}, "name"),
            ({"name": "a/b"}, "name"),
        ):
            status, named, message = refusal(httpx.post(server.url + VOICES, json={**asked, "name": "new", **fields}))
            assert (status, named) == (400, param), message
        assert sorted(store.names()) == ["old_man", "young"]


def test_a_server_that_cannot_design_says_what_would_work(server: LiveServer, folder: Path) -> None:
    asked = {"name": "young", "type": "prompt", "prompt": "Young."}
    answer = httpx.post(server.url + VOICES, json=asked)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "not_available")
    assert "VoiceDesign model beside a Base model" in answer.json()["error"]["message"]
    design = Engine(FakeRunner(DESIGN), EngineConfig(), fake_voices(VoiceStore(folder), DESIGN))
    with live_server(design) as alone:
        status, param, message = refusal(httpx.post(alone.url + VOICES, json=asked))
    assert (status, param) == (400, "type")
    assert "send the prompt as `instructions`" in message


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"json": {"name": "ada", "consent": "I agree."}}, "audio_sample", "Missing"),
        ({"json": ["ada"]}, None, "JSON object"),
        ({"json": {"name": "ada", "consent": "I agree.", "audio_sample": "UklGRg=="}}, "audio_sample", A_FILE),
        ({"data": {"name": "ada", "consent": "I agree.", "audio_sample": "UklGRg=="}}, "audio_sample", A_FILE),
        ({"json": {"name": "ada", "consent": "I agree.", "voice": "heart", "prompt": "x"}}, "prompt", "type"),
        ({"content": b"x"}, None, "without a type"),
        ({"content": b"x", "headers": {"Content-Type": "text/plain"}}, None, "'text/plain'; send multipart/form-data"),
        ({"content": b"x", "headers": {"Content-Type": "multipart/form-data"}}, None, "boundary"),
        ({"content": b"{", "headers": {"Content-Type": "application/json"}}, None, "not JSON"),
    ],
)
def test_bodies_that_are_no_voice(server: LiveServer, body: dict[str, Any], param: str | None, words: str) -> None:
    status, named, message = refusal(httpx.post(server.url + VOICES, **body))
    assert (status, named) == (400, param), message
    assert words in message


def test_a_voice_comes_as_json_too(server: LiveServer, folder: Path) -> None:
    body = {"name": "ada", "consent": "I agree.", "speaker_embedding": [0.5] * 8, "type": None, "ref_text": None}
    assert httpx.post(server.url + VOICES, json=body).status_code == 200
    assert VoiceStore(folder).names() == ["ada"]
