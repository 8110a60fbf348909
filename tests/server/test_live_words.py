"""Word times on the live socket: audio.words among the audio, and the characters that an interruption tells."""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import pytest
from vivavoce_engine import Engine, EngineConfig
from vivavoce_engine.fake_runner import FAKE_INFO, FakeRunner, fake_voices

from tests.support.live_server import Gate, LiveServer, fake_engine, live_server
from tests.support.live_socket import Socket, dial, pcm_of

CHAR_S = 0.08
BYTES_PER_S = 48000
TEXT = "It costs $5.50, Mr. Smith. [pause:1s] So **be** it: today, tomorrow and always!"


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with live_server() as running:
        yield running


@dataclass
class Heard:
    """An utterance with its words. `told_s` has the seconds of audio before each message about words."""

    audio: bytes = b""
    words: list[dict[str, Any]] = field(default_factory=list)
    told_s: list[tuple[float, list[dict[str, Any]]]] = field(default_factory=list)
    done: dict[str, Any] = field(default_factory=dict)


async def hear(socket: Socket, index: int = 0) -> Heard:
    heard = Heard()
    await socket.expect("audio.start")
    while not heard.done:
        message = await socket.receive()
        if isinstance(message, bytes):
            heard.audio += message
        elif message["type"] == "audio.words":
            assert message["utterance_index"] == index
            assert message["words"]
            heard.words += message["words"]
            heard.told_s.append((len(heard.audio) / BYTES_PER_S, message["words"]))
        else:
            assert message["type"] == "audio.done", message
            heard.done = message
    return heard


async def speak(server: LiveServer, *fragments: str, **config: object) -> Heard:
    async with dial(server) as socket:
        await socket.configure(word_timestamps=True, **config)
        await socket.say(*fragments)
        await socket.send("input.done")
        return await hear(socket)


def short_engine(most_chars: int) -> Engine:
    """An engine whose model speaks at most `most_chars` characters as one utterance."""
    info = replace(FAKE_INFO, max_utterance_chars=most_chars)
    return Engine(FakeRunner(info), EngineConfig(), fake_voices(info=info))


async def test_words_are_those_that_were_sent(server: LiveServer) -> None:
    heard = await speak(server, "Hello there, ", "you.")
    assert heard.words == [
        {"word": "Hello", "start": 0.0, "end": 0.4, "text_start": 0, "text_end": 5},
        {"word": "there", "start": 0.48, "end": 0.96, "text_start": 6, "text_end": 11},
        {"word": "you", "start": 1.04, "end": 1.36, "text_start": 13, "text_end": 16},
    ]
    assert heard.audio == pcm_of(5, len("Hello there, you."))
    assert heard.done["spoken_text_chars"] == len("Hello there, you.")


async def test_words_go_through_reading_pauses_and_speed(server: LiveServer) -> None:
    heard = await speak(server, TEXT, normalize=True, speed=2.0)
    words = {word["word"]: word for word in heard.words}
    assert list(words) == [
        "It",
        "costs",
        "$5.50",
        "Mr.",
        "Smith",
        "So",
        "be",
        "it",
        "today",
        "tomorrow",
        "and",
        "always",
    ]
    for word in heard.words:
        assert TEXT[word["text_start"] : word["text_end"]] == word["word"]
    first = "It costs five dollars and fifty cents, Mister Smith."
    at = first.index("five")
    assert words["$5.50"]["start"] == pytest.approx(at * CHAR_S / 2, abs=0.001)
    assert words["$5.50"]["end"] == pytest.approx(first.index(" Mister") * CHAR_S / 2, abs=0.001)
    # The pause lasts as long as its tag says, at any speed. The blank behind it belongs to the next part.
    assert words["So"]["start"] == pytest.approx(len(f"{first} ") * CHAR_S / 2 + 1, abs=0.001)


@pytest.mark.parametrize("most_chars", [None, 24])
async def test_words_are_the_same_for_any_fragments(most_chars: int | None) -> None:
    draw = random.Random(3)
    engine = fake_engine() if most_chars is None else short_engine(most_chars)
    with live_server(engine) as server:
        whole = await speak(server, TEXT, normalize=True)
        assert [word["text_end"] for word in whole.words] == sorted(word["text_end"] for word in whole.words)
        for _ in range(4):
            cuts = sorted(draw.sample(range(1, len(TEXT)), draw.choice((1, 5, 30))))
            fragments = [TEXT[start:end] for start, end in zip([0, *cuts], [*cuts, len(TEXT)], strict=True)]
            heard = await speak(server, *fragments, normalize=True)
            assert (heard.words, heard.audio) == (whole.words, whole.audio)


@pytest.mark.parametrize("config", [{}, {"response_format": "wav"}])
async def test_no_word_comes_before_the_audio_in_which_it_begins(server: LiveServer, config: dict[str, object]) -> None:
    heard = await speak(server, TEXT, **config)
    assert len(heard.told_s) > 3
    for told_s, words in heard.told_s:
        assert all(word["start"] < told_s for word in words)


async def test_words_of_a_compressed_file_come_before_its_end(server: LiveServer) -> None:
    plain, heard = await speak(server, TEXT), await speak(server, TEXT, response_format="mp3")
    assert heard.words == plain.words
    assert heard.done["spoken_text_chars"] == len(TEXT)


async def test_sentences_are_utterances_with_words_of_their_own(server: LiveServer) -> None:
    async with dial(server) as socket:
        await socket.configure(timestamp_granularities=["word"], split="sentence")
        await socket.say("One two. Three four.")
        await socket.send("input.done")
        words = [(await hear(socket, index)).words for index in range(2)]
    assert [[word["word"] for word in sentence] for sentence in words] == [["One", "two"], ["Three", "four"]]
    assert [sentence[0]["text_start"] for sentence in words] == [0, 0]


async def test_words_come_only_if_they_are_asked_for(server: LiveServer) -> None:
    async with dial(server) as socket:
        await socket.configure()
        await socket.say("Hello there.")
        await socket.send("input.done")
        assert (await socket.utterance()).audio == pcm_of(5, len("Hello there."))
        await socket.send("session.config", voice="heart", seed=5, word_timestamps=True)
        await socket.say("Hello there.")
        await socket.send("input.done")
        assert [word["word"] for word in (await hear(socket, 1)).words] == ["Hello", "there"]


@pytest.mark.parametrize("field", [{"word_timestamps": True}, {"timestamp_granularities": ["word"]}])
async def test_a_model_without_word_times_refuses_and_tells_parts(field: dict[str, object]) -> None:
    info = replace(FAKE_INFO, word_times=False)
    with live_server(Engine(FakeRunner(info), EngineConfig(), fake_voices(info=info))) as server:
        async with dial(server) as socket:
            await socket.send("session.config", voice="heart", seed=5, **field)
            error = await socket.error()
            assert (error["param"], error["code"]) == (next(iter(field)), "not_available")
            await socket.configure()
            await socket.say("One. [pause:1s]Two, three.")
            await socket.send("input.done")
            done = (await socket.utterance()).done
            assert done["spoken_text_chars"] == len("One. [pause:1s]Two, three.")


async def test_an_interruption_tells_the_last_word_that_was_sent() -> None:
    """The fake engine's times are certain at once, so each word that was sent counts."""
    gate = Gate(hold_from_step=10)
    text = "One two three four five six seven."
    with live_server(fake_engine(before_step=gate)) as server:
        async with dial(server) as socket:
            await socket.configure()
            await socket.say(text)
            await socket.send("input.done")
            await socket.expect("audio.start")
            audio = b""
            while len(audio) < 8 * len(pcm_of(5, 1)):
                audio += await socket.audio()
            await socket.send("input.cancel")
            rest, done = await socket.rest()
            gate.open()
    chars = len(audio + rest) // len(pcm_of(5, 1))
    said = max((end for end in (3, 7, 13) if end <= chars), default=0)
    assert said >= 7
    assert done["spoken_text_chars"] == said
    assert done["parts"] == [{"text": text[:said], "end_ms": said * 80}]
    assert done["text_begun"] == " three" if said == 7 else " four"


async def test_words_of_audio_that_was_dropped_are_not_told() -> None:
    text = "".join(f"Word {number} is here. " for number in range(200))
    with live_server() as server:
        async with dial(server, max_queue=1) as socket:
            await socket.configure(word_timestamps=True)
            await socket.say(text)
            await socket.send("input.done")
            await socket.expect("audio.start")
            await socket.audio()
            await socket.send("input.cancel")
            heard = Heard()
            while not heard.done:
                message = await socket.receive()
                if isinstance(message, bytes):
                    heard.audio += message
                elif message["type"] == "audio.words":
                    heard.words += message["words"]
                else:
                    heard.done = message
    sent_s = heard.done["duration_ms"] / 1000
    assert all(word["start"] < sent_s for word in heard.words)
    assert text[: heard.done["spoken_text_chars"]] == "".join(part["text"] for part in heard.done["parts"])


async def test_speech_that_a_limit_ends_tells_the_words_before_the_cut(server: LiveServer) -> None:
    text = "One [link](https://a.example/b) two three."
    spoken = "One link two three."
    cut = spoken.index(" three") + 3
    heard = await speak(server, text, normalize=True, max_new_tokens=cut)
    assert [word["word"] for word in heard.words] == ["One", "link", "two"]
    said = "One [link](https://a.example/b) two"
    assert heard.done["parts"] == [{"text": said, "end_ms": round(len("One link two") * CHAR_S * 1000)}]
    assert (heard.done["spoken_text_chars"], heard.done["text_begun"]) == (len(said), " three.")
    assert (heard.done["frames"], heard.done["finish_reason"]) == (cut, "length")
    heard = await speak(server, text, normalize=True, max_new_tokens=len("One link t"))
    assert [part["text"] for part in heard.done["parts"]] == ["One [link](https://a.example/b)"]
    assert heard.done["text_begun"] == " two"


async def test_parts_behind_one_that_a_limit_ended_are_spoken_but_not_counted() -> None:
    text = "One two. [pause:1s]Four."
    with live_server() as server:
        heard = await speak(server, text, max_new_tokens=len("One t"))
    assert [word["word"] for word in heard.words] == ["One", "Four"]
    assert [part["text"] for part in heard.done["parts"]] == ["One"]
    assert heard.done["text_begun"] == " two."


@pytest.mark.parametrize(
    "text",
    [
        "Hello there \U0001f600, you. [pause:1s] \U0001f44d\U0001f3fd Yes!",
        " [pause:1s] Hello! [pause:1s]  Bye.",
        "One. [voice:michael] Two \U0001f600. [voice:heart]\nThree.",
        "[voice:michael] Hi\U0001f600there. Yes!",
    ],
)
@pytest.mark.parametrize("normalize", [True, False])
async def test_live_text_has_the_words_and_times_of_the_same_text_at_once(text: str, normalize: bool) -> None:
    fields = {"normalize": normalize, "response_format": "pcm", "turn_pause_s": 0.2}
    with live_server(short_engine(1000)) as server:
        heard = await speak(server, text[:7], text[7:], **fields)
        async with httpx.AsyncClient() as client:
            asked = {"stream_format": "sse", "word_timestamps": True, **fields}
            body = {"input": text, "voice": "heart", "seed": 5, **asked}
            answer = await client.post(server.url + "/v1/audio/speech", json=body)
    done = json.loads(answer.text.strip().splitlines()[-1].removeprefix("data: "))
    assert done["words"] == heard.words
    assert done["usage"]["output_tokens"] == heard.done["frames"]


async def test_speech_that_does_not_end_by_itself_tells_the_words_before_its_end() -> None:
    info = replace(FAKE_INFO, max_frames=6)
    with live_server(Engine(FakeRunner(info, step_s=0.02), EngineConfig(), fake_voices(info=info))) as server:
        async with dial(server) as socket:
            await socket.configure()
            await socket.say("One two three.")
            await socket.send("input.done")
            await socket.expect("audio.start")
            while isinstance(message := await socket.receive(), bytes):
                continue
            assert message["error"]["code"] == "endless_speech"
            done = await socket.expect("audio.done")
    # Audio that had not been sent when the error came is dropped.
    said = 3 if done["frames"] >= 3 else 0
    assert (done["cancelled"], done["spoken_text_chars"]) == (True, said)
    assert done["text_begun"] in ([" two"] if said else ["", "One"])
