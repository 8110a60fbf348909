"""WS /v1/audio/speech/stream: messages, their order, and audio formats."""

import asyncio
import base64
import io

import httpx
import numpy as np
import pytest
import soundfile
from pydantic import SecretStr
from vivavoce_engine.batching.scheduler import Plan
from vivavoce_engine.fake_runner import SAMPLES_PER_FRAME
from vivavoce_server import ServerConfig
from vivavoce_server.containers import wav_header

from tests.support.live_server import Gate, LiveServer, fake_engine, live_server
from tests.support.live_socket import dial, pcm_of
from tests.support.waiting import wait_until

FRAME_BYTES = SAMPLES_PER_FRAME * 2


@pytest.mark.parametrize("fragments", [["Hello there."], ["Hel", "lo th", "", "ere."], list("Hello there.")])
async def test_fragments_are_spoken_as_one_text(server: LiveServer, fragments: list[str]) -> None:
    async with dial(server) as socket:
        created = await socket.configure()
        assert created["model"] == "fake"
        assert created["limits"]["max_utterance_chars"] == 65536
        await socket.say(*fragments)
        await socket.send("input.done")
        heard = await socket.utterance()
    assert heard.start == {"type": "audio.start", "utterance_index": 0, "format": "pcm", "sample_rate": 24000}
    assert heard.audio == pcm_of(5, 12)
    assert heard.done == {
        "type": "audio.done",
        "utterance_index": 0,
        "duration_ms": 960,
        "total_bytes": 12 * FRAME_BYTES,
        "frames": 12,
        "cancelled": False,
        "parts": [{"text": "Hello there.", "end_ms": 960}],
        "spoken_text_chars": 12,
        "characters_per_minute": 750.0,
        "words_per_minute": 125.0,
    }


async def test_speech_comes_while_text_is_still_to_come(server: LiveServer) -> None:
    async with dial(server) as socket:
        await socket.configure()
        await socket.say("Hello there ")
        await socket.expect("audio.start")
        heard = await socket.audio()
        while len(heard) < 2 * FRAME_BYTES:  # the third frame waits: what follows decides whether it is the last
            heard += await socket.audio()
        await socket.say("friend!")
        await socket.send("input.done")
        rest, done = await socket.rest()
        assert heard + rest == pcm_of(5, 19)
        assert done["duration_ms"] == 1520


async def test_live_speech_is_that_of_http(server: LiveServer) -> None:
    body = {"input": "Hello.", "voice": "heart", "seed": 9, "response_format": "pcm", "speed": 1.5}
    async with httpx.AsyncClient() as client, dial(server) as socket:
        expected = (await client.post(f"{server.url}/v1/audio/speech", json=body)).content
        await socket.configure(seed=9, speed=1.5)
        await socket.say("Hel", "lo.")
        await socket.send("input.done")
        assert (await socket.utterance()).audio == expected


@pytest.mark.parametrize(
    ("options", "rate", "seconds"),
    [
        ({"response_format": "wav"}, 24000, 0.96),
        ({"response_format": "wav", "sample_rate": 8000}, 8000, 0.96),
        ({"response_format": "wav", "speed": 2}, 24000, 0.48),
        ({"response_format": "opus"}, 24000, 0.96),
        ({"response_format": "mp3"}, 48000, 0.96),
    ],
)
async def test_every_utterance_is_a_file(
    server: LiveServer, options: dict[str, object], rate: int, seconds: float
) -> None:
    async with dial(server) as socket:
        await socket.configure(**options)
        for index in range(2):
            await socket.say("Hello there.")
            await socket.send("input.done")
            heard = await socket.utterance()
            assert heard.start["utterance_index"] == index
            assert heard.start["sample_rate"] == rate
            samples, file_rate = soundfile.read(io.BytesIO(heard.audio), dtype="float32")
            # Opus files always play at 48 kHz; soundfile tells the rate that went in.
            assert file_rate == rate
            assert len(samples) / rate == pytest.approx(seconds, abs=0.06)
            assert np.sqrt(np.mean(samples**2)) == pytest.approx(0.3 / np.sqrt(2), rel=0.1)
            assert heard.done["duration_ms"] == round(seconds * 1000)


async def test_the_session_can_be_changed_between_utterances(server: LiveServer) -> None:
    async with dial(server) as socket:
        await socket.configure(seed=1)
        await socket.say("One")
        await socket.send("input.done")
        assert (await socket.utterance()).audio == pcm_of(1, 3)
        await socket.send("session.config", voice="michael", seed=2, response_format="wav")
        await socket.say("Four")
        await socket.send("input.done")
        heard = await socket.utterance()
        assert heard.start["utterance_index"] == 1
        assert heard.audio[44:] == pcm_of(2, 4)


async def test_what_comes_too_early_waits_its_turn() -> None:
    gate = Gate()
    with live_server(fake_engine(before_step=gate)) as server:
        async with dial(server) as socket:
            await socket.configure(seed=1)
            await socket.say("One")
            await socket.send("input.done")
            await socket.send("session.config", voice="heart", seed=2)
            await socket.say("Fo", "ur")
            await socket.send("input.done")
            await socket.say("Three")
            await socket.send("session.close")
            gate.open()
            heard = [await socket.utterance() for _ in range(3)]
            assert (await socket.expect("session.done"))["utterances"] == 3
            assert await socket.close_code() == 1000
    assert [one.audio for one in heard] == [pcm_of(1, 3), pcm_of(2, 4), pcm_of(2, 5)]
    assert [one.start["utterance_index"] for one in heard] == [0, 1, 2]


async def test_split_makes_every_sentence_an_utterance(server: LiveServer) -> None:
    async with dial(server) as socket:
        await socket.configure(split="sentence")
        await socket.say("Good mor", "ning. How are you? I am fi")
        lengths = [len((await socket.utterance()).audio) // FRAME_BYTES for _ in range(2)]
        await socket.say("ne")
        await socket.send("input.done")
        lengths.append(len((await socket.utterance()).audio) // FRAME_BYTES)
        await socket.say("Never said")
        await socket.send("input.cancel")
        await socket.say("Said")
        await socket.send("session.close")
        lengths.append(len((await socket.utterance()).audio) // FRAME_BYTES)
        await socket.expect("session.done")
    assert lengths == [len("Good morning."), len("How are you?"), len("I am fine"), len("Said")]


async def test_a_voice_may_be_given_along(server: LiveServer) -> None:
    recording = base64.b64encode(wav_header(24000, 25 * FRAME_BYTES) + pcm_of(1, 25)).decode()
    async with dial(server) as socket:
        await socket.send("session.config", ref_audio="no audio")
        assert (await socket.error())["param"] == "ref_audio"
        await socket.send("session.config", voice="heart", ref_audio=recording)
        assert (await socket.error())["param"] == "voice"
        await socket.configure(voice=None, ref_audio=recording, ref_text="Silence.")
        await socket.say("Hello")
        await socket.send("input.done")
        assert (await socket.utterance()).audio == pcm_of(5, 5)


async def test_metrics_tell_of_live_speech(server: LiveServer) -> None:
    async def metric(name: str) -> float | None:
        async with httpx.AsyncClient() as client:
            lines = (await client.get(f"{server.url}/metrics")).text.splitlines()
        values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return float(values[name]) if name in values else None

    async with dial(server) as socket:
        await socket.configure()
        assert await metric("vivavoce_live_sessions") == 1
        await socket.say("Hello")
        await socket.send("input.done")
        await socket.utterance()
        await socket.say("x" * 100)
        await socket.expect("audio.start")
        await socket.send("input.cancel")
        await socket.rest()
        assert await metric('vivavoce_requests_total{model="fake",outcome="completed"}') == 1
        assert await metric('vivavoce_requests_total{model="fake",outcome="cancelled"}') == 1
        assert await metric('vivavoce_ttfa_seconds_count{model="fake"}') in (1, 2)
        # How fast text comes is the client's doing.
        assert await metric('vivavoce_rtf_count{model="fake"}') == 0


async def test_keys_get_rows_in_turn() -> None:
    clients: list[str] = []
    config = ServerConfig(api_keys=(SecretStr("sk-a"), SecretStr("sk-b")))

    def note(plan: Plan) -> None:
        clients.extend(sequence.pending.request.client for sequence in plan.start)

    with live_server(fake_engine(before_step=note), config) as server:
        for key in ("sk-a", "sk-b"):
            async with dial(server, f"?api_key={key}") as socket:
                await socket.configure()
                await socket.say("Hi")
                await socket.send("input.done")
                await socket.utterance()
    assert clients == ["key 1", "key 2"]


async def test_sessions_speak_side_by_side(server: LiveServer) -> None:
    async def one(seed: int) -> bytes:
        async with dial(server) as socket:
            await socket.configure(seed=seed)
            for letter in "Hello there.":
                await socket.say(letter)
                await asyncio.sleep(0)
            await socket.send("input.done")
            return (await socket.utterance()).audio

    heard = await asyncio.gather(*(one(seed) for seed in range(8)))
    assert heard == [pcm_of(seed, 12) for seed in range(8)]
    wait_until(lambda: server.engine.stats().running == 0)
