"""Leading silence: which samples are dropped, and that every way to speech drops the same."""

import base64
import json
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vivavoce_engine.fake_runner import SAMPLE_RATE, SAMPLES_PER_FRAME
from vivavoce_server import ServerConfig
from vivavoce_server.effects import Samples
from vivavoce_server.leading_silence import KEPT_S, LEVEL, LONGEST_S, LeadingSilence
from websockets.asyncio.client import connect

from tests.support.late_voice import KEPT_SAMPLES, LEAD_SAMPLES, late_engine, late_pcm, trimmed_pcm
from tests.support.live_server import Gate, LiveServer, live_server
from tests.support.live_socket import dial
from tests.support.realtime_socket import dial_realtime
from tests.support.wyoming_client import dial_wyoming
from tests.support.wyoming_server import wyoming_server

KEPT = round(KEPT_S * SAMPLE_RATE)
STEP = SAMPLE_RATE // 200
"""Samples in 5 ms, the steps in which the speech's beginning is found."""
TEXT = "Hello."
FRAMES = len(TEXT)
HEARD_FRAMES = FRAMES - 1
"""Codec frames of the speech and the silence that stays: 130 ms less, so that the last one is not whole."""
BODY = {"input": TEXT, "voice": "heart", "seed": 5, "response_format": "pcm"}


# ---- the samples ----------------------------------------------------------------------------------------------


def noise(samples: int, rms: float) -> Samples:
    """White noise of exactly this RMS in every 5 ms."""
    drawn = np.random.default_rng(0).standard_normal((-(-samples // STEP), STEP))
    level = rms / np.sqrt(np.mean(drawn**2, axis=1, keepdims=True))
    wave: Samples = (drawn * level).reshape(-1)[:samples].astype(np.float32)
    return wave


def after(silence: Samples, speech: Samples | None = None) -> Samples:
    return np.concatenate([silence, noise(12000, 0.1) if speech is None else speech])


def heard(pcm: Samples, piece_samples: int = SAMPLES_PER_FRAME) -> Samples:
    """All that a listener hears of these samples, which come in pieces."""
    beginning = LeadingSilence(SAMPLE_RATE)
    pieces = [beginning.feed(pcm[at : at + piece_samples]) for at in range(0, len(pcm), piece_samples)]
    return np.concatenate([*pieces, beginning.flush()])


@pytest.mark.parametrize("lead", [600, 1200, 2280, 9600, 17760])
def test_all_but_20_ms_of_silence_is_dropped(lead: int) -> None:
    pcm = after(noise(lead, LEVEL / 2))
    np.testing.assert_array_equal(heard(pcm), pcm[lead - KEPT :])


@settings(deadline=None)
@given(st.integers(0, 5000), st.integers(40, 5000))
def test_no_cut_of_the_samples_changes_the_result(lead: int, piece_samples: int) -> None:
    pcm = after(np.zeros(lead, np.float32), noise(2400, 0.1))
    np.testing.assert_array_equal(heard(pcm, piece_samples), heard(pcm, len(pcm)))
    dropped = len(pcm) - len(heard(pcm))
    assert abs(dropped - max(0, lead - KEPT)) < STEP


@pytest.mark.parametrize("onset", range(480, 480 + 1920, 120))
def test_speech_is_heard_with_the_frame_that_holds_it(onset: int) -> None:
    """No sample of it waits for a later frame, wherever in a frame it begins."""
    pcm = after(np.zeros(onset, np.float32))
    beginning = LeadingSilence(SAMPLE_RATE)
    frames = -(-(onset + 1) // SAMPLES_PER_FRAME)
    got = [beginning.feed(frame) for frame in np.split(pcm[: frames * SAMPLES_PER_FRAME], frames)]
    np.testing.assert_array_equal(np.concatenate(got), pcm[onset - KEPT : frames * SAMPLES_PER_FRAME])


def test_after_the_first_speech_all_samples_pass() -> None:
    pcm = np.concatenate([after(np.zeros(2400, np.float32)), after(np.zeros(24000, np.float32))])
    np.testing.assert_array_equal(heard(pcm), pcm[2400 - KEPT :])


def test_the_click_of_a_decoder_that_begins_is_no_speech() -> None:
    click = np.concatenate([noise(240, 0.006), noise(240, 0.002), np.zeros(1920, np.float32)])
    np.testing.assert_array_equal(heard(after(click)), after(click)[2400 - KEPT :])


def test_speech_from_the_first_sample_on_is_whole() -> None:
    pcm = noise(12000, 0.1)
    np.testing.assert_array_equal(heard(pcm), pcm)


def test_the_rise_of_a_soft_consonant_stays() -> None:
    """A consonant of 60 ms at -50 dBFS, 30 dB below a vowel, and 20 ms of its rise below the level."""
    rise, consonant = noise(KEPT, LEVEL / 3), noise(1440, 10 ** (-50 / 20))
    pcm = np.concatenate([np.zeros(2400, np.float32), rise, consonant, noise(12000, 0.1)])
    np.testing.assert_array_equal(heard(pcm), pcm[2400:])


@pytest.mark.parametrize("samples", [0, 100, SAMPLES_PER_FRAME, SAMPLE_RATE])
def test_an_utterance_without_speech_is_whole(samples: int) -> None:
    pcm = noise(samples, LEVEL / 2)
    np.testing.assert_array_equal(heard(pcm), pcm)


@pytest.mark.parametrize("piece_samples", [SAMPLES_PER_FRAME, 5 * SAMPLE_RATE])
def test_quiet_speech_is_whole_and_goes_on_after_a_while(piece_samples: int) -> None:
    pcm = after(noise(3 * SAMPLE_RATE, LEVEL / 2))
    np.testing.assert_array_equal(heard(pcm, piece_samples), pcm)
    beginning, most = LeadingSilence(SAMPLE_RATE), round(LONGEST_S * SAMPLE_RATE)
    assert [len(beginning.feed(pcm[:size])) for size in (most - 1, 1, 7)] == [0, most, 7]


def test_a_fault_does_not_wait() -> None:
    """Samples that are not numbers end the speech where they come, which the encoder sees to."""
    assert len(LeadingSilence(SAMPLE_RATE).feed(np.full(SAMPLES_PER_FRAME, np.nan, np.float32))) == SAMPLES_PER_FRAME


def test_keep_passes_all_samples() -> None:
    pcm = np.zeros(4800, np.float32)
    assert LeadingSilence(SAMPLE_RATE, "keep").feed(pcm) is pcm


# ---- every way to speech --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def late() -> Iterator[LiveServer]:
    with live_server(late_engine()) as running:
        yield running


@pytest.fixture(scope="module")
def keeping() -> Iterator[LiveServer]:
    """A server whose operator keeps the silence."""
    with live_server(late_engine(), ServerConfig(leading_silence="keep")) as running:
        yield running


def post(server: LiveServer, **fields: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/audio/speech", json={**BODY, **fields})


@pytest.mark.parametrize("stream", [True, False])
def test_a_request_overrides_the_operator_who_overrides_trim(
    stream: bool, late: LiveServer, keeping: LiveServer
) -> None:
    for server, choice, expected in (
        (late, None, trimmed_pcm(5, FRAMES)),
        (late, "keep", late_pcm(5, FRAMES)),
        (keeping, None, late_pcm(5, FRAMES)),
        (keeping, "trim", trimmed_pcm(5, FRAMES)),
    ):
        assert post(server, stream=stream, leading_silence=choice).content == expected


@pytest.mark.parametrize("choice", ["no", True, 20])
def test_another_choice_is_refused_by_name(choice: object, late: LiveServer) -> None:
    answer = post(late, leading_silence=choice)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == "leading_silence"
    assert "'trim' or 'keep'" in error["message"]


@pytest.mark.parametrize("name", ["wav", "flac", "opus", "mp3", "aac"])
def test_a_file_is_the_join_of_its_stream(name: str, late: LiveServer) -> None:
    whole = post(late, response_format=name, stream=False).content
    streamed = post(late, response_format=name).content
    # The part of a head that tells the length of a whole file; an mp3's is its first frame, at 128 kbit/s and 24 kHz.
    lengths = {"wav": 44, "flac": 26, "mp3": 72 * 128_000 // 24_000}
    assert len(whole) == len(streamed)
    if name != "opus":  # each file has a serial number of its own
        assert whole[lengths.get(name, 0) :] == streamed[lengths.get(name, 0) :]


def test_the_silence_that_a_text_asks_for_stays(late: LiveServer) -> None:
    pause = bytes(2 * SAMPLE_RATE)
    part = late_pcm(5, FRAMES)
    assert post(late, input=f"[pause:1s]{TEXT}").content == pause + trimmed_pcm(5, FRAMES)
    assert post(late, input=f"{TEXT}[pause:1s]{TEXT}").content == trimmed_pcm(5, FRAMES) + pause + part


def test_usage_counts_the_frames_that_are_heard(late: LiveServer) -> None:
    for choice, frames in (("trim", HEARD_FRAMES), ("keep", FRAMES)):
        headers = post(late, stream=False, leading_silence=choice).headers
        assert (headers["x-usage-input-tokens"], headers["x-usage-output-tokens"]) == (str(FRAMES), str(frames))


def test_events_carry_audio_alone(late: LiveServer) -> None:
    lines = post(late, stream_format="sse").text.splitlines()
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    deltas = [base64.b64decode(event["audio"]) for event in events if event["type"] == "speech.audio.delta"]
    assert all(deltas)
    assert b"".join(deltas) == trimmed_pcm(5, FRAMES)


@pytest.mark.parametrize(("name", "head"), [("wav", b"RIFF"), ("flac", b"fLaC"), ("opus", b"OggS"), ("pcm", None)])
def test_status_and_head_are_there_with_the_first_frame(name: str, head: bytes | None) -> None:
    """The first frame holds silence alone, and the engine makes no second one."""
    gate = Gate(hold_from_step=1)
    with live_server(late_engine(before_step=gate)) as server, httpx.Client() as client:
        request = client.build_request("POST", f"{server.url}/v1/audio/speech", json={**BODY, "response_format": name})
        response = client.send(request, stream=True)
        assert response.status_code == 200
        pieces = response.iter_raw()
        if head is not None:
            assert next(pieces).startswith(head)
        assert server.engine.stats().frames <= 1
        gate.open()
        assert len(b"".join(pieces)) > 100


@pytest.mark.parametrize("speed", [1.0, 2.0])
def test_words_are_earlier_by_what_is_dropped(late: LiveServer, speed: float) -> None:
    dropped_s = (LEAD_SAMPLES - KEPT_SAMPLES) / SAMPLE_RATE
    fields = {"input": "One two.", "word_timestamps": True, "stream": False, "speed": speed}
    kept, trimmed = (
        json.loads(post(late, **fields, leading_silence=choice).headers["x-word-timestamps"])
        for choice in ("keep", "trim")
    )
    assert [word["word"] for word in trimmed] == ["One", "two"]
    assert trimmed[1]["start_ms"] == pytest.approx(kept[1]["start_ms"] - 1000 * dropped_s / speed, abs=1)
    assert trimmed[0]["start_ms"] == 0  # the fake voice says that the word begins in the silence


def test_a_batch_is_trimmed_item_by_item(late: LiveServer) -> None:
    body = {**BODY, "items": [{"input": TEXT}, {"input": TEXT, "leading_silence": "keep"}]}
    del body["input"]
    results = httpx.post(f"{late.url}/v1/audio/speech/batch", json=body).json()["results"]
    heard = [base64.b64decode(result["audio_data"]) for result in results]
    assert heard == [trimmed_pcm(5, FRAMES), late_pcm(5, FRAMES)]


async def test_each_utterance_of_a_socket_is_trimmed(late: LiveServer) -> None:
    async with dial(late) as socket:
        await socket.configure()
        for _ in range(2):
            await socket.say(*TEXT)
            await socket.send("input.done")
            utterance = await socket.utterance()
            assert utterance.audio == trimmed_pcm(5, FRAMES)
            samples = FRAMES * SAMPLES_PER_FRAME - LEAD_SAMPLES + KEPT_SAMPLES
            assert utterance.done["duration_ms"] == round(1000 * samples / SAMPLE_RATE)
        await socket.send("session.config", voice="heart", seed=5, leading_silence="keep")
        await socket.say(TEXT)
        await socket.send("input.done")
        assert (await socket.utterance()).audio == late_pcm(5, FRAMES)


async def test_a_socket_refuses_another_choice_by_name(late: LiveServer) -> None:
    async with dial(late) as socket:
        await socket.send("session.config", voice="heart", leading_silence="drop")
        assert (await socket.error())["param"] == "leading_silence"


async def test_a_pause_before_the_speech_of_a_socket_stays(late: LiveServer) -> None:
    async with dial(late) as socket:
        await socket.configure()
        await socket.say("[pau", "se:1s]", TEXT)
        await socket.send("input.done")
        assert (await socket.utterance()).audio == bytes(2 * SAMPLE_RATE) + trimmed_pcm(5, FRAMES)


async def test_a_file_of_several_utterances_begins_with_one_head(late: LiveServer) -> None:
    """ElevenLabs' socket: the second utterance has no head, and its silence is dropped too."""
    path = "/v1/text-to-speech/heart/stream-input?output_format=wav_24000&seed=5"
    audio = b""
    async with connect(late.url.replace("http", "ws") + path, proxy=None) as socket:
        for message in ({"text": f"{TEXT} ", "flush": True}, {"text": f"{TEXT} ", "flush": True}, {"text": ""}):
            await socket.send(json.dumps(message))
        async for answer in socket:
            audio += base64.b64decode(json.loads(answer).get("audio") or "")
    assert audio[:4] == b"RIFF"
    assert audio[44:] == 2 * trimmed_pcm(5, FRAMES)


async def test_a_response_of_the_realtime_socket_is_trimmed(late: LiveServer) -> None:
    async with dial_realtime(late) as socket:
        await socket.expect("session.created")
        await socket.say(TEXT)
        response = await socket.response()
    samples = np.frombuffer(response.audio, "<i2")
    assert len(samples) == FRAMES * SAMPLES_PER_FRAME - LEAD_SAMPLES + KEPT_SAMPLES
    assert not samples[:KEPT_SAMPLES].any()
    assert response.response["usage"]["output_tokens"] == HEARD_FRAMES


async def test_home_assistants_protocol_is_trimmed() -> None:
    for choice, silent in (("trim", KEPT_SAMPLES), ("keep", LEAD_SAMPLES)):
        config = ServerConfig(grace_s=0, leading_silence=choice)  # type: ignore[arg-type]
        with wyoming_server(late_engine(), config) as server:
            async with dial_wyoming(server.port) as client:
                await client.send("synthesize", text=TEXT)
                spoken = await client.until("audio-stop")
        samples = np.frombuffer(spoken.audio, "<i2")
        assert len(samples) == FRAMES * SAMPLES_PER_FRAME - LEAD_SAMPLES + silent
        assert not samples[:silent].any()


def test_metrics_count_what_was_sent() -> None:
    with live_server(late_engine()) as server:
        post(server)
        lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    (made,) = [line for line in lines if line.startswith("vivavoce_audio_seconds_total")]
    assert float(made.split()[-1]) == pytest.approx(len(trimmed_pcm(5, FRAMES)) / 2 / SAMPLE_RATE)
