"""G.711, the encodings of telephony: their values, and the ways by which clients ask for them."""

import base64
import io
from collections.abc import Callable
from typing import Literal

import av
import httpx
import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray
from vivavoce_engine.fake_runner import SAMPLES_PER_FRAME
from vivavoce_server.formats import FormatName
from vivavoce_server.telephony import to_alaw, to_ulaw

from tests.support.live_server import LiveServer
from tests.support.live_socket import dial

Encode = Callable[[NDArray[np.int16]], bytes]
ALL_SAMPLES = np.arange(-32768, 32768, dtype="<i2")
EVERY_CODE = bytes(range(256))
TEXT = "Hello there."
TYPES = {"g711_ulaw": "audio/PCMU;rate=8000", "g711_alaw": "audio/PCMA;rate=8000"}
BOTH = pytest.mark.parametrize("name", TYPES)


def by_ffmpeg(codes: bytes, name: str) -> NDArray[np.int32]:
    codec = {"g711_ulaw": "mulaw", "g711_alaw": "alaw"}[name]
    with av.open(io.BytesIO(codes), "r", format=codec, options={"sample_rate": "8000"}) as file:
        samples = np.concatenate([frame.to_ndarray()[0] for frame in file.decode(audio=0)])
    wide: NDArray[np.int32] = samples.astype(np.int32)
    return wide


@pytest.mark.parametrize(("encode", "subtype"), [(to_ulaw, "ULAW"), (to_alaw, "ALAW")])
def test_every_sample_gets_a_code_as_near_as_that_of_libsndfile(
    encode: Encode, subtype: Literal["ULAW", "ALAW"]
) -> None:
    name = f"g711_{subtype.lower()}"
    wide = ALL_SAMPLES.astype(np.int32)
    file = io.BytesIO()
    soundfile.write(file, ALL_SAMPLES, 8000, format="RAW", subtype=subtype)
    # libsndfile follows the recommendation too. Of two levels that are equally near, either may be taken. At six
    # ends of segments it takes the farther one.
    error, others = (np.abs(by_ffmpeg(codes, name) - wide) for codes in (encode(ALL_SAMPLES), file.getvalue()))
    assert (error <= others).all()
    assert (error < others).sum() == (6 if subtype == "ALAW" else 0)


@pytest.mark.parametrize(("encode", "name"), [(to_ulaw, "g711_ulaw"), (to_alaw, "g711_alaw")])
def test_every_code_comes_back(encode: Encode, name: str) -> None:
    back = encode(by_ffmpeg(EVERY_CODE, name).astype("<i2"))
    negative_zero = 0x7F if name == "g711_ulaw" else None
    assert [code for code in range(256) if back[code] != code] == ([] if negative_zero is None else [negative_zero])


def test_values_of_the_recommendation() -> None:
    samples = np.array([0, 32767, -32768, 8, -8], "<i2")
    assert to_ulaw(samples).hex() == "ff8000fe7e"
    assert to_alaw(samples).hex() == "d5aa2ad555"


# ---- requests


def ask(server: LiveServer, **fields: object) -> httpx.Response:
    body = {"input": TEXT, "voice": "heart", "seed": 7, **fields}
    return httpx.post(f"{server.url}/v1/audio/speech", json=body)


@BOTH
@pytest.mark.parametrize("options", [{}, {"stream": False}, {"sample_rate": 8000}, {"speed": 1.5}])
def test_it_is_as_long_as_pcm_and_sounds_the_same(
    server: LiveServer, name: FormatName, options: dict[str, object]
) -> None:
    answer = ask(server, response_format=name, **options)
    assert answer.headers["content-type"] == TYPES[name]
    assert ("content-length" in answer.headers) == (options.get("stream") is False)
    pcm = np.frombuffer(ask(server, **{**options, "response_format": "pcm", "sample_rate": 8000}).content, "<i2")
    heard = by_ffmpeg(answer.content, name)
    assert len(heard) == len(pcm)
    # A code is at most a 32nd of a sample away from it, or 8.
    assert (np.abs(heard - pcm) <= np.maximum(8, np.abs(pcm.astype(np.int32)) // 24)).all()


@BOTH
@pytest.mark.parametrize("sample_rate", [16000, 24000, 48000])
def test_it_has_no_other_rate(server: LiveServer, name: FormatName, sample_rate: int) -> None:
    answer = ask(server, response_format=name, sample_rate=sample_rate)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == ("sample_rate", "invalid_value")
    assert f"{name} always has 8000 Hz" in error["message"]


@BOTH
def test_a_batch_and_events_have_it(server: LiveServer, name: FormatName) -> None:
    whole = ask(server, response_format=name, stream=False).content
    options = {"voice": "heart", "seed": 7, "response_format": name}
    items = [{"input": TEXT}, {"input": TEXT, "sample_rate": 16000}]
    results = httpx.post(f"{server.url}/v1/audio/speech/batch", json={**options, "items": items}).json()["results"]
    assert (results[0]["media_type"], base64.b64decode(results[0]["audio_data"])) == (TYPES[name], whole)
    assert results[1]["error"]["param"] == "sample_rate"
    events = ask(server, response_format=name, stream_format="sse").text
    assert events.count("speech.audio.done") == 2


@BOTH
async def test_a_live_socket_has_it(server: LiveServer, name: FormatName) -> None:
    async with dial(server) as socket:
        await socket.configure(response_format=name, seed=7)
        await socket.say(TEXT)
        await socket.send("input.done")
        started = await socket.expect("audio.start")
        assert (started["format"], started["sample_rate"]) == (name, 8000)
        audio, _ = await socket.rest()
        assert len(audio) == len(TEXT) * SAMPLES_PER_FRAME // 3
        assert audio == ask(server, response_format=name).content
        await socket.send("session.config", response_format=name, sample_rate=24000)
        assert (await socket.error())["param"] == "sample_rate"


@pytest.mark.parametrize(("output_format", "name"), [("ulaw_8000", "g711_ulaw"), ("alaw_8000", "g711_alaw")])
def test_elevenlabs_name_for_it(server: LiveServer, output_format: str, name: FormatName) -> None:
    url = f"{server.url}/v1/text-to-speech/heart?output_format={output_format}"
    answer = httpx.post(url, json={"text": TEXT, "seed": 7})
    assert answer.headers["content-type"] == TYPES[name]
    assert answer.content == ask(server, response_format=name).content
