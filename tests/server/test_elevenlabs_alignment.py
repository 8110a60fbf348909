"""Characters with their times in ElevenLabs' sockets, read as its clients read them."""

import base64
import json
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import elevenlabs.types
import pytest
from vivavoce_engine import Engine, EngineConfig
from vivavoce_engine.fake_runner import FAKE_INFO, FakeRunner, fake_voices
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from tests.server.test_elevenlabs_multi import Contexts, close, flush, text
from tests.support.live_server import LiveServer, live_server

CHAR_MS = 80
TEXT = "Hello there, it costs $5. **So** be it."


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with live_server() as running:
        yield running


async def spoken(server: LiveServer, fragments: list[str], query: str = "") -> list[dict[str, Any]]:
    """The messages with audio or characters of one text."""
    url = server.url.replace("http", "ws") + f"/v1/text-to-speech/heart/stream-input?output_format=pcm_24000&{query}"
    async with connect(url, proxy=None) as connection:
        for fragment in (" ", *fragments, ""):
            await connection.send(json.dumps({"text": fragment}))
        messages = []
        try:
            while True:
                messages.append(json.loads(await connection.recv()))
        except ConnectionClosed:
            pass
    assert messages.pop() == {"isFinal": True}
    return messages


async def in_contexts(server: LiveServer, query: str, *texts: str) -> list[dict[str, Any]]:
    """The messages of one context, in which each text is flushed."""
    url = server.url.replace("http", "ws") + "/v1/text-to-speech/heart/multi-stream-input"
    async with connect(f"{url}?{query}", proxy=None) as connection:
        client = Contexts(connection)
        for words in texts:
            await client.send(text("a", words), flush("a"))
        await client.send(close("a"))
        await client.until_finals(1)
    return client.messages["a"]


def chars_of(messages: list[dict[str, Any]], field: str = "alignment") -> str:
    return "".join(char for message in messages if message[field] for char in message[field]["chars"])


Timed = list[tuple[str, float]]
"""Words with the seconds at which they begin."""


def as_pipecat(messages: list[dict[str, Any]], field: str = "alignment") -> Timed:
    """Times restart with each alignment, whose end is the beginning of the next. A space ends a word."""
    words: Timed = []
    clock_ms, word, start_ms = 0, "", 0
    for alignment in (message[field] for message in messages if message[field]):
        for char, char_ms in zip(alignment["chars"], alignment["charStartTimesMs"], strict=True):
            if char == " " and word:
                words.append((word, start_ms / 1000))
                word = ""
            elif char != " ":
                start_ms = start_ms if word else clock_ms + char_ms
                word += char
        clock_ms += alignment["charStartTimesMs"][-1] + alignment["charDurationsMs"][-1]
    assert not word, "the last word was never ended"
    return words


def as_livekit(messages: list[dict[str, Any]], field: str = "normalizedAlignment") -> Timed:
    """Times are those of the file. Words are split in the joined text."""
    chars = [char for message in messages if message[field] for char in message[field]["chars"]]
    starts_ms = [start for message in messages if message[field] for start in message[field]["charStartTimesMs"]]
    words: Timed = []
    for number, (char, start_ms) in enumerate(zip(chars, starts_ms, strict=True)):
        if char == " ":
            continue
        if number and chars[number - 1] != " ":
            words[-1] = (words[-1][0] + char, words[-1][1])
        else:
            words.append((char, start_ms / 1000))
    return words


def expected(said: str, begin_ms: int = 0) -> Timed:
    """The words of a text of the fake engine, whose characters take equal times."""
    words: Timed = []
    at = 0
    for word in said.split():
        at = said.index(word, at)
        words.append((word, (begin_ms + at * CHAR_MS) / 1000))
        at += len(word)
    return words


async def test_pipecat_reads_the_words_of_the_text(server: LiveServer) -> None:
    messages = await spoken(server, ["Hello there, ", "it costs $5."])
    assert chars_of(messages) == "Hello there, it costs $5. "
    assert as_pipecat(messages) == expected("Hello there, it costs $5.")


async def test_livekit_reads_the_words_of_the_file(server: LiveServer) -> None:
    messages = await in_contexts(server, "output_format=pcm_24000&sync_alignment=true", "Hello there.", "How is it?")
    first, second = expected("Hello there."), expected("How is it?", 12 * CHAR_MS)
    assert as_livekit(messages) == first + second
    assert as_livekit(messages, "alignment") == first + second


async def test_utterances_of_a_context_follow_each_other(server: LiveServer) -> None:
    messages = await in_contexts(server, "output_format=pcm_24000", "Hello there.", "How is it?")
    assert as_pipecat(messages) == expected("Hello there.") + expected("How is it?", 12 * CHAR_MS)


async def test_the_silence_between_utterances_of_an_mp3_counts(server: LiveServer) -> None:
    """The encoder's last frames are pushed out by silence, which stays in the file."""
    messages = await in_contexts(
        server, "output_format=mp3_44100_128&sync_alignment=true", "Hello there.", "How is it?"
    )
    pushed_ms = 4 * 1152 / 44.1
    for (word, start_s), (wanted, at_s) in zip(
        as_livekit(messages), expected("Hello there.") + expected("How is it?", 12 * CHAR_MS), strict=True
    ):
        second = at_s >= 12 * CHAR_MS / 1000
        assert word == wanted
        assert start_s == pytest.approx(at_s + second * pushed_ms / 1000, abs=0.0015)


async def test_each_form_of_the_text_has_its_own_characters(server: LiveServer) -> None:
    messages = await spoken(server, ["**It** costs $5."], "apply_text_normalization=on&sync_alignment=true")
    assert chars_of(messages) == "**It** costs $5. "
    assert chars_of(messages, "normalizedAlignment") == "It costs five dollars. "
    assert as_livekit(messages) == expected("It costs five dollars.")
    written = dict(as_livekit(messages, "alignment"))
    assert (written["costs"], written["$5."]) == (3 * CHAR_MS / 1000, 9 * CHAR_MS / 1000)


@pytest.mark.parametrize("query", ["", "sync_alignment=true"])
async def test_characters_and_times_are_the_same_for_any_fragments(server: LiveServer, query: str) -> None:
    draw = random.Random(7)
    read = as_livekit if query else as_pipecat
    whole = await spoken(server, [TEXT], query)
    for _ in range(4):
        cuts = sorted(draw.sample(range(1, len(TEXT)), 6))
        fragments = [TEXT[start:end] for start, end in zip([0, *cuts], [*cuts, len(TEXT)], strict=True)]
        messages = await spoken(server, fragments, query)
        for field in ("alignment", "normalizedAlignment"):
            assert chars_of(messages, field) == chars_of(whole, field)
            assert read(messages, field) == read(whole, field)


async def test_no_character_is_told_before_its_audio(server: LiveServer) -> None:
    told_ms = 0
    for message in await spoken(server, [TEXT], "sync_alignment=true"):
        told_ms += len(base64.b64decode(message["audio"])) // 48
        for field in ("alignment", "normalizedAlignment"):
            for start_ms in (message[field] or {"charStartTimesMs": []})["charStartTimesMs"]:
                assert start_ms <= told_ms


async def test_elevenlabs_types_read_them(server: LiveServer) -> None:
    for message in await spoken(server, [TEXT]):
        if message["alignment"] is not None:
            alignment = elevenlabs.types.Alignment.model_validate(message["alignment"])
            normalized = elevenlabs.types.NormalizedAlignment.model_validate(message["normalizedAlignment"])
            for each in (alignment, normalized):
                assert each.chars is not None
                assert each.char_start_times_ms is not None
                assert each.char_durations_ms is not None
                assert len(each.chars) == len(each.char_start_times_ms) == len(each.char_durations_ms)
                assert min(each.char_durations_ms) >= 0


async def test_a_model_without_word_times_tells_none() -> None:
    info = replace(FAKE_INFO, word_times=False)
    engine = Engine(FakeRunner(info), EngineConfig(), fake_voices(info=info))
    with live_server(engine) as server:
        messages = await spoken(server, ["Hello there."])
        assert len(b"".join(base64.b64decode(message["audio"]) for message in messages)) == 12 * 3840
        assert all(message["alignment"] is message["normalizedAlignment"] is None for message in messages)
        assert all(message["audio"] for message in messages)
