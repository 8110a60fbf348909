"""The text that was said when speech stopped: whole parts, the text that had begun, and frames."""

import io
import logging
import math
from dataclasses import replace

import av
import httpx
import numpy as np
import pytest
from vivavoce_engine import Engine, EngineConfig
from vivavoce_engine.fake_runner import FAKE_INFO, FakeRunner, fake_voices
from vivavoce_server import ServerConfig
from vivavoce_server.audio import AudioOptions, SpeechEncoder
from vivavoce_server.formats import FORMATS, FormatName
from vivavoce_server.jobs import SpeechJob, prepare
from vivavoce_server.said import PartTimes
from vivavoce_server.schemas import SpeechRequest

from tests.support.decoding import RAW
from tests.support.live_server import Gate, LiveServer, fake_engine, live_server
from tests.support.live_socket import dial, pcm_of
from tests.support.realtime_socket import dial_realtime
from tests.support.waiting import wait_until
from tests.text.pairs import pairs

TEXT = "One. [pause:1s] Two, three."
ENDS = [4, 15, len(TEXT)]
FRAME_MS = 80


def spoken(speed: float = 1.0) -> PartTimes:
    """Parts of 0.8 s, 1 s and, still open, 0.4 s."""
    times = PartTimes(speed, 0.08)
    for is_speech, seconds in ((True, 0.8), (False, 1.0), (True, 0.4)):
        times.begin(is_speech)
        times.add(seconds / 2)
        times.add(seconds / 2)
        if seconds != 0.4:
            times.end()
    return times


@pytest.mark.parametrize(
    ("sent_s", "texts", "begun", "frames"),
    [
        (0.0, [], "", 0),
        (0.01, [], "One.", 1),
        (0.79, [], "One.", 10),
        (0.8, ["One."], "", 10),
        (1.0, ["One."], " [pause:1s]", 10),
        (1.8, ["One.", " [pause:1s]"], "", 10),
        (1.97, ["One.", " [pause:1s]"], " Two, three.", 13),
        (math.inf, ["One.", " [pause:1s]"], " Two, three.", 15),
    ],
)
def test_whole_parts_count(sent_s: float, texts: list[str], begun: str, frames: int) -> None:
    ends_s = {"One.": 0.8, " [pause:1s]": 1.8}
    for speed in (1.0, 2.0):  # at twice the speed, the file has half of the seconds
        said = spoken(speed).said(TEXT, ENDS, sent_s / speed)
        assert ([part.text for part in said.parts], said.begun, said.frames) == (texts, begun, frames)
        assert [part.end_s for part in said.parts] == pytest.approx([ends_s[text] / speed for text in texts])


def test_a_part_counts_once_no_encoder_can_hold_it_back() -> None:
    times = spoken()
    assert [times.said(TEXT, ENDS, sent_s, held_s=0.3).text for sent_s in (0.8, 1.09, 1.11)] == ["", "", "One."]
    assert times.said(TEXT, ENDS, 0.8, held_s=0.3).begun == "One."


def test_the_last_part_is_whole_once_it_has_ended() -> None:
    times = spoken()
    times.end()
    assert times.said(TEXT, ENDS).text == TEXT


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("speed", [0.25, 0.5, 1.0, 1.5, 2.0, 4.0])
@pytest.mark.parametrize("rate", [None, 8000])
def test_no_encoder_holds_back_more_than_its_options_say(name: FormatName, speed: float, rate: int | None) -> None:
    options = AudioOptions(name, speed, rate)
    encoder = SpeechEncoder(options, 24000)
    noise = (0.1 * np.random.default_rng(0).standard_normal(48000)).astype(np.float32)
    content = b"".join(encoder.feed(noise[start : start + 1920]) for start in range(0, len(noise), 1920))
    held_s = len(noise) / 24000 / speed - seconds_of(content, name, options.rate_for(24000))
    assert held_s <= options.held_s(24000)
    encoder.flush()


def seconds_of(content: bytes, name: FormatName, rate: int) -> float:
    """Seconds of a file that has not ended."""
    if name in RAW or name == "wav":
        sample_bytes = 2 if name in ("pcm", "wav") else 1
        return (len(content) - 44 * (name == "wav")) / sample_bytes / rate
    samples = 0
    with av.open(io.BytesIO(content), "r", format={"opus": "ogg"}.get(name, name)) as file:
        for packet in file.demux(audio=0):
            try:
                samples += sum(frame.samples for frame in packet.decode())
            except av.error.InvalidDataError:
                continue
        decoded_rate: int = file.streams.audio[0].rate
    return samples / decoded_rate


# ---- parts of a whole text


async def job_of(server: LiveServer, text: str) -> SpeechJob:
    return await prepare(SpeechRequest(input=text), server.service).read()


async def test_the_parts_of_a_whole_text_end_in_what_was_written() -> None:
    with live_server(config=ServerConfig(max_part_chars=40)) as server:
        for pair in pairs()[::7]:
            text = (
                f"  It costs $5. {pair.written} [pause:1s] ... [pause:500ms]That **was** it, Mr. Smith said. [pause:1s]"
            )
            job = await job_of(server, text)
            ends = job.part_ends()
            assert len(ends) == len(job.parts)
            assert ends == sorted(ends)
            assert ends[-1] == len(text)
        text = "It is **5 km** away. [pause:1s] ... So it is."
        job = await job_of(server, text)
        assert [text[:end] for end in job.part_ends()] == [
            "It is **5 km** away.",
            "It is **5 km** away. [pause:1s]",
            text,
        ]


# ---- the live socket


def short_engine(gate: Gate) -> Engine:
    """An engine whose model speaks at most 20 characters as one utterance."""
    info = replace(FAKE_INFO, max_utterance_chars=20)
    return Engine(FakeRunner(info, before_step=gate), EngineConfig(), fake_voices(info=info))


async def test_an_interruption_tells_what_was_said() -> None:
    gate = Gate(hold_from_step=7)
    text = "One. [pause:1s]Two, three, four."
    with live_server(fake_engine(before_step=gate)) as server:
        async with dial(server) as socket:
            await socket.configure()
            await socket.say(text)
            await socket.send("input.done")
            await socket.expect("audio.start")
            audio = b""
            while len(audio) <= len(pcm_of(5, 5)) + 48000:
                audio += await socket.audio()
            await socket.send("input.cancel")
            rest, done = await socket.rest()
            gate.open()
    audio += rest
    frames = (len(audio) - 48000) // len(pcm_of(5, 1))
    assert 5 < frames <= 7
    assert done == {
        "type": "audio.done",
        "utterance_index": 0,
        "duration_ms": frames * FRAME_MS + 1000,
        "total_bytes": len(audio),
        "frames": frames,
        "cancelled": True,
        "parts": [
            {"text": "One.", "end_ms": 5 * FRAME_MS},
            {"text": " [pause:1s]", "end_ms": 5 * FRAME_MS + 1000},
        ],
        "spoken_text_chars": len("One. [pause:1s]"),
        "characters_per_minute": 750.0,
        "words_per_minute": 150.0,
        "text_begun": "Two,",
    }


async def test_the_text_of_a_part_that_was_not_sent_has_not_begun() -> None:
    """The next part is made while the first waits for its reader."""
    gate = Gate(hold_from_step=0)
    with live_server(fake_engine(before_step=gate)) as server:
        async with dial(server) as socket:
            await socket.configure()
            await socket.say("One two three ")
            await socket.expect("audio.start")
            await socket.send("input.cancel")
            done = await socket.expect("audio.done")
            gate.open()
    assert (done["parts"], done["text_begun"], done["frames"]) == ([], "", 0)


async def test_the_parts_of_a_model_of_short_texts_are_told_at_the_end() -> None:
    gate = Gate()
    gate.open()
    sentences = ["It is a long way.", " We went home.", " That was it."]
    with live_server(short_engine(gate)) as server:
        async with dial(server) as socket:
            await socket.configure()
            await socket.say("".join(sentences))
            await socket.send("input.done")
            done = (await socket.utterance()).done
    ends = np.cumsum([len(sentence.strip()) for sentence in sentences]) * FRAME_MS
    expected = [{"text": text, "end_ms": int(end)} for text, end in zip(sentences, ends, strict=True)]
    assert done["parts"] == expected
    assert "text_begun" not in done


async def test_what_a_slow_reader_was_not_sent_was_not_said(server: LiveServer) -> None:
    text = "".join(f"Word {number}. [pause:1s]" for number in range(60))
    async with dial(server, max_queue=1) as socket:
        await socket.configure()
        await socket.say(text)
        await socket.send("input.done")
        await socket.expect("audio.start")
        wait_until(lambda: server.engine.stats().running == 0)
        await socket.send("input.cancel")
        audio, done = await socket.rest()
    assert done["total_bytes"] == len(audio)
    said = "".join(part["text"] for part in done["parts"])
    assert text.startswith(said + done["text_begun"])
    assert all(part["end_ms"] <= done["duration_ms"] for part in done["parts"])


# ---- the log


@pytest.mark.parametrize("response_format", ["pcm", "mp3"])
async def test_the_log_tells_what_was_sent_before_it_was_given_up(
    response_format: str, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate(hold_from_step=3)
    with caplog.at_level(logging.INFO), live_server(fake_engine(before_step=gate)) as server:
        body = {"input": "Hello there, you.", "voice": "heart", "response_format": response_format}
        async with (
            httpx.AsyncClient() as client,
            client.stream("POST", server.url + "/v1/audio/speech", json=body) as response,
        ):
            await anext(response.aiter_raw())
        wait_until(
            lambda: any(record.__dict__.get("fields", {}).get("outcome") == "disconnected" for record in caplog.records)
        )
        gate.open()
    assert_told(caplog, "disconnected")


def assert_told(caplog: pytest.LogCaptureFixture, outcome: str) -> None:
    lines = [record.__dict__.get("fields", {}) for record in caplog.records]
    [fields] = [line for line in lines if line.get("outcome") == outcome]
    assert fields["model"] == "fake"
    assert 0 < fields["frames"] <= 4
    assert fields["audio_s"] == pytest.approx(fields["frames"] * 0.08)


@pytest.mark.parametrize("protocol", ["own", "realtime"])
async def test_the_log_tells_what_a_socket_was_sent(protocol: str, caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate(hold_from_step=3)
    with caplog.at_level(logging.INFO), live_server(fake_engine(before_step=gate)) as server:
        if protocol == "own":
            async with dial(server) as socket:
                await socket.configure()
                await socket.say("Hello there, you. ")
                await socket.expect("audio.start")
                await socket.audio()
                await socket.send("input.cancel")
                await socket.rest()
        else:
            async with dial_realtime(server) as realtime:
                await realtime.expect("session.created")
                await realtime.say("Hello there, you.")
                created = await realtime.until("response.output_audio.delta")
                await realtime.send("response.cancel", response_id=created.events[0]["response"]["id"])
                await realtime.response()
        gate.open()
    assert_told(caplog, "cancelled")
