"""The shipped voice in a server process, heard through the `openai` package: every format, streamed and whole."""

import asyncio
import io
import json
from collections.abc import Iterator
from typing import Literal

import av
import av.logging
import httpx
import numpy as np
import openai
import pytest
import soundfile
from vivavoce_server.effects import Samples
from vivavoce_server.ignored import INSTRUCTIONS_IGNORED

from tests.support.server_process import serving

TEXT = "Hello there, this is a test."
RATE = 24000
SEEDED = {"seed": 7}
READ_BY_SOUNDFILE = ("mp3", "opus", "flac", "wav")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("server")) as (_, url):
        yield url


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def pcm(client: openai.OpenAI) -> Samples:
    """The speech that every format is to carry."""
    speech = client.audio.speech.create(
        model="tts-1", voice="alloy", input=TEXT, response_format="pcm", extra_body=SEEDED
    )
    return np.frombuffer(speech.content, "<i2").astype(np.float32) / np.float32(32768)


def test_it_speaks(pcm: Samples) -> None:
    assert 0.5 < len(pcm) / RATE < 10
    assert len(pcm) % 120 == 0
    assert 0.01 < np.sqrt(np.mean(pcm**2)) < 0.5


@pytest.mark.long
def test_its_leading_silence_is_dropped(client: openai.OpenAI, pcm: Samples) -> None:
    speech = client.audio.speech.create(
        model="tts-1",
        voice="alloy",
        input=TEXT,
        response_format="pcm",
        extra_body={**SEEDED, "leading_silence": "keep"},
    )
    made = np.frombuffer(speech.content, "<i2").astype(np.float32) / np.float32(32768)
    dropped = len(made) - len(pcm)
    assert 0.04 < dropped / RATE < 0.15
    np.testing.assert_allclose(made[dropped:], pcm, atol=2 / 32768)
    click = RATE // 50  # of the decoder, which begins from nothing
    assert loudness(made[click:dropped], RATE).max() < 10 ** (-55 / 20)
    assert loudness(pcm, RATE)[:3].max() >= 10 ** (-55 / 20)


def decoded(data: bytes) -> tuple[Samples, int]:
    """What FFmpeg hears; it must not complain."""
    resampler = av.AudioResampler(format="flt", layout="mono")
    with av.logging.Capture() as complaints, av.open(io.BytesIO(data), "r") as container:
        frames = [out for frame in container.decode(audio=0) for out in resampler.resample(frame)]
    assert [text for level, _, text in complaints if level <= av.logging.ERROR] == []
    return np.concatenate([frame.to_ndarray()[0] for frame in frames]), frames[0].sample_rate


def loudness(sound: Samples, rate: int) -> Samples:
    """RMS in slices of 20 ms."""
    size = rate // 50
    slices = sound[: len(sound) // size * size].reshape(-1, size)
    level: Samples = np.sqrt(np.mean(slices**2, axis=1))
    return level


@pytest.mark.long
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("name", ["mp3", "opus", "aac", "flac", "wav"])
def test_every_format(
    client: openai.OpenAI, pcm: Samples, name: Literal["mp3", "opus", "aac", "flac", "wav"], stream: bool
) -> None:
    with client.audio.speech.with_streaming_response.create(
        model="tts-1", voice="alloy", input=TEXT, response_format=name, extra_body={**SEEDED, "stream": stream}
    ) as speech:
        data = b"".join(speech.iter_bytes())
    sound, rate = decoded(data)
    extra_s = len(sound) / rate - len(pcm) / RATE
    assert 0 <= extra_s < 0.06
    # The same loudness all along, but for the encoder's delay: no gap at a seam, no lost tail.
    delay = round(extra_s * 50) if name in ("mp3", "aac") else 0
    expected, heard = loudness(pcm, RATE), loudness(sound, rate)
    correlations = [
        np.corrcoef(expected[: len(heard) - shift], heard[shift : shift + len(expected)])[0, 1]
        for shift in range(delay + 2)
    ]
    assert max(correlations) > 0.98
    if name in READ_BY_SOUNDFILE and not (name == "flac" and stream):  # libsndfile wants to know FLAC's length
        samples, other_rate = soundfile.read(io.BytesIO(data))
        assert 0 <= len(samples) / other_rate - len(pcm) / RATE < 0.06


@pytest.mark.long
@pytest.mark.parametrize("sample_rate", [8000, 16000, 48000])
@pytest.mark.parametrize("speed", [0.5, 1.5])
def test_rate_and_speed(client: openai.OpenAI, pcm: Samples, sample_rate: int, speed: float) -> None:
    options = {**SEEDED, "sample_rate": sample_rate}
    speech = client.audio.speech.create(
        model="tts-1", voice="alloy", input=TEXT, response_format="wav", speed=speed, extra_body=options
    )
    sound, rate = decoded(speech.content)
    assert rate == sample_rate
    assert len(sound) / rate == pytest.approx(len(pcm) / RATE / speed, abs=2 / rate)


@pytest.mark.long
async def test_four_at_once_are_heard_as_alone(url: str, pcm: Samples) -> None:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0) as client:
        speeches = await asyncio.gather(
            *(
                client.audio.speech.create(
                    model="tts-1", voice="alloy", input=TEXT, response_format="pcm", extra_body={"seed": seed}
                )
                for seed in (7, 8, 9, 7)
            )
        )
    heard = [np.frombuffer(speech.content, "<i2") for speech in speeches]
    assert len(heard[0]) == len(heard[3]) == len(pcm)
    for same in (heard[0], heard[3]):
        np.testing.assert_allclose(same / 32768, pcm, atol=2 / 32768)
    assert len(heard[1]) != len(pcm) or not np.allclose(heard[1] / 32768, pcm, atol=0.01)


@pytest.mark.long
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"voice": "nobody"}, "voice"),
        ({"input": " "}, "input"),
        ({"input": "a" * 5000}, "input"),
        ({"extra_body": {"language": "Klingon"}}, "language"),
        ({"extra_body": {"sped": 1}}, "sped"),
        ({"extra_body": {"task_type": "VoiceDesign"}}, "task_type"),
    ],
)
def test_bad_input_is_named_and_the_server_goes_on(client: openai.OpenAI, fields: dict[str, str], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.audio.speech.create(**{"model": "tts-1", "voice": "alloy", "input": TEXT, **fields})  # type: ignore[arg-type]
    assert caught.value.param == param
    assert client.models.list().data


@pytest.mark.long
def test_instructions_are_ignored_and_that_is_told(client: openai.OpenAI, pcm: Samples) -> None:
    answer = client.audio.speech.with_raw_response.create(
        model="tts-1",
        voice="alloy",
        input=TEXT,
        response_format="pcm",
        instructions="Whisper.",
        extra_body=SEEDED,
    )
    assert json.loads(answer.headers["X-Vivavoce-Warnings"]) == [INSTRUCTIONS_IGNORED]
    np.testing.assert_allclose(np.frombuffer(answer.content, "<i2") / 32768, pcm, atol=2 / 32768)


@pytest.mark.long
def test_the_voices_are_the_checkpoints(url: str) -> None:
    voices = httpx.get(f"{url}/v1/audio/voices").json()["voices"]
    assert [voice["id"] for voice in voices] == ["heart", "bella", "michael", "fenrir", "emma", "george"]
    assert [(voice["accent"], voice["sex"]) for voice in voices[3:5]] == [("American", "male"), ("British", "female")]
    assert {(voice["language"], *voice["languages"]) for voice in voices} == {("english", "english")}
    assert len({alias for voice in voices for alias in voice["aliases"]}) == 13
