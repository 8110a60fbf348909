"""ElevenLabs' socket with several contexts, as LiveKit and Pipecat use it."""

import asyncio
import base64
import io
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
import soundfile
from pydantic import SecretStr
from vivavoce_server import ServerConfig
from vivavoce_server.live import connection as connection_module
from vivavoce_server.live import elevenlabs_multi
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from tests.support.live_server import Gate, LiveServer, fake_engine, live_server
from tests.support.live_socket import pcm_of
from tests.support.waiting import HUNG_S, wait_until

KEY = "sk-right"
ALIASES = ("bIHbv24MWmeRgasZH58o=michael", "narrator=heart")


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with live_server(config=ServerConfig(api_keys=(SecretStr(KEY),), voice_aliases=ALIASES)) as running:
        yield running


@asynccontextmanager
async def dial(server: LiveServer, query: str = "", voice: str = "heart") -> AsyncIterator["Contexts"]:
    url = server.url.replace("http", "ws") + f"/v1/text-to-speech/{voice}/multi-stream-input"
    address = f"{url}?seed=5&output_format=pcm_24000&{query}"
    async with connect(address, proxy=None, additional_headers={"xi-api-key": KEY}) as socket:
        yield Contexts(socket)


class Contexts:
    """A client that sorts what it hears by context."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.audio: dict[str, bytes] = {}
        self.messages: dict[str, list[dict[str, Any]]] = {}
        """Messages with audio or characters, by context."""
        self.finals: list[dict[str, Any]] = []
        self.errors: list[dict[str, Any]] = []

    async def send(self, *messages: dict[str, Any]) -> None:
        for message in messages:
            await self.socket.send(json.dumps(message))

    async def receive(self) -> dict[str, Any]:
        async with asyncio.timeout(HUNG_S):
            message: dict[str, Any] = json.loads(await self.socket.recv())
        if "audio" in message:
            assert message["contextId"] not in [final["contextId"] for final in self.finals], "audio after the end"
            self.messages.setdefault(message["contextId"], []).append(message)
            self.audio[message["contextId"]] = self.audio.get(message["contextId"], b"") + base64.b64decode(
                message["audio"]
            )
        elif "error" in message:
            self.errors.append(message)
        else:
            self.finals.append(message)
        return message

    async def until_finals(self, count: int) -> None:
        while len(self.finals) < count:
            await self.receive()

    async def until_audio(self, context_id: str) -> None:
        while context_id not in self.audio:
            await self.receive()

    async def close_code(self) -> int:
        try:
            while True:
                await self.receive()
        except ConnectionClosed as closed:
            return closed.rcvd.code if closed.rcvd else 1006


def text(context_id: str, words: str, **fields: object) -> dict[str, Any]:
    return {"text": words, "context_id": context_id, **fields}


def flush(context_id: str) -> dict[str, Any]:
    return {"context_id": context_id, "flush": True}


def close(context_id: str) -> dict[str, Any]:
    return {"context_id": context_id, "close_context": True}


def final(context_id: str) -> dict[str, Any]:
    return {"isFinal": True, "contextId": context_id}


@pytest.mark.parametrize("end", [flush("a"), text("a", "", flush=True)], ids=["Pipecat", "LiveKit"])
async def test_a_turn_is_spoken_to_its_end(server: LiveServer, end: dict[str, Any]) -> None:
    async with dial(server) as client:
        await client.send(text("a", " ", voice_settings={}), text("a", "Hello "), text("a", "there "), end)
        await client.send(close("a"), close("gone"))
        await client.until_finals(1)
        assert client.finals == [final("a")]
        assert client.audio == {"a": pcm_of(5, len("Hello there"))}
        await client.send({"close_socket": True})
        assert await client.close_code() == 1000
        assert client.errors == []
    wait_until(lambda: server.engine.stats().running == 0)


async def test_a_flush_with_the_last_text_ends_a_turn(server: LiveServer) -> None:
    async with dial(server) as client:
        await client.send(text("a", "Hello there", flush=True), close("a"))
        await client.until_finals(1)
    assert client.audio == {"a": pcm_of(5, len("Hello there"))}


async def test_contexts_speak_side_by_side(server: LiveServer) -> None:
    async with dial(server) as client:
        await client.send({"text": " ", "contextId": "a"}, {"text": " ", "contextId": "b"}, {"text": "Default words"})
        for word in ("One ", "two ", "three "):
            await client.send(text("a", word), text("b", word.upper()))
        for context_id in ("a", "b", "default"):
            await client.send(flush(context_id), close(context_id))
        await client.until_finals(3)
    words = pcm_of(5, len("One two three"))
    assert client.audio == {"a": words, "b": words, "default": pcm_of(5, len("Default words"))}
    assert sorted(message["contextId"] for message in client.finals) == ["a", "b", "default"]


async def test_text_goes_on_behind_a_flush_in_one_file(server: LiveServer) -> None:
    async with dial(server) as client:
        await client.send(text("a", "One ", flush=True), text("a", "two"), text("a", " "), text("a", "three"))
        await client.send(flush("a"), close("a"))
        await client.until_finals(1)
    assert client.audio["a"] == pcm_of(5, len("One")) + pcm_of(5, len("two three"))


@pytest.mark.parametrize(("auto_mode", "spoken"), [("true", "One. Two."), ("false", "One.Two.")])
async def test_auto_mode_puts_a_blank_between_sentences(server: LiveServer, auto_mode: str, spoken: str) -> None:
    async with dial(server, f"auto_mode={auto_mode}&apply_text_normalization=off") as client:
        await client.send(text("a", "One."), text("a", "Two."), flush("a"), close("a"))
        await client.until_finals(1)
    assert client.audio["a"] == pcm_of(5, len(spoken))


async def test_keep_alives_end_nothing(server: LiveServer) -> None:
    async with dial(server) as client:
        await client.send({"text": ""}, text("a", "One "), {"text": ""}, text("a", ""), text("a", "two"))
        await client.send(flush("a"), close("a"))
        await client.until_finals(1)
    assert client.audio == {"a": pcm_of(5, len("One two"))}


@pytest.mark.parametrize("words", ["", "  ", "...", "\U0001f600"])
async def test_a_context_without_anything_to_speak_ends(server: LiveServer, words: str) -> None:
    async with dial(server) as client:
        await client.send(text("a", " "), text("a", words), flush("a"), close("a"))
        await client.until_finals(1)
    assert client.errors == []
    (told,) = client.finals
    assert told.pop("warnings", None) == (
        ["The input is blank: nothing in it can be spoken"] if words.strip() else None
    )
    assert told == final("a")


@pytest.mark.parametrize(
    ("query", "sentence_flush"), [("", False), ("auto_mode=true", False), ("auto_mode=true", True)]
)
async def test_an_interruption_stops_a_context_alone(query: str, sentence_flush: bool) -> None:
    gate = Gate(hold_from_step=100)
    with live_server(fake_engine(before_step=gate)) as server:
        async with dial(server, query) as client:
            await client.send(text("b", "Other words ", flush=True), flush("b"))
            await client.send(text("a", "many words " * 50, flush=sentence_flush))
            await client.until_audio("a")
            await client.send(close("a"))
            await client.until_finals(1)
            assert client.finals == [final("a")]
            gate.open()
            await client.send(close("b"))
            await client.until_finals(2)
        assert client.finals == [final("a"), final("b")]
        assert len(client.audio["a"]) < len(pcm_of(5, len("many words " * 50)))
        assert client.audio["b"] == pcm_of(5, len("Other words"))
        wait_until(lambda: server.engine.stats().running == 0)


async def test_a_second_close_interrupts_a_turn_that_had_ended() -> None:
    gate = Gate(hold_from_step=100)
    with live_server(fake_engine(before_step=gate)) as server:
        async with dial(server) as client:
            await client.send(text("a", "many words " * 50), flush("a"), close("a"))
            await client.until_audio("a")
            await client.send(close("a"))
            await client.until_finals(1)
            gate.open()
        assert len(client.audio["a"]) < len(pcm_of(5, len("many words " * 50)))
        wait_until(lambda: server.engine.stats().running == 0)


async def test_leaving_frees_the_rows_of_all_contexts() -> None:
    gate = Gate(hold_from_step=100)
    with live_server(fake_engine(before_step=gate)) as server:
        async with dial(server) as client:
            await client.send(text("a", "many words " * 50), text("b", "many words " * 50, flush=True))
            await client.until_audio("a")
        gate.open()
        wait_until(lambda: server.engine.stats().running == 0 and server.service.speaking == 0)


async def test_an_inactive_context_is_spoken_and_closed(server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elevenlabs_multi, "INACTIVITY_S", 0.2)
    async with dial(server) as client:
        await client.send(text("a", "Hello there"), text("b", " "))
        await client.until_finals(2)
        assert client.audio == {"a": pcm_of(5, len("Hello there"))}
        await client.send(text("c", "Still open"), flush("c"), close("c"))
        await client.until_finals(3)
    assert client.audio["c"] == pcm_of(5, len("Still open"))


async def test_a_socket_may_wait_for_its_first_message(server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "FIRST_MESSAGE_S", 0.05)
    async with dial(server) as client:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.socket.recv(), 0.3)
        await client.send(text("a", "Hello", flush=True), close("a"))
        await client.until_finals(1)
    assert client.audio["a"] == pcm_of(5, len("Hello"))


@pytest.mark.parametrize(
    ("query", "voice", "error"),
    [
        ("", "nobody", "voice_not_found"),
        ("language_code=xx", "heart", "invalid_value"),
        ("inactivity_timeout=soon", "heart", "invalid_value"),
        ("model_id=other", "heart", "model_not_found"),
    ],
)
async def test_what_cannot_be_served_closes_the_socket(server: LiveServer, query: str, voice: str, error: str) -> None:
    async with dial(server, query, voice) as client:
        await client.send(text("a", "Hello"))
        assert await client.close_code() == 1008
    (told,) = client.errors
    assert (told["error"], told["contextId"], told["code"], client.audio) == (error, "a", 1008, {})
    assert told["message"]


async def test_too_many_contexts_are_refused(server: LiveServer) -> None:
    async with dial(server) as client:
        for number in range(elevenlabs_multi.MAX_CONTEXTS + 1):
            await client.send(text(f"c{number}", " "))
        assert await client.close_code() == 1008
    assert [(told["error"], told["contextId"]) for told in client.errors] == [
        ("max_active_conversations", f"c{elevenlabs_multi.MAX_CONTEXTS}")
    ]


async def test_a_wrong_message_harms_no_context(server: LiveServer) -> None:
    async with dial(server) as client:
        await client.send(text("a", "Hello"), {"context_id": "a"}, flush("nobody"), close("nobody"), flush("a"))
        await client.send(close("a"))
        await client.until_finals(1)
    assert client.audio == {"a": pcm_of(5, len("Hello"))}
    assert [(told["error"], told["contextId"]) for told in client.errors] == [("missing_required_parameter", "a")]


async def test_a_voice_of_elevenlabs_is_replaced(server: LiveServer) -> None:
    for voice, warned in (("hpp4J3VqNfWAUOO0d1Us", True), ("bIHbv24MWmeRgasZH58o", False), ("narrator", False)):
        async with dial(server, voice=voice) as client:
            await client.send(text("a", "Hello", flush=True), close("a"))
            await client.until_finals(1)
        assert client.audio["a"] == pcm_of(5, len("Hello"))
        assert [voice in warning for warning in client.finals[0].get("warnings", [])] == [True] * warned


async def heard_file(server: LiveServer, output_format: str, *texts: str) -> bytes:
    url = server.url.replace("http", "ws") + "/v1/text-to-speech/heart/multi-stream-input"
    address = f"{url}?seed=5&output_format={output_format}"
    async with connect(address, proxy=None, additional_headers={"xi-api-key": KEY}) as socket:
        client = Contexts(socket)
        await client.send(*(text("a", words, flush=True) for words in texts), close("a"))
        await client.until_finals(1)
    return client.audio["a"]


@pytest.mark.parametrize("output_format", ["mp3_22050_32", "mp3_44100_128", "opus_48000_64", "wav_16000"])
async def test_a_context_is_one_file_over_its_flushes(server: LiveServer, output_format: str) -> None:
    audio = await heard_file(server, output_format, "Hello there, one.", "And now two.", "Three of them.")
    marks = {"mp3": b"ID3", "opus": b"OpusHead", "wav": b"RIFF"}
    kind, rate = output_format.split("_")[:2]
    assert audio.count(marks[kind]) == (0 if kind == "mp3" else 1)
    samples, decoded_rate = soundfile.read(io.BytesIO(audio), dtype="float32")
    assert decoded_rate == int(rate)
    spoken_s = 0.08 * len("Hello there, one.And now two.Three of them.")
    loud_s = np.count_nonzero(np.abs(samples) > 1e-2) / decoded_rate
    assert loud_s == pytest.approx(spoken_s, rel=0.06)
    if kind == "mp3":
        assert len(audio) * 8 / (len(samples) / decoded_rate) == pytest.approx(
            1000 * int(output_format.split("_")[2]), rel=0.05
        )
