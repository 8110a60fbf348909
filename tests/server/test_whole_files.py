"""Whole files wait on the disk, recordings come in any form of base64, and long texts are split in stretches."""

import base64
import errno
import tracemalloc
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from sentencex import segment  # type: ignore[import-untyped]
from vivavoce_server import ServerConfig, text_parts
from vivavoce_server.errors import ApiError
from vivavoce_server.jobs import prepare
from vivavoce_server.metrics import SpeechMeter
from vivavoce_server.references import decode_audio
from vivavoce_server.schemas import SpeechRequest
from vivavoce_server.service import Service
from vivavoce_server.speech import Speech
from vivavoce_server.whole_files import InBase64, WholeFile

from tests.support.live_server import LiveServer, fake_engine

SPEECH = "/v1/audio/speech"
ELEVENLABS = "/v1/text-to-speech/heart"


# ---- whole files


LONG = "The quick brown fox jumps over the lazy dog near the river. "
WHOLE: dict[str, Any] = {"input": LONG, "voice": "heart", "seed": 3, "sample_rate": 48000}


@pytest.mark.parametrize("response_format", ["wav", "flac", "mp3", "pcm"])
def test_a_whole_file_is_the_same_in_memory_and_on_the_disk(
    server: LiveServer, response_format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {**WHOLE, "response_format": response_format, "stream": False}
    in_memory = httpx.post(server.url + SPEECH, json=given)
    monkeypatch.setattr(WholeFile.__init__, "__defaults__", (1000,))
    on_disk = httpx.post(server.url + SPEECH, json=given)
    assert in_memory.status_code == 200
    assert on_disk.content == in_memory.content
    assert len(on_disk.content) == int(on_disk.headers["Content-Length"]) > 1000


async def test_a_file_past_its_limit_is_on_the_disk_and_in_base64_the_same() -> None:
    content = bytes(range(256)) * 3001
    for held_bytes in (100, 2**20):
        with WholeFile(held_bytes) as file:
            for start in range(0, len(content), 7777):
                await file.append(content[start : start + 7777])
            await file.complete(len(content).to_bytes(4))
            expected = len(content).to_bytes(4) + content[4:]
            assert b"".join([block async for block in file.blocks()]) == expected
            encoded = b"".join([block async for block in InBase64(file).blocks()])
            assert base64.b64decode(encoded) == expected
            assert len(encoded) == InBase64(file).size
            await file.clear()
            await file.append(b"ab")
            assert [block async for block in file.blocks()] == [b"ab"]


async def test_a_full_disk_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with WholeFile(10) as file:
        monkeypatch.setattr(file._file, "rollover", full)
        monkeypatch.setattr(file._file, "_check", full)
        with pytest.raises(ApiError, match="No space left on device") as refused:
            await file.append(b"a" * 11)
    assert refused.value.status == 507


async def test_whole_speech_holds_little_memory() -> None:
    """A pause of a minute at 48 kHz and a quarter of the speed: 23 MB of wav, of which 8 MiB may be held."""
    text = "[pause:10s]" * 6 + "Hi."
    request = SpeechRequest(input=text, voice="heart", response_format="pcm", sample_rate=48000, speed=4.0)
    engine = fake_engine()
    service = Service({"fake": engine}, ServerConfig())
    engine.start()
    try:
        job = await prepare(request, service).read()
        tracemalloc.start()
        with WholeFile(2**20) as file, Speech(job, await job.find_voices(), SpeechMeter(service.metrics, "fake")) as it:
            await it.whole(file)
            _, peak_bytes = tracemalloc.get_traced_memory()
            assert file.size > 5 * 2**20
    finally:
        tracemalloc.stop()
        engine.stop()
    assert peak_bytes < 64 * 2**20


def test_the_files_of_a_batch_are_those_of_single_requests(server: LiveServer) -> None:
    options = {"voice": "heart", "seed": 3, "response_format": "wav"}
    texts = ["One.", LONG, "[pause:2s] Three."]
    items = [{"input": text} for text in texts] + [{"input": "..."}]
    batch = httpx.post(f"{server.url}{SPEECH}/batch", json={**options, "items": items})
    results = batch.json()["results"]
    assert [result["status"] for result in results] == ["success"] * 3 + ["error"]
    assert results[3]["audio_data"] is None
    assert int(batch.headers["Content-Length"]) == len(batch.content)
    for text, result in zip(texts, results, strict=False):
        single = httpx.post(server.url + SPEECH, json={**options, "input": text, "stream": False})
        assert base64.b64decode(result["audio_data"]) == single.content


def test_a_whole_file_inside_json(server: LiveServer) -> None:
    query = {"output_format": "wav_24000"}
    whole = httpx.post(f"{server.url}{ELEVENLABS}", params=query, json={"text": LONG, "seed": 3})
    timed = httpx.post(f"{server.url}{ELEVENLABS}/with-timestamps", params=query, json={"text": LONG, "seed": 3})
    assert base64.b64decode(timed.json()["audio_base64"]) == whole.content


# ---- recordings in base64

RECORDING = bytes(range(256)) * 3 + b"\xfb\xff\xfe\x00"
PLAIN = base64.b64encode(RECORDING).decode()


@pytest.mark.parametrize(
    "text",
    [
        PLAIN,
        PLAIN.rstrip("="),
        base64.urlsafe_b64encode(RECORDING).decode(),
        base64.urlsafe_b64encode(RECORDING).decode().rstrip("="),
        base64.encodebytes(RECORDING).decode(),
        base64.encodebytes(RECORDING).decode().replace("\n", "\r\n"),
        f"  {PLAIN}\n",
        f"data:audio/wav;base64,{PLAIN}",
        f"DATA:audio/wav;BASE64,{PLAIN.rstrip('=')}",
        "data:audio/wav;base64," + quote(PLAIN, safe=""),
        f"data:;base64,{PLAIN}",
        quote(f"data:audio/wav;base64,{PLAIN}", safe=""),
        quote(f"data:audio/wav;codecs=1;base64,{PLAIN}", safe="").replace("%3A", "%3a"),
        "data:audio/wav;base64," + PLAIN.replace("+", "%2b").replace("/", "%2f").replace("=", "%3d"),
    ],
)
def test_every_form_of_base64_is_taken(text: str) -> None:
    assert decode_audio(text) == RECORDING


@pytest.mark.parametrize(
    "text",
    [
        "",
        "=",
        "A",
        "AAAAA",
        "a\u00e4",
        "QUJ!",
        "QUJD%41",
        "QUI=QUJD",
        "QUJD=" * 300_000,
        "data:audio/wav,AAAA",
        "data:,",
        "data%3A",
        "data%3Aaudio%2Fwav%2CAAAA",
        "data%3a" * 10_000,
    ],
)
def test_other_text_is_no_base64(text: str) -> None:
    with pytest.raises(ApiError) as refused:
        decode_audio(text)
    assert refused.value.detail.param == "ref_audio"


def test_a_long_recording_is_decoded_whole() -> None:
    recording = bytes(range(256)) * 8000
    assert decode_audio(base64.encodebytes(recording).decode()) == recording


# ---- splitting of texts


def test_the_splitter_of_sentences_sees_a_stretch_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def watched(language: str, text: str) -> Iterable[str]:
        seen.append(len(text))
        sentences: Iterable[str] = segment(language, text)
        return sentences

    monkeypatch.setattr(text_parts, "segment", watched)
    story = "It was late. Mr. Smith went home at 5.30 p.m. and slept! Was it so? Yes. " * 300
    for text in ("\u201c" * 50_000, story, "a" * 20_000, "", "\n" * 9000):
        seen.clear()
        sentences = list(text_parts.sentences_of(text, "en"))
        assert "".join(sentences) == text
        assert all(size <= 4096 for size in seen)
        assert sum(seen) <= 2 * len(text) + 4096
    assert list(text_parts.sentences_of(story, "en")) == list(segment("en", story))
