"""Marks of synthetic speech, read back by other software: FFmpeg (PyAV), mutagen, and `vivavoce verify`."""

import base64
import io
import json
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import httpx
import mutagen
import numpy as np
import pytest
from mutagen.id3 import ID3
from vivavoce_client.file_tags import read_tags
from vivavoce_client.verify import facts_of
from vivavoce_server import ServerConfig
from vivavoce_server.audio import AudioOptions, SpeechEncoder
from vivavoce_server.config import MarkChoice, load_settings
from vivavoce_server.containers import WAV_HEADER_BYTES, SharedEncoder
from vivavoce_server.effects import Samples
from vivavoce_server.formats import FORMATS, FormatName
from vivavoce_server.marks import OWN_VOICE, SOURCE_TYPE, SYNTHETIC_HEADER, AudioMark, open_marker
from websockets.asyncio.client import connect

from tests.support.live_server import LiveServer, live_server
from tests.support.live_socket import dial

RATE = 24000
MARK = AudioMark("Vivavoce 1.2.3", "voice-model", "heart")
MARKED: tuple[FormatName, ...] = ("mp3", "opus", "aac", "flac", "wav")
"""Formats that have a place for a mark."""
SPEECH = {"input": "Marked.", "voice": "heart", "seed": 1}
MARKER = open_marker("metadata")
assert MARKER is not None
SOFTWARE = MARKER.software


def tone(seconds: float = 0.7) -> Samples:
    return np.asarray(0.4 * np.sin(np.arange(int(RATE * seconds)) * 0.1), np.float32)


def written(name: FormatName, mark: AudioMark | None, whole: bool) -> bytes:
    """A file of a tone; with its length filled in if it is `whole`."""
    encoder = SpeechEncoder(AudioOptions(name, mark=mark), RATE)
    pcm = tone()
    content = b"".join([*(encoder.feed(pcm[at : at + 1920]) for at in range(0, len(pcm), 1920)), encoder.flush()])
    if whole:
        head = encoder.complete(len(content))
        content = head + content[len(head) :]
    return content


def decoded(content: bytes) -> tuple[dict[str, str], Samples]:
    """The metadata and the samples that FFmpeg finds in a file."""
    with av.open(io.BytesIO(content), "r") as container:
        (stream,) = container.streams
        tags = {name.lower(): value for name, value in {**container.metadata, **stream.metadata}.items()}
        frames = [frame.to_ndarray()[0] for frame in container.decode(audio=0)]
    return tags, np.concatenate(frames)


def facts_by_mutagen(name: FormatName, content: bytes) -> dict[str, str]:
    """The facts that mutagen finds in a file."""
    file = io.BytesIO(content)
    if name in ("mp3", "aac"):
        tag = ID3(file)  # type: ignore[no-untyped-call]
        return {frame.desc: str(frame.text[0]) for frame in tag.getall("TXXX")}  # type: ignore[no-untyped-call]
    found = mutagen.File(file)
    return {fact: found.tags[fact][0] for fact in MARK.facts()}


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("name", MARKED)
def test_every_reader_finds_the_mark(name: FormatName, whole: bool) -> None:
    content = written(name, MARK, whole)
    tags, _ = decoded(content)
    assert facts_of(read_tags(io.BytesIO(content))) == MARK.facts()
    if name == "wav":
        assert tags["comment"] == MARK.sentence()
        assert tags["encoder"] == MARK.software
        assert tags["encoded_by"] == MARK.software, "the originator of bext"
        assert read_tags(io.BytesIO(content)).fields["description"] == f"Synthetic speech; {SOURCE_TYPE}"
    else:
        assert {fact: tags[fact] for fact in MARK.facts()} == MARK.facts()
        assert facts_by_mutagen(name, content) == MARK.facts()


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("name", MARKED)
def test_samples_are_the_same_with_a_mark(name: FormatName, whole: bool) -> None:
    _, marked = decoded(written(name, MARK, whole))
    _, plain = decoded(written(name, None, whole))
    assert np.array_equal(marked, plain)


@pytest.mark.parametrize("name", sorted(set(FORMATS) - set(MARKED)))
def test_raw_formats_stay_as_they_are(name: FormatName) -> None:
    assert written(name, MARK, whole=True) == written(name, None, whole=True)


def test_a_marked_wav_file_has_true_sizes() -> None:
    content = written("wav", MARK, whole=True)
    plain = written("wav", None, whole=True)
    place, chunks = 12, []
    while place < len(content):
        name, size = struct.unpack_from("<4sI", content, place)
        chunks.append((name, size))
        place += 8 + size + size % 2
    assert place == len(content) == struct.unpack_from("<I", content, 4)[0] + 8
    assert [name for name, _ in chunks] == [b"fmt ", b"bext", b"LIST", b"data"]
    assert chunks[-1][1] == len(plain) - WAV_HEADER_BYTES
    streamed = written("wav", MARK, whole=False)
    assert streamed[4:8] == written("wav", None, whole=False)[4:8], "the open size is that of an unmarked stream"


def test_flac_tells_the_last_block_of_metadata() -> None:
    content = written("flac", MARK, whole=False)
    place, kinds = 4, []
    while True:
        head = content[place]
        kinds.append(head & 0x7F)
        place += 4 + int.from_bytes(content[place + 1 : place + 4])
        if head & 0x80:
            break
    assert kinds[0] == 0
    assert 4 in kinds
    assert content[place : place + 2] in (b"\xff\xf8", b"\xff\xf9"), "the first frame follows the last block"


@pytest.mark.parametrize("name", MARKED)
def test_one_file_of_several_utterances_has_one_mark(name: FormatName) -> None:
    """A decoder of a live stream would end at a tag in the middle."""
    options = AudioOptions(name, mark=MARK)
    file = options.new_shared_encoder(RATE)
    assert isinstance(file, SharedEncoder)
    content = b""
    for _ in range(3):
        utterance = SpeechEncoder(options, RATE, file)
        content += utterance.feed(tone()) + utterance.flush()
    assert content.count(SOURCE_TYPE.encode()) == written(name, MARK, whole=False).count(SOURCE_TYPE.encode()) > 0
    if name in ("mp3", "aac"):
        assert content.startswith(b"ID3")
        assert content.count(b"ID3") == 1
    _, samples = decoded(content)
    rate = FORMATS[name].sample_rate or {"opus": 48000}.get(name, RATE)
    assert len(samples) >= 3 * len(tone()) / RATE * rate


@pytest.mark.parametrize("name", MARKED)
def test_hostile_and_long_names_stay_inside_their_fields(name: FormatName) -> None:
    mark = AudioMark("Vivavoce", "m\0odel; voice=other\r\nX: y", "é" * 5000)
    content = written(name, mark, whole=True)
    facts = facts_of(read_tags(io.BytesIO(content)))
    assert facts["model"] == "m odel  voice=other  X: y"
    assert facts["voice"] == "é" * 200
    decoded(content)


def test_the_header_is_ascii_whatever_the_names_are() -> None:
    header = AudioMark("Vivavoce 1", 'a"b\\c', "Zoë\r\n").header()
    assert header == (
        f'digital-source-type="{SOURCE_TYPE}", software="Vivavoce 1", model="a%22b%5Cc", voice="Zo%C3%AB  "'
    )


def test_the_page_names_the_place_of_every_format() -> None:
    page = (Path(__file__).parents[2] / "docs/marked_audio.md").read_text(encoding="utf-8")
    table = page.partition("| format | place |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| (.+?) \| (.+) \|$", table, re.MULTILINE)
    names = {name.removesuffix(" (Ogg)"): place for row, place in rows for name in row.split(", ")}
    assert set(FORMATS) == {name for name in names if not name.startswith("-")}
    assert {name for name, place in names.items() if place.startswith("no place")} == set(FORMATS) - set(MARKED)
    assert SOURCE_TYPE in page


def test_a_file_at_the_end_of_the_sizes_still_has_a_header() -> None:
    chunks = MARK.wav_chunks()
    encoder = AudioOptions("wav", mark=MARK).new_encoder(RATE)
    head = encoder.head()
    assert encoder.complete(2**32 + 40)[4:8] == b"\xff" * 4
    assert len(encoder.complete(2**32 + 40)) == len(head) == WAV_HEADER_BYTES + len(chunks)


def test_marking_is_a_choice() -> None:
    assert load_settings({})[0].mark_audio == "off"
    assert open_marker("off") is None
    with pytest.raises(ValueError, match="mark-audio"):
        load_settings({"mark_audio": "sometimes"})


# ---- over HTTP and WebSockets


@pytest.fixture(scope="module")
def marking() -> Iterator[LiveServer]:
    with live_server(config=ServerConfig(mark_audio="metadata")) as running:
        yield running


def post(server: LiveServer, **fields: Any) -> httpx.Response:
    response = httpx.post(server.url + "/v1/audio/speech", json={**SPEECH, **fields})
    assert response.status_code == 200, response.text
    return response


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("name", FORMATS)
def test_responses_are_marked(marking: LiveServer, name: FormatName, stream: bool) -> None:
    response = post(marking, response_format=name, stream=stream)
    expected = AudioMark(SOFTWARE, "fake", "heart")
    assert response.headers[SYNTHETIC_HEADER] == expected.header()
    if name in MARKED:
        assert facts_of(read_tags(io.BytesIO(response.content))) == expected.facts()


def test_without_the_setting_nothing_is_marked(server: LiveServer, marking: LiveServer) -> None:
    plain = post(server, response_format="wav", stream=False)
    assert SYNTHETIC_HEADER not in plain.headers
    assert plain.content[36:40] == b"data"
    marked = post(marking, response_format="wav", stream=False)
    assert marked.content.endswith(plain.content[WAV_HEADER_BYTES:])


def test_a_request_that_brings_its_voice_names_none(marking: LiveServer) -> None:
    response = post(marking, voice="unknown", speaker_embedding=[0.5] * 8)
    assert f'voice="{OWN_VOICE}"' in response.headers[SYNTHETIC_HEADER]


def test_events_tell_the_facts_at_their_end(marking: LiveServer, server: LiveServer) -> None:
    last = {
        running.url: json.loads(post(running, stream_format="sse").text.strip().split("data: ")[-1])
        for running in (marking, server)
    }
    assert last[marking.url]["type"] == "speech.audio.done"
    assert last[marking.url]["synthetic_audio"] == AudioMark(SOFTWARE, "fake", "heart").facts()
    assert "synthetic_audio" not in last[server.url]


def test_elevenlabs_routes_and_batches_are_marked(marking: LiveServer) -> None:
    response = httpx.post(marking.url + "/v1/text-to-speech/heart", json={"text": "Marked."})
    assert facts_of(read_tags(io.BytesIO(response.content)))["voice"] == "heart"
    assert 'voice="heart"' in response.headers[SYNTHETIC_HEADER]
    batch = httpx.post(marking.url + "/v1/audio/speech/batch", json={"items": [SPEECH, {**SPEECH, "voice": "alloy"}]})
    assert batch.headers[SYNTHETIC_HEADER] == f'digital-source-type="{SOURCE_TYPE}", software="{SOFTWARE}"'
    files = [base64.b64decode(result["audio_data"]) for result in batch.json()["results"]]
    assert [facts_of(read_tags(io.BytesIO(file)))["voice"] for file in files] == ["heart", "alloy"]


@pytest.mark.parametrize("name", ["mp3", "pcm"])
async def test_live_speech_is_marked(marking: LiveServer, name: FormatName) -> None:
    facts = AudioMark(SOFTWARE, "fake", "heart").facts()
    async with dial(marking) as socket:
        assert socket.connection.response is not None
        assert SOURCE_TYPE in socket.connection.response.headers[SYNTHETIC_HEADER]
        await socket.configure(voice="heart", response_format=name)
        for _ in range(2):
            await socket.say("Marked.")
            await socket.send("input.done")
            utterance = await socket.utterance()
            assert utterance.start["synthetic_audio"] == facts
            if name == "mp3":
                assert facts_of(read_tags(io.BytesIO(utterance.audio))) == facts


async def test_live_speech_of_elevenlabs_has_one_mark(marking: LiveServer) -> None:
    query = "model_id=fake&output_format=mp3_44100_128"
    url = marking.url.replace("http", "ws") + f"/v1/text-to-speech/heart/stream-input?{query}"
    async with connect(url, proxy=None) as connection:
        for message in ({"text": " "}, {"text": "One. ", "flush": True}, {"text": "Two. "}, {"text": ""}):
            await connection.send(json.dumps(message))
        content = b""
        async for received in connection:
            answer = json.loads(received)
            content += base64.b64decode(answer.get("audio") or "")
    assert content.startswith(b"ID3")
    assert content.count(b"ID3") == 1
    assert facts_of(read_tags(io.BytesIO(content)))["voice"] == "heart"


@pytest.mark.parametrize("choice", ["metadata", "off"])
async def test_realtime_answers_the_handshake_with_the_header(choice: MarkChoice) -> None:
    with live_server(config=ServerConfig(mark_audio=choice)) as running:
        async with connect(running.url.replace("http", "ws") + "/v1/realtime", proxy=None) as connection:
            assert connection.response is not None
            assert (SYNTHETIC_HEADER in connection.response.headers) == (choice == "metadata")
