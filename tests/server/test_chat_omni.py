"""The chat route over a small Qwen3-Omni checkpoint: transformers' thinker and Vivavoce's talker, end to end."""

import asyncio
import base64
import wave
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import httpx
import numpy as np
import pytest
from safetensors.numpy import load_file
from vivavoce_engine import (
    EngineConfig,
    ThinkerConfig,
    ThinkerProcess,
    ThinkerPrompt,
    UtteranceOptions,
    collect,
)
from vivavoce_engine.load import load_engine
from vivavoce_server import ServerConfig

from tests.support.chatting import PATH, Json, ask, png, streamed
from tests.support.live_server import LiveServer, live_server
from tests.support.omni_checkpoints import omni_checkpoint
from tests.support.waiting import HUNG_S

GOLDEN = Path(__file__).parents[1] / "golden" / "omni_tiny.safetensors"
QUESTION = "What is the capital of china?"
SYSTEM: Json = {"role": "system", "content": "reply with one word"}
PLAIN: Json = {"messages": [SYSTEM, {"role": "user", "content": QUESTION}], "max_tokens": 12}
AUDIO: Json = {"modalities": ["text", "audio"], "audio": {"voice": "Ethan", "format": "pcm16"}, "seed": 5}


def golden_sound() -> str:
    """The sound of the golden case `audio`, as a WAV file of 16 bits in base64."""
    t = np.arange(20320) / 16000
    samples = np.round(0.3 * np.sin(2 * np.pi * (180 + 40 + 60 * t) * t) * 32768).astype("<i2")
    file = BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(16000)
        writer.writeframes(samples.tobytes())
    return base64.b64encode(file.getvalue()).decode()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return omni_checkpoint(tmp_path_factory.mktemp("omni"))


@pytest.fixture(scope="module")
def server(checkpoint: Path) -> Iterator[LiveServer]:
    thinker = ThinkerProcess(checkpoint, ThinkerConfig(device="cpu", threads=1))
    engine = load_engine(str(checkpoint), EngineConfig(device="cpu", runner="torch", dtype="float32", max_streams=3))
    thinker.start()
    try:
        with live_server({"omni": engine}, ServerConfig(leading_silence="keep"), {"omni": thinker}) as running:
            yield running
    finally:
        thinker.stop()


def answer_text(server: LiveServer, name: str) -> tuple[list[int], str]:
    """Prompt ids and text of a golden case."""
    golden = load_file(GOLDEN)
    text = server.service.chats.thinkers["omni"].text
    return golden[f"{name}.input_ids"].tolist(), text.decode(golden[f"{name}.thinker_ids"].tolist())


def test_text_answers_are_the_references(server: LiveServer) -> None:
    prompt, text = answer_text(server, "text")
    body = ask(server, PLAIN, timeout=HUNG_S).json()
    assert body["choices"][0]["message"]["content"] == text
    assert body["usage"]["prompt_tokens"] == len(prompt)
    assert server.engine.stats().frames == 0


def test_a_sound_and_a_picture_are_answered_as_the_reference_answers_them(server: LiveServer) -> None:
    pixels = np.random.default_rng(2).integers(0, 256, (96, 64, 3), dtype=np.uint8)
    media = {
        "audio": {"type": "input_audio", "input_audio": {"data": golden_sound(), "format": "wav"}},
        "image": {"type": "image_url", "image_url": {"url": png(pixels)}},
    }
    for name, part in media.items():
        prompt, text = answer_text(server, name)
        content = [part, {"type": "text", "text": QUESTION}]
        body = ask(server, {**PLAIN, "messages": [SYSTEM, {"role": "user", "content": content}]}, timeout=HUNG_S).json()
        assert body["choices"][0]["message"]["content"] == text
        assert body["usage"]["prompt_tokens"] == len(prompt)
        spoken = streamed(server, {**PLAIN, **AUDIO, "messages": [SYSTEM, {"role": "user", "content": content}]})
        assert (spoken.transcript + spoken.unspoken, spoken.done) == (text, True)


def test_the_speech_is_that_of_the_engine_for_the_same_ids(server: LiveServer) -> None:
    """Whole, streamed, and by the engine's own call with all ids at once: the same samples."""
    golden = load_file(GOLDEN)

    async def direct() -> bytes:
        options = UtteranceOptions(speaker="ethan", seed=5, streaming_text=True)
        answer = server.engine.open_answer(options, ThinkerPrompt(tuple(golden["text.input_ids"].tolist())))
        answer.append_ids(golden["text.thinker_ids"].tolist())
        answer.end()
        chunks, _ = await collect(answer.stream)
        samples = np.concatenate([chunk.pcm for chunk in chunks])
        return bytes(np.round(np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())

    expected = np.frombuffer(asyncio.run(direct()), "<i2").astype(int)
    whole = ask(server, {**PLAIN, **AUDIO}, timeout=HUNG_S).json()["choices"][0]["message"]["audio"]["data"]
    parts = streamed(server, {**PLAIN, **AUDIO}).audio
    assert base64.b64decode(whole) == parts
    heard = np.frombuffer(parts, "<i2").astype(int)
    assert heard.shape == expected.shape
    assert np.abs(heard - expected).max() <= 1


@pytest.mark.long
async def test_conversations_side_by_side_are_those_alone(server: LiveServer) -> None:
    bodies = [{**PLAIN, **AUDIO, "seed": seed, "temperature": 1.0} for seed in range(4)]

    async def answers(together: bool) -> list[tuple[str, str]]:
        async with httpx.AsyncClient(timeout=HUNG_S) as client:

            async def one(body: Json) -> tuple[str, str]:
                response = await client.post(server.url + PATH, json=body)
                assert response.status_code == 200, response.text
                audio = response.json()["choices"][0]["message"]["audio"]
                return audio["transcript"], audio["data"]

            if together:
                return list(await asyncio.gather(*map(one, bodies)))
            return [await one(body) for body in bodies]

    assert await answers(together=True) == await answers(together=False)
