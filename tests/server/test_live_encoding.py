"""Slow encoders of live audio run on a thread, so that the event loop serves others meanwhile."""

import base64
import json
import threading
from collections.abc import Iterator
from dataclasses import replace

import httpx
import pytest
from vivavoce_engine.fake_runner import SAMPLE_RATE, SAMPLES_PER_FRAME, tone
from vivavoce_server.audio import AudioOptions, SpeechEncoder
from vivavoce_server.containers import Mp3Encoder
from vivavoce_server.effects import Samples
from vivavoce_server.formats import FORMATS, LOSSY
from websockets.asyncio.client import connect

from tests.support.live_server import LiveServer, live_server
from tests.support.live_socket import dial
from tests.support.waiting import HUNG_S, wait_until

TEXT = "Hello there."
SEED = 5


class Hold:
    """Holds every encoder before its first samples until the test lets it go."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.released = threading.Event()
        self.ended = 0


@pytest.fixture
def hold(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hold]:
    held = Hold()

    class HeldEncoder(Mp3Encoder):
        def feed(self, pcm: Samples) -> bytes:
            held.reached.set()
            assert held.released.wait(HUNG_S), "the test never released the encoder"
            held.ended += 1
            return super().feed(pcm)

    monkeypatch.setitem(FORMATS, "mp3", replace(FORMATS["mp3"], encoder=HeldEncoder))
    monkeypatch.setitem(LOSSY, "mp3", HeldEncoder)
    yield held
    held.released.set()


@pytest.fixture
def server(hold: Hold) -> Iterator[LiveServer]:
    with live_server() as running:
        yield running
        hold.released.set()  # it stops once nothing is encoded


def mp3_of(text: str, encoder: SpeechEncoder) -> bytes:
    """The mp3 of a live utterance of the text, encoded a frame at a time."""
    pcm = tone(SEED, 0, len(text))
    pieces = [encoder.feed(pcm[start : start + SAMPLES_PER_FRAME]) for start in range(0, len(pcm), SAMPLES_PER_FRAME)]
    return b"".join(pieces) + encoder.flush()


def assert_serves_others(server: LiveServer, hold: Hold) -> None:
    assert hold.reached.wait(HUNG_S)
    assert httpx.get(server.url + "/health").status_code == 200
    pcm = {"input": "Hi!", "voice": "heart", "response_format": "pcm"}
    assert len(httpx.post(server.url + "/v1/audio/speech", json=pcm).content) == 3 * SAMPLES_PER_FRAME * 2
    assert hold.ended == 0


async def test_a_slow_encoder_of_the_live_socket_holds_up_nobody(server: LiveServer, hold: Hold) -> None:
    async with dial(server) as socket:
        await socket.configure(response_format="mp3", seed=SEED)
        await socket.say(TEXT)
        await socket.send("input.done")
        await socket.expect("audio.start")
        assert_serves_others(server, hold)
        hold.released.set()
        assert (await socket.rest())[0] == mp3_of(TEXT, SpeechEncoder(AudioOptions("mp3"), SAMPLE_RATE))


async def test_a_slow_encoder_of_elevenlabs_socket_holds_up_nobody(server: LiveServer, hold: Hold) -> None:
    url = server.url.replace("http", "ws") + f"/v1/text-to-speech/heart/stream-input?seed={SEED}"
    async with connect(url, proxy=None) as connection:
        for text in (" ", TEXT, ""):
            await connection.send(json.dumps({"text": text}))
        assert_serves_others(server, hold)
        hold.released.set()
        audio = b""
        while not (message := json.loads(await connection.recv())).get("isFinal"):
            audio += base64.b64decode(message["audio"])
        options = AudioOptions("mp3", sample_rate=44100, bit_rate=128_000)
        shared = options.new_shared_encoder(SAMPLE_RATE)
        assert audio == mp3_of(TEXT, SpeechEncoder(options, SAMPLE_RATE, shared))


async def test_what_is_being_encoded_when_it_is_cancelled_never_comes(server: LiveServer, hold: Hold) -> None:
    async with dial(server) as socket:
        await socket.configure(response_format="mp3", seed=SEED)
        await socket.say("Hello there, you ")
        await socket.expect("audio.start")
        assert hold.reached.wait(HUNG_S)
        await socket.send("input.cancel")
        done = await socket.expect("audio.done")
        assert (done["cancelled"], done["total_bytes"], done["duration_ms"]) == (True, 0, 0)
        wait_until(lambda: server.engine.stats().running == 0)
        assert hold.ended == 0
        hold.released.set()
        await socket.say("Next.")
        await socket.send("input.done")
        following = await socket.utterance()
        assert following.start["utterance_index"] == 1
        assert following.audio == mp3_of("Next.", SpeechEncoder(AudioOptions("mp3"), SAMPLE_RATE))
