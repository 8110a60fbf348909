"""The whole product as a newcomer uses it: the shipped voice behind a real socket, called by curl and OpenAI's SDK."""

import asyncio
import io
import json
import subprocess
import wave
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import openai
import pytest
from numpy.typing import NDArray
from vivavoce_engine import EngineConfig
from vivavoce_engine.load import load_engine
from vivavoce_server.openai_voices import OPENAI_VOICES
from vivavoce_voice import CHECKPOINT

from tests.support.live_server import LiveServer, live_server
from tests.support.programs import needs, path_of
from tests.support.speaking import assert_same_samples

TEXT = "Good morning! How can I help you today?"
SPEECH = {"input": TEXT, "voice": "alloy", "seed": 11, "response_format": "wav"}
AS_MADE = {"response_format": "pcm", "leading_silence": "keep"}
"""All samples of all frames."""
FOLDER_LIMIT_BYTES = 60_000_000


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    engine = load_engine(str(CHECKPOINT), EngineConfig(device="cpu", max_streams=4))
    with live_server(engine) as running:
        yield running


def samples_of(wav: bytes) -> NDArray[np.int16]:
    """Samples of a WAV whose header may have open sizes."""
    with wave.open(io.BytesIO(wav[:44])) as header:
        assert (header.getframerate(), header.getnchannels(), header.getsampwidth()) == (24000, 1, 2)
    return np.frombuffer(wav[44:], "<i2")


def assert_audible(samples: NDArray[np.int16]) -> None:
    """0.5 to 12 s of something neither silent nor clipped, in whole steps of 5 ms."""
    assert len(samples) % 120 == 0
    assert 0.5 < len(samples) / 24000 < 12
    rms = np.sqrt(np.mean((samples / 32768) ** 2))
    assert 0.01 < rms < 0.35
    assert np.mean(np.abs(samples.astype(np.int32)) >= 32767) < 0.001


@needs("curl")
def test_curl_gets_a_wav(server: LiveServer, tmp_path: Path) -> None:
    target = tmp_path / "hello.wav"
    arguments = ["-sf", f"{server.url}/v1/audio/speech", "-H", "Content-Type: application/json"]
    subprocess.run([path_of("curl"), *arguments, "-d", json.dumps(SPEECH), "-o", target], check=True)
    assert_audible(samples_of(target.read_bytes()))


def test_openais_sdk_gets_the_same_audio_streamed_and_whole(server: LiveServer) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        with client.audio.speech.with_streaming_response.create(
            model="tts-1", voice="alloy", input=TEXT, response_format="wav", extra_body={"seed": 11}
        ) as response:
            streamed = samples_of(b"".join(response.iter_bytes()))
        whole = client.audio.speech.create(
            model="tts-1", voice="alloy", input=TEXT, response_format="wav", extra_body={"seed": 11, "stream": False}
        ).content
    assert int.from_bytes(whole[40:44], "little") == len(whole) - 44
    assert_audible(streamed)
    assert_same_samples(samples_of(whole), streamed)


async def test_bytes_arrive_before_the_utterance_is_finished(server: LiveServer) -> None:
    running: list[int] = []
    url = f"{server.url}/v1/audio/speech"
    async with httpx.AsyncClient(timeout=60) as client, client.stream("POST", url, json=SPEECH) as response:
        assert response.status_code == 200
        async for _ in response.aiter_bytes():
            running.append(server.engine.stats().running)
    assert running[0] == 1
    assert len(running) >= 4
    assert server.engine.stats().running == 0


async def test_four_at_once_share_the_engines_steps(server: LiveServer) -> None:
    before = server.engine.stats()
    async with httpx.AsyncClient() as client:
        bodies = [{**SPEECH, "seed": seed, **AS_MADE} for seed in range(4)]
        posts = (client.post(f"{server.url}/v1/audio/speech", json=body, timeout=120) for body in bodies)
        answers = await asyncio.gather(*posts)
    frames = [len(answer.content) // 2 // 1920 for answer in answers]
    after = server.engine.stats()
    assert after.frames - before.frames == sum(frames)
    # Alone, each frame takes a step; together, a step makes frames of up to four.
    assert after.steps - before.steps < 0.6 * sum(frames)


@pytest.mark.parametrize("voice", OPENAI_VOICES)
def test_openais_voice_names_all_speak(server: LiveServer, voice: str) -> None:
    body = {**SPEECH, "voice": voice, "input": "Yes.", "max_new_tokens": 4, **AS_MADE}
    answer = httpx.post(f"{server.url}/v1/audio/speech", json=body, timeout=60)
    assert answer.status_code == 200
    assert len(answer.content) == 4 * 1920 * 2


def test_the_checkpoint_is_small_and_carries_its_card() -> None:
    assert sum(path.stat().st_size for path in CHECKPOINT.rglob("*") if path.is_file()) <= FOLDER_LIMIT_BYTES
    assert "Kokoro" in (CHECKPOINT / "MODEL_CARD.md").read_text()
