"""The transcript of OpenAI's Realtime socket, which keeps pace with the speech."""

from dataclasses import replace

import pytest
from vivavoce_engine import Engine, EngineConfig
from vivavoce_engine.fake_runner import FAKE_INFO, FakeRunner, fake_voices

from tests.server.test_realtime import TEXT, begin
from tests.server.test_realtime_interrupted import PARTS, truncate
from tests.support.live_server import LiveServer, live_server
from tests.support.realtime_socket import Heard, dial_realtime

TEXT_DELTA, AUDIO_DELTA = "response.output_audio_transcript.delta", "response.output_audio.delta"
CHAR_BYTES = 3840
"""Bytes of a character of the fake engine's speech in PCM."""


def told_at(heard: Heard) -> list[tuple[str, int]]:
    """The deltas of the transcript, each with the characters of speech before it."""
    told, audio = [], Heard()
    for event in heard.events:
        if event["type"] == AUDIO_DELTA:
            audio.events.append(event)
        elif event["type"] == TEXT_DELTA:
            told.append((event["delta"], sum(len(each["delta"]) * 3 // 4 for each in audio.events) // CHAR_BYTES))
    return told


async def test_a_delta_of_the_transcript_follows_the_audio_of_its_words(server: LiveServer) -> None:
    async with dial_realtime(server) as socket:
        await begin(socket)
        await socket.say(TEXT)
        heard = await socket.response()
    told = told_at(heard)
    assert len(told) > 2
    assert heard.transcript == TEXT
    reached = 0
    for delta, chars in told:
        reached += len(delta)
        if words := delta.rstrip(".?").split():
            assert TEXT.rindex(words[-1], 0, reached) < chars
    assert heard.response["output"][0]["content"] == [{"type": "output_audio", "transcript": TEXT}]


@pytest.mark.parametrize("settings", [{"speed": 2.0}, {"format": {"type": "audio/pcmu"}}])
async def test_the_transcript_is_whole_in_other_formats(server: LiveServer, settings: dict[str, object]) -> None:
    async with dial_realtime(server) as socket:
        await begin(socket, **settings)
        await socket.say(PARTS)
        heard = await socket.response()
    assert heard.transcript == PARTS
    assert heard.events[-1]["response"]["status"] == "completed"


async def test_a_model_without_word_times_tells_the_text_at_once_and_keeps_parts() -> None:
    info = replace(FAKE_INFO, word_times=False)
    with live_server(Engine(FakeRunner(info), EngineConfig(), fake_voices(info=info))) as server:
        async with dial_realtime(server) as socket:
            await begin(socket)
            await socket.add(PARTS)
            await socket.send("response.create")
            heard = await socket.response()
            assert told_at(heard) == [(PARTS, 0)]
            item_id = heard.response["output"][0]["id"]
            assert await truncate(socket, item_id, 1720) == "One. [pause:1s]"
            assert await truncate(socket, item_id, 399) == ""
