"""Voices sent with requests: every form, by every route, and every error."""

import asyncio
import base64
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from numpy.typing import NDArray
from pydantic import SecretStr
from vivavoce_engine import Engine, EngineConfig, SpeechEngine, VoiceReference
from vivavoce_engine.fake_runner import FAKE_INFO, FakeRunner
from vivavoce_server import ServerConfig

from tests.server.test_ref_audio_urls import file_server
from tests.support.cloning import (
    BATCH,
    OPTIONS,
    REF_TEXT,
    SIZE,
    SPEECH,
    TEXT,
    as_base64,
    base_engine,
    recording,
    refusal,
    say,
)
from tests.support.live_server import LiveServer, ask_and_leave, live_server
from tests.support.live_socket import dial
from tests.support.recordings import voice_like, wav
from tests.support.speaking import assert_other_samples, assert_same_samples
from tests.support.waiting import HUNG_S, wait_until

AUDIO = as_base64(recording(0))


@pytest.fixture(scope="module")
def server(base_checkpoint: Path) -> Iterator[LiveServer]:
    with live_server(base_engine(base_checkpoint)) as running:
        yield running


@pytest.fixture(scope="module")
def in_context(server: LiveServer) -> NDArray[np.int16]:
    return say(server, ref_audio=AUDIO, ref_text=REF_TEXT)


@pytest.fixture(scope="module")
def by_embedding(server: LiveServer) -> NDArray[np.int16]:
    return say(server, ref_audio=AUDIO)


def test_the_ways_to_send_a_recording(server: LiveServer, in_context: NDArray[np.int16]) -> None:
    assert_same_samples(say(server, ref_audio=f"data:audio/wav;base64,{AUDIO}", ref_text=REF_TEXT), in_context)
    assert_same_samples(say(server, ref_audio=AUDIO, ref_text=REF_TEXT, task_type="Base", voice="alloy"), in_context)
    assert_same_samples(say(server, ref_audio=AUDIO, ref_text=REF_TEXT, voice={"id": "vivian"}), in_context)


def test_a_recording_from_an_allowed_host(base_checkpoint: Path, in_context: NDArray[np.int16]) -> None:
    with file_server(recording(0)) as (port, asked):
        config = ServerConfig(ref_audio_hosts=(f"127.0.0.1:{port}",))
        with live_server(base_engine(base_checkpoint), config) as server:
            url = f"http://127.0.0.1:{port}"
            assert_same_samples(say(server, ref_audio=f"{url}/file", ref_text=REF_TEXT), in_context)
            body = {"input": TEXT, "ref_audio": f"{url}/nothing"}
            status, param, message = refusal(httpx.post(server.url + SPEECH, json=body))
    assert (status, param, message) == (400, "ref_audio", "The reference audio could not be fetched: status 404")
    assert [path for path, _ in asked] == ["/file", "/nothing"]


def test_the_text_of_a_recording_decides_how_it_is_used(
    server: LiveServer, in_context: NDArray[np.int16], by_embedding: NDArray[np.int16]
) -> None:
    assert_other_samples(by_embedding, in_context)
    assert_same_samples(say(server, ref_audio=AUDIO, ref_text=REF_TEXT, x_vector_only_mode=True), by_embedding)
    assert_same_samples(say(server, ref_audio=AUDIO, ref_text=REF_TEXT, x_vector_only_mode=False), in_context)
    assert_other_samples(say(server, ref_audio=AUDIO, ref_text="It's fine"), in_context)


def test_clones_read_the_text_while_they_speak_unless_told_otherwise(
    server: LiveServer, by_embedding: NDArray[np.int16]
) -> None:
    assert_same_samples(say(server, ref_audio=AUDIO, non_streaming_mode=False), by_embedding)
    assert_other_samples(say(server, ref_audio=AUDIO, non_streaming_mode=True), by_embedding)


def test_an_embedding_is_a_voice(server: LiveServer, by_embedding: NDArray[np.int16]) -> None:
    first, second = (server.engine.voices.clone(recording(number)).embedding.tolist() for number in (0, 1))
    assert_same_samples(say(server, speaker_embedding=first), by_embedding)
    mixed = say(server, speaker_embedding=[{"embedding": first}, {"embedding": second, "weight": 3}])
    assert_same_samples(
        mixed, say(server, speaker_embedding=(0.25 * np.array(first) + 0.75 * np.array(second)).tolist())
    )
    assert_other_samples(mixed, by_embedding)


async def test_four_at_once_say_what_each_says_alone(server: LiveServer) -> None:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client:

        async def clone(number: int) -> NDArray[np.int16]:
            extra = {**OPTIONS, "ref_audio": as_base64(recording(number)), "ref_text": REF_TEXT, "seed": number}
            speech = await client.audio.speech.create(model="tts-1", voice="alloy", input=TEXT, extra_body=extra)
            return np.frombuffer(speech.content, "<i2")

        alone = [await clone(number) for number in range(4)]
        together = await asyncio.gather(*(clone(number) for number in range(4)))
    for number in range(4):
        assert_same_samples(together[number], alone[number])
        assert_other_samples(alone[number], alone[number - 1])


def test_a_batch_that_shares_a_recording_encodes_it_once(
    server: LiveServer, in_context: NDArray[np.int16], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[bytes] = []
    clone = server.engine.voices.clone

    def counted(audio: bytes, text: str = "") -> VoiceReference:
        calls.append(audio)
        return clone(audio, text)

    monkeypatch.setattr(server.engine.voices, "clone", counted)
    items: list[dict[str, Any]] = [{"input": TEXT}, {"input": TEXT}, {"input": TEXT, "ref_audio": "AAAA"}]
    body = {"items": items, **OPTIONS, "ref_audio": AUDIO, "ref_text": REF_TEXT}
    first, second, third = httpx.post(server.url + BATCH, json=body, timeout=HUNG_S).json()["results"]
    for result in (first, second):
        assert_same_samples(np.frombuffer(base64.b64decode(result["audio_data"]), "<i2"), in_context)
    assert (third["status_code"], third["error"]["param"]) == (400, "ref_audio")
    assert len(calls) == 2


async def test_live_text_in_a_cloned_voice(server: LiveServer) -> None:
    async def speak(**fields: Any) -> NDArray[np.int16]:
        async with dial(server) as socket:
            await socket.configure(voice=None, max_new_tokens=8, **fields)
            await socket.say("Hello, ", "world! The quick brown fox jumps over the lazy dog.")
            await socket.send("input.done")
            return np.frombuffer((await socket.utterance()).audio, "<i2")

    first = await speak(ref_audio=AUDIO)
    assert len(first) == 8 * 1920
    assert_same_samples(await speak(ref_audio=AUDIO), first)
    assert_other_samples(await speak(ref_audio=as_base64(recording(1))), first)


async def test_a_bad_reference_leaves_a_live_session_as_it_was(server: LiveServer) -> None:
    async with dial(server) as socket:
        await socket.configure(voice=None, ref_audio=AUDIO, max_new_tokens=4)
        await socket.send("session.config", ref_audio="AAAA")
        assert (await socket.error())["param"] == "ref_audio"
        await socket.say("Hello, world! The quick brown fox.")
        await socket.send("input.done")
        assert len((await socket.utterance()).audio) == 4 * 1920 * 2


class SlowClone:
    """Stands in for an engine's `clone`: begins, and goes on when it is told to."""

    def __init__(self, engine: SpeechEngine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        self._clone = engine.voices.clone
        monkeypatch.setattr(engine.voices, "clone", self)

    def __call__(self, audio: bytes, text: str = "") -> VoiceReference:
        self.begun.set()
        assert self.go_on.wait(HUNG_S)
        return self._clone(audio, text)


def test_who_leaves_while_the_recording_is_encoded_frees_everything(
    server: LiveServer, monkeypatch: pytest.MonkeyPatch, by_embedding: NDArray[np.int16]
) -> None:
    slow = SlowClone(server.engine, monkeypatch)
    ask_and_leave(server, SPEECH, {"input": TEXT, "ref_audio": AUDIO}, slow.begun.is_set)
    wait_until(lambda: server.service.speaking == 0)
    slow.go_on.set()
    assert_same_samples(say(server, ref_audio=AUDIO), by_embedding)
    page = httpx.get(f"{server.url}/metrics").text
    assert 'vivavoce_requests_total{model="base",outcome="disconnected"} 1.0' in page


def test_encoding_counts_against_a_keys_limit(base_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = ServerConfig(api_keys=(SecretStr("k"),), key_max_concurrent=1)
    with live_server(base_engine(base_checkpoint), config) as server, ThreadPoolExecutor() as threads:
        slow = SlowClone(server.engine, monkeypatch)
        headers = {"Authorization": "Bearer k"}
        body = {"input": TEXT, **OPTIONS, "ref_audio": AUDIO}
        first = threads.submit(httpx.post, server.url + SPEECH, json=body, headers=headers, timeout=HUNG_S)
        wait_until(slow.begun.is_set)
        refused = httpx.post(server.url + SPEECH, json=body, headers=headers)
        slow.go_on.set()
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        assert first.result().status_code == 200


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({}, "voice", "Missing"),
    ({"voice": "nobody"}, "voice", "there is no voice 'nobody'"),
    ({"voice": ""}, "voice", ""),
    ({"voice": "alloy"}, "voice", "no preset speakers"),
    ({"voice": "a(2)+b(1)"}, "voice", "there is no voice 'a'"),
    ({"voice": "a(0)+b(1)"}, "voice", "a weight of a mix is from"),
    ({"ref_audio": ""}, "ref_audio", "base64"),
    ({"ref_audio": "not base64"}, "ref_audio", "base64"),
    ({"ref_audio": "data:audio/wav,AAAA"}, "ref_audio", "base64"),
    ({"ref_audio": "data:audio/wav;base64"}, "ref_audio", "base64"),
    ({"ref_audio": "file:///etc/passwd"}, "ref_audio", "base64"),
    ({"ref_audio": "ä"}, "ref_audio", "base64"),
    ({"ref_audio": 5}, "ref_audio", "string"),
    ({"ref_audio": as_base64(b"no audio at all")}, "ref_audio", "no audio file"),
    ({"ref_audio": as_base64(wav(voice_like(0, 0.5)))}, "ref_audio", "at least 1 s"),
    ({"ref_audio": as_base64(wav(voice_like(0, 31)))}, "ref_audio", "longer than 30 s"),
    ({"ref_audio": as_base64(wav(np.zeros(48000)))}, "ref_audio", "silent"),
    ({"ref_audio": as_base64(bytes(10 * 2**20 + 1))}, "ref_audio", "larger than 10 MiB"),
    ({"ref_audio": "http://127.0.0.1/x.wav"}, "ref_audio", "may not fetch"),
    ({"ref_text": REF_TEXT}, "ref_text", "ref_audio, which is missing"),
    ({"ref_audio": AUDIO, "ref_text": "x" * 5000}, "ref_text", "5000 characters"),
    ({"ref_audio": AUDIO, "x_vector_only_mode": False}, "ref_text", "Missing"),
    ({"ref_audio": AUDIO, "ref_text": " ", "x_vector_only_mode": False}, "ref_text", "Missing"),
    ({"ref_audio": AUDIO, "speaker_embedding": [0.0] * SIZE}, "speaker_embedding", "two voices"),
    ({"speaker_embedding": [0.0] * SIZE, "ref_text": REF_TEXT}, "ref_text", "missing"),
    ({"speaker_embedding": []}, "speaker_embedding", "list of numbers"),
    ({"speaker_embedding": [0.0] * (SIZE - 1)}, "speaker_embedding", "takes 64 values, not 63"),
    ({"speaker_embedding": [float("nan")] * SIZE}, "speaker_embedding", "finite"),
    ({"speaker_embedding": [float("inf")] * SIZE}, "speaker_embedding", "finite"),
    ({"speaker_embedding": [1e300] * SIZE}, "speaker_embedding", "finite"),
    ({"speaker_embedding": [1001.0] * SIZE}, "speaker_embedding", "between -1000 and 1000"),
    ({"speaker_embedding": ["0"] * SIZE}, "speaker_embedding", "number"),
    ({"speaker_embedding": "0"}, "speaker_embedding", "list"),
    ({"speaker_embedding": [{"embedding": [0.0] * SIZE, "weight": 0}]}, "speaker_embedding", ""),
    ({"speaker_embedding": [{"embedding": [0.0]}, {"embedding": [0.0, 1.0]}]}, "speaker_embedding", "one size"),
    ({"speaker_embedding": [{"embedding": [0.0]}] * 17}, "speaker_embedding", "at most 16 items"),
    ({"ref_audio": AUDIO, "task_type": "VoiceDesign"}, "task_type", "a VoiceDesign model does"),
]


@pytest.mark.parametrize(("fields", "param", "words"), BAD)
def test_bad_voices(server: LiveServer, fields: dict[str, Any], param: str, words: str) -> None:
    # Not httpx's own JSON, which knows no NaN; Python's parser, and so the server's, does.
    content = json.dumps({"input": TEXT, **fields})
    response = httpx.post(
        server.url + SPEECH, content=content, headers={"Content-Type": "application/json"}, timeout=30
    )
    status, named, message = refusal(response)
    assert (status, named) == (400, param), message
    assert words in message


def test_a_model_that_cannot_clone_names_one_that_can(server: LiveServer, base_checkpoint: Path) -> None:
    custom = Engine(FakeRunner(replace(FAKE_INFO, clones=False)), EngineConfig())
    with live_server({"custom": custom, "base": base_engine(base_checkpoint)}) as both:
        response = httpx.post(both.url + SPEECH, json={"input": TEXT, "ref_audio": AUDIO})
        assert refusal(response) == (
            400,
            "ref_audio",
            "The model 'custom' does not clone voices from audio; 'base' does",
        )
        response = httpx.post(both.url + SPEECH, json={"input": TEXT, "task_type": "Base"})
        assert refusal(response)[1:] == ("task_type", "The model 'custom' does CustomVoice, not Base; 'base' does")
        assert_same_samples(say(both, model="base", ref_audio=AUDIO), say(server, ref_audio=AUDIO))
