"""ElevenLabs' socket, driven by ElevenLabs' own client and by hand."""

import asyncio
import base64
import io
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import elevenlabs
import numpy as np
import pytest
import soundfile
from elevenlabs.core.api_error import ApiError
from elevenlabs.realtime_tts import text_chunker
from pydantic import SecretStr
from vivavoce_server import ServerConfig
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.support.live_server import LiveServer, live_server
from tests.support.live_socket import pcm_of
from tests.support.waiting import HUNG_S, wait_until

KEY = "sk-right"
# Its client reads what the websockets package calls by other names now.
its_own_client = pytest.mark.filterwarnings("ignore:ConnectionClosed:DeprecationWarning")


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with live_server(config=ServerConfig(api_keys=(SecretStr(KEY),))) as running:
        yield running


def client_of(server: LiveServer, key: str = KEY) -> Any:
    client = elevenlabs.ElevenLabs(api_key=key, base_url=server.url)
    # It knows TLS alone.
    client.text_to_speech._ws_base_url = server.url.replace("http", "ws")
    return client


def tokens() -> Iterator[str]:
    yield from ("Hel", "lo", " there", ".", " How", " are you?")


TEXT = "Hello there. How are you?"
assert " ".join("".join(text_chunker(tokens())).split()) == TEXT  # its client adds spaces, which are not spoken


async def hear(server: LiveServer, key: str = KEY, text: Iterator[str] | None = None, **options: object) -> bytes:
    def listen() -> bytes:
        speech = client_of(server, key).text_to_speech
        return b"".join(speech.convert_realtime("heart", text=text or tokens(), **options))

    return await asyncio.to_thread(listen)


@its_own_client
async def test_its_own_client_hears_pcm(server: LiveServer) -> None:
    audio = await hear(server, output_format="pcm_24000", model_id="eleven_flash_v2_5")
    assert len(audio) == len(pcm_of(0, len(TEXT)))
    assert any(audio == pcm_of(pitch, len(TEXT)) for pitch in range(400))
    wait_until(lambda: server.engine.stats().running == 0)


@its_own_client
async def test_its_own_client_hears_its_usual_mp3(server: LiveServer) -> None:
    samples, rate = soundfile.read(io.BytesIO(await hear(server)), dtype="float32")
    assert rate == 44100
    assert len(samples) / rate == pytest.approx(len(TEXT) * 0.08, abs=0.08)
    assert np.sqrt(np.mean(samples**2)) == pytest.approx(0.3 / np.sqrt(2), rel=0.1)


@its_own_client
async def test_its_own_client_is_told(server: LiveServer) -> None:
    with pytest.raises(InvalidStatus, match="401"):
        await hear(server, key="sk-wrong")
    with pytest.raises(ApiError, match="no format"):
        await hear(server, output_format="amr_8000")
    with pytest.raises(ApiError, match="no model"):
        await hear(server, model_id="other")


@its_own_client
async def test_its_own_client_hears_nothing_of_signs(server: LiveServer) -> None:
    assert await hear(server, text=iter(["... ", "\U0001f600 "]), output_format="pcm_24000") == b""


@asynccontextmanager
async def dial(server: LiveServer, query: str, voice: str = "heart", **options: Any) -> AsyncIterator[ClientConnection]:
    url = server.url.replace("http", "ws") + f"/v1/text-to-speech/{voice}/stream-input?seed=5&{query}"
    async with connect(url, proxy=None, **options) as connection:
        yield connection


async def all_of(connection: ClientConnection) -> tuple[bytes, list[dict[str, Any]], int]:
    """Audio, the other messages, and the close code."""
    audio, others = b"", []
    async with asyncio.timeout(HUNG_S):
        try:
            while True:
                message = json.loads(await connection.recv())
                if "audio" in message:
                    audio += base64.b64decode(message["audio"])
                else:
                    others.append(message)
        except ConnectionClosed as closed:
            return audio, others, closed.rcvd.code if closed.rcvd else 1006


@pytest.mark.parametrize("first", [{"xi_api_key": KEY}, {"xi_api_key": KEY, "voice_settings": {"speed": 2.0}}])
async def test_the_key_may_be_in_the_first_message(server: LiveServer, first: dict[str, Any]) -> None:
    async with dial(server, "output_format=pcm_24000") as connection:
        for message in ({"text": " ", **first}, {"text": "Hello "}, {"text": " "}, {"text": ""}):
            await connection.send(json.dumps(message))
        audio, others, code = await all_of(connection)
    whole = pcm_of(5, len("Hello"))
    expected = len(whole) // 2 if "voice_settings" in first else len(whole)
    assert len(audio) == pytest.approx(expected, abs=4800)
    assert others == [{"isFinal": True}]
    assert code == 1000


async def test_flush_ends_an_utterance(server: LiveServer) -> None:
    async with dial(server, f"output_format=pcm_24000&xi-api-key={KEY}&language_code=en") as connection:
        for message in (
            {"text": " "},
            {"text": "One "},
            {"text": "two", "flush": True},
            {"text": "Three"},
            {"text": ""},
        ):
            await connection.send(json.dumps(message))
        audio, others, code = await all_of(connection)
    assert audio == pcm_of(5, len("One two")) + pcm_of(5, len("Three"))
    assert (others, code) == ([{"isFinal": True}], 1000)


@pytest.mark.parametrize(("output_format", "subtype"), [("ulaw_8000", "ULAW"), ("alaw_8000", "ALAW")])
async def test_telephones_get_their_encodings(server: LiveServer, output_format: str, subtype: str) -> None:
    async with dial(server, f"output_format={output_format}&xi-api-key={KEY}") as connection:
        for message in ({"text": " "}, {"text": "Hello"}, {"text": ""}):
            await connection.send(json.dumps(message))
        audio, _, _ = await all_of(connection)
    assert len(audio) == len("Hello") * 640
    # soundfile's own decoder of a file that says it holds this encoding.
    samples, _ = soundfile.read(io.BytesIO(audio), samplerate=8000, channels=1, format="RAW", subtype=subtype)
    assert np.sqrt(np.mean(samples**2)) == pytest.approx(0.3 / np.sqrt(2), rel=0.05)


async def test_a_flush_needs_no_text_and_loses_no_blank(server: LiveServer) -> None:
    async with dial(server, f"output_format=pcm_24000&xi-api-key={KEY}&language_code=en-US") as connection:
        for message in (
            {"text": " ", "generation_config": {"chunk_length_schedule": [50]}, "voice_settings": None},
            {"text": "One", "try_trigger_generation": True},
            {"flush": True},
            {"text": None, "flush": True},
            # The first utterance is still speaking.
            {"text": "two"},
            {"text": " "},
            {"text": "three"},
            {"close_socket": True},
        ):
            await connection.send(json.dumps(message))
        audio, others, code = await all_of(connection)
    assert audio == pcm_of(5, len("One")) + pcm_of(5, len("two three"))
    assert (others, code) == ([{"isFinal": True}], 1000)


@pytest.mark.parametrize(
    ("query", "voice", "message", "error", "code"),
    [
        ("", "nobody", {"text": " "}, "voice_not_found", 1008),
        ("language_code=xx", "heart", {"text": " "}, "invalid_value", 1008),
        ("", "heart", {"texts": " "}, "missing_required_parameter", 1002),
        ("", "heart", {"text": "x" * 2**17}, "message_too_large", 1009),
    ],
)
async def test_faults_are_told(
    server: LiveServer, query: str, voice: str, message: dict[str, str], error: str, code: int
) -> None:
    async with dial(server, query, voice, additional_headers={"xi-api-key": KEY}) as connection:
        await connection.send(json.dumps(message))
        audio, others, close_code = await all_of(connection)
    assert audio == b""
    assert others[-1]["error"] == error
    assert others[-1]["message"]
    assert close_code == code
