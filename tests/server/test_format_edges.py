"""Formats at the edges of requests: other spellings, the shortest speech, silence alone, and every route."""

import base64
import json
from typing import Any

import httpx
import numpy as np
import pytest
from vivavoce_engine.fake_runner import SAMPLES_PER_FRAME
from vivavoce_server.audio import AudioOptions
from vivavoce_server.elevenlabs_options import OUTPUT_FORMATS
from vivavoce_server.formats import FORMATS, FormatName
from websockets.asyncio.client import connect

from tests.support.decoding import MODEL_RATE, heard_by_ffmpeg
from tests.support.live_server import LiveServer
from tests.support.live_socket import dial

FRAME_OF_AAC = 1024
EVERY = pytest.mark.parametrize("name", FORMATS)


def ask(server: LiveServer, **fields: object) -> httpx.Response:
    body = {"input": "A", "voice": "heart", "seed": 7, "normalize": False, "stream": False, **fields}
    return httpx.post(f"{server.url}/v1/audio/speech", json=body)


def assert_long(file: bytes, options: AudioOptions, samples: int, is_whole: bool = True) -> None:
    """The file holds so many samples of the model, but for what AAC and a streamed mp3 add."""
    heard, rate = heard_by_ffmpeg(file, options)
    excess = len(heard) - round(round(samples / options.speed) * rate / MODEL_RATE)
    most = {"aac": 2 * FRAME_OF_AAC, "mp3": 0 if is_whole else 1152}.get(options.format, 0)
    assert 0 <= excess <= most


@EVERY
@pytest.mark.parametrize("speed", [1.0, 1.5])
def test_speech_of_one_frame(server: LiveServer, name: FormatName, speed: float) -> None:
    options = {"response_format": name, "speed": speed, "max_new_tokens": 1}
    answer = ask(server, **options)
    assert answer.headers["content-length"] == str(len(answer.content))
    assert_long(answer.content, AudioOptions(name, speed), SAMPLES_PER_FRAME)
    streamed = ask(server, **options, stream=True)
    assert "content-length" not in streamed.headers
    assert_long(streamed.content, AudioOptions(name, speed), SAMPLES_PER_FRAME, is_whole=False)


@EVERY
@pytest.mark.parametrize("milliseconds", [100, 2000])
def test_a_pause_alone(server: LiveServer, name: FormatName, milliseconds: int) -> None:
    answer = ask(server, input=f"[pause:{milliseconds}ms]", response_format=name)
    if answer.status_code == 400:
        assert answer.json()["error"]["code"] == "nothing_to_speak"
        return
    assert_long(answer.content, AudioOptions(name), milliseconds * MODEL_RATE // 1000)
    samples, _ = heard_by_ffmpeg(answer.content, AudioOptions(name))
    assert np.abs(samples).max() <= 8 / 2**15


@EVERY
def test_events_and_a_batch_hold_the_same_file(server: LiveServer, name: FormatName) -> None:
    text = "Hello there."
    events = ask(server, input=text, response_format=name, stream=None, stream_format="sse").text
    deltas = [json.loads(line[6:]) for line in events.splitlines() if line.startswith("data: ")]
    file = b"".join(base64.b64decode(delta["audio"]) for delta in deltas if delta["type"] == "speech.audio.delta")
    assert_long(file, AudioOptions(name), len(text) * SAMPLES_PER_FRAME, is_whole=False)
    options = {"voice": "heart", "seed": 7, "response_format": name}
    batch = httpx.post(f"{server.url}/v1/audio/speech/batch", json={**options, "items": [{"input": text}]})
    assert_long(
        base64.b64decode(batch.json()["results"][0]["audio_data"]), AudioOptions(name), len(text) * SAMPLES_PER_FRAME
    )


@EVERY
async def test_each_utterance_of_a_live_socket_is_a_file(server: LiveServer, name: FormatName) -> None:
    async with dial(server) as socket:
        await socket.configure(response_format=name, seed=7, normalize=False)
        for text in ("Hi!", "Hello there."):
            await socket.say(text)
            await socket.send("input.done")
            await socket.expect("audio.start")
            file, _ = await socket.rest()
            assert_long(file, AudioOptions(name), len(text) * SAMPLES_PER_FRAME, is_whole=False)


@pytest.mark.parametrize("output_format", ["mp3_44100_128", "mp3_22050_32", "opus_48000_32", "wav_16000", "ulaw_8000"])
async def test_pieces_of_a_flush_are_one_file_of_elevenlabs_socket(server: LiveServer, output_format: str) -> None:
    url = (
        server.url.replace("http", "ws") + f"/v1/text-to-speech/heart/stream-input?output_format={output_format}&seed=7"
    )
    texts = ("Hi! ", "Oh! ", "Hello there. ")
    audio = b""
    async with connect(url, proxy=None) as connection:
        await connection.send(json.dumps({"text": " "}))
        for text in texts:
            await connection.send(json.dumps({"text": text, "flush": True}))
        await connection.send(json.dumps({"text": ""}))
        while not (message := json.loads(await connection.recv())).get("isFinal"):
            audio += base64.b64decode(message["audio"])
    options = OUTPUT_FORMATS[output_format]
    heard, rate = heard_by_ffmpeg(audio, options)
    spoken_s = sum(len(text.strip()) for text in texts) * SAMPLES_PER_FRAME / MODEL_RATE
    # The silence between utterances pushes out what an encoder holds.
    assert 0 <= len(heard) / rate - spoken_s < (0 if options.format in ("wav", "g711_ulaw") else 1.0) + 2 / rate


# ---- spellings


@pytest.mark.parametrize(
    ("fields", "param", "told"),
    [
        ({"response_format": "MP3"}, "response_format", "'g711_ulaw' or 'g711_alaw'"),
        ({"response_format": "ulaw"}, "response_format", "'g711_ulaw' or 'g711_alaw'"),
        ({"response_format": " wav"}, "response_format", "'mp3', 'opus', 'aac', 'flac', 'wav', 'pcm'"),
        ({"stream_format": "SSE"}, "stream_format", "'audio' or 'sse'"),
        ({"sample_rate": 44100}, "sample_rate", "8000, 16000, 24000 or 48000"),
        ({"sample_rate": "8000"}, "sample_rate", "8000, 16000, 24000 or 48000"),
        ({"response_format": "g711_alaw", "sample_rate": 48000}, "sample_rate", "g711_alaw always has 8000 Hz"),
    ],
)
def test_another_spelling_is_told_what_there_is(
    server: LiveServer, fields: dict[str, Any], param: str, told: str
) -> None:
    answer = ask(server, **fields)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == param
    assert told in error["message"]


@pytest.mark.parametrize("output_format", ["MP3_44100_128", "ulaw_16000", "g711_ulaw", "pcm", "mp3_48000_128"])
def test_elevenlabs_names_are_told_too(server: LiveServer, output_format: str) -> None:
    url = f"{server.url}/v1/text-to-speech/heart?output_format={output_format}"
    answer = httpx.post(url, json={"text": "A"})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == "output_format"
    assert "mp3_44100_128" in error["message"]
