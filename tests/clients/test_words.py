"""Times of words in the Python client: its requests, its events over HTTP and over a live session."""

import base64
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from vivavoce_client import (
    ApiError,
    AsyncClient,
    Client,
    Segment,
    SpokenTurn,
    SpokenWord,
    StreamBroken,
    VivavoceError,
)

from tests.clients.test_client import Pieces
from tests.clients.test_live import CREATED, DONE, LOST, START, Dialer, Script

HELLO = {"word": "Hello", "start": 0.11, "end": 0.42, "text_start": 0, "text_end": 5}
THERE = {"word": "thére.", "start": None, "end": None, "text_start": 6, "text_end": 12}
WORDS = (SpokenWord("Hello", 0.11, 0.42, 0, 5), SpokenWord("thére.", None, None, 6, 12))
TURNS = [{"index": 0, "voice": "heart", "start": 0, "end": 0.3}, {"index": 1, "voice": None, "start": 0.3, "end": 0.5}]
WORDS_MESSAGE = json.dumps({"type": "audio.words", "utterance_index": 0, "words": [HELLO, THERE]})


def event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\r\ndata: {json.dumps({'type': kind, **fields}, ensure_ascii=False)}\r\n\r\n".encode()


def delta(audio: bytes) -> bytes:
    return event("speech.audio.delta", audio=base64.b64encode(audio).decode())


SPOKEN = b"".join(
    [
        b": keep-alive\r\n\r\n",
        delta(b"ab"),
        event("speech.audio.words", words=[HELLO]),
        event("speech.audio.of_the_future"),
        delta(b"cd"),
        event("speech.audio.words", words=[THERE]),
        event("speech.audio.done", usage={}, words=[HELLO, THERE], segments=TURNS, duration=0.52),
        b"data: [DONE]\n\n",
    ]
)


def answer(*pieces: bytes, kind: str = "text/event-stream; charset=utf-8") -> Callable[[httpx.Request], httpx.Response]:
    return lambda request: httpx.Response(200, headers={"content-type": kind}, stream=Pieces(*pieces))


def client_of(handler: Callable[[httpx.Request], httpx.Response]) -> Client:
    return Client("http://server", transport=httpx.MockTransport(handler))


@pytest.mark.parametrize("size", [1, 7, len(SPOKEN)])
def test_events_give_audio_and_words_for_any_cuts_of_the_body(size: int) -> None:
    body = [SPOKEN[at : at + size] for at in range(0, len(SPOKEN), size)]
    with client_of(answer(*body)) as client, client.stream("Hello thére.", "heart", word_timestamps=True) as speech:
        events = speech.events()
        assert next(events) == b"ab"
        assert speech.first_audio_s is not None
        assert not speech.words
        assert list(events) == [WORDS[:1], b"cd", WORDS[1:]]
        assert speech.words == WORDS
        assert speech.turns == (SpokenTurn(0, "heart", 0, 0.3), SpokenTurn(1, None, 0.3, 0.5))
        assert speech.duration_s == 0.52


def test_bytes_alone_leave_the_words_for_later() -> None:
    with client_of(answer(SPOKEN)) as client, client.stream("Hello thére.", "heart", word_timestamps=True) as speech:
        assert list(speech) == [b"ab", b"cd"]
        assert speech.words == WORDS


async def test_async_events() -> None:
    transport = httpx.MockTransport(answer(SPOKEN[:50], SPOKEN[50:]))
    async with AsyncClient("http://server", transport=transport) as client:
        async with client.stream("Hello thére.", "heart", word_timestamps=True) as speech:
            assert [each async for each in speech.events()] == [b"ab", WORDS[:1], b"cd", WORDS[1:]]
            assert speech.words == WORDS
        assert await client.speak("Hello thére.", "heart", word_timestamps=True) == b"abcd"


def test_without_the_option_the_body_is_the_file() -> None:
    with client_of(answer(b"ab", kind="audio/pcm")) as client, client.stream("Hello.", "heart") as speech:
        assert list(speech.events()) == [b"ab"]
        assert (speech.words, speech.turns, speech.duration_s) == ((), (), None)


def test_a_speech_that_fails_is_the_servers_error() -> None:
    error = {"message": "it broke", "type": "server_error", "param": None, "code": "internal_error"}
    body = delta(b"ab") + event("speech.audio.error", error=error)
    with client_of(answer(body)) as client, pytest.raises(ApiError, match="it broke") as failed:
        client.speak("Hello.", "heart", word_timestamps=True)
    assert (failed.value.status, failed.value.code) == (500, "internal_error")


def test_a_body_that_ends_before_the_speech_is_broken() -> None:
    with client_of(answer(delta(b"ab"))) as client, pytest.raises(StreamBroken):
        client.speak("Hello.", "heart", word_timestamps=True)


def test_a_server_that_sends_a_file_instead_is_told_apart() -> None:
    with (
        client_of(answer(b"ab", kind="audio/mpeg")) as client,
        pytest.raises(VivavoceError, match="audio/mpeg instead"),
    ):
        client.speak("Hello.", "heart", word_timestamps=True)


def test_what_is_asked_of_the_server() -> None:
    bodies: list[dict[str, Any]] = []

    def handler(request: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(request.content))
        return answer(SPOKEN)(request)

    talk: list[Segment] = [{"voice": "heart", "text": "Hi!", "seed": 5}, {"voice": "michael", "text": "Hello."}]
    with client_of(handler) as client:
        client.speak("Hello.", "heart", word_timestamps=True)
        client.speak(talk, turn_pause_s=0.4)
        client.speak(talk, "heart", word_timestamps=False)
    assert bodies == [
        {
            "input": "Hello.",
            "voice": "heart",
            "response_format": "pcm",
            "word_timestamps": True,
            "stream_format": "sse",
        },
        {"segments": talk, "response_format": "pcm", "turn_pause_s": 0.4},
        {"segments": talk, "voice": "heart", "response_format": "pcm", "word_timestamps": False},
    ]


# ---- live ---------------------------------------------------------------------------------------------------------


def done(**fields: object) -> str:
    return json.dumps(json.loads(DONE) | fields)


async def test_a_live_session_gives_audio_and_words() -> None:
    session = Dialer(Script(CREATED, START, b"ab", WORDS_MESSAGE, b"cd", done(spoken_text_chars=12))).session()
    async with session.say(["Hello ", "thére."]) as speech:
        assert [each async for each in speech.events()] == [b"ab", WORDS, b"cd"]
        assert (speech.words, speech.text, speech.spoken_text_chars) == (WORDS, "Hello thére.", 12)
    await session.close()


async def test_words_of_a_cancelled_utterance_are_not_those_of_the_next() -> None:
    late = json.dumps({"type": "audio.words", "utterance_index": 0, "words": [HELLO]})
    session = Dialer(Script(CREATED, late, START, b"ab", WORDS_MESSAGE, DONE)).session()
    async with session.say("Hello thére.") as speech:
        assert [each async for each in speech.events()] == [b"ab", WORDS]
        assert speech.spoken_text_chars is None, "a server without word times does not tell"
    await session.close()


async def test_words_of_a_connection_that_broke_come_again() -> None:
    session = Dialer(Script(CREATED, START, WORDS_MESSAGE, LOST), Script(CREATED, START, b"ab", WORDS_MESSAGE, DONE))
    live = session.session()
    async with live.say("Hello thére.") as speech:
        assert [each async for each in speech] == [b"ab"]
        assert speech.words == WORDS
    await live.close()


def test_a_live_session_without_asyncio() -> None:
    dialer = Dialer(Script(CREATED, START, b"ab", WORDS_MESSAGE, done(spoken_text_chars=5, segments=TURNS)))
    with (
        Client("http://server", connect=dialer.connect) as client,
        client.live("heart", word_timestamps=True) as live,
        live.say("Hello thére.") as speech,
    ):
        assert list(speech.events()) == [b"ab", WORDS]
        assert (speech.words, speech.text, speech.spoken_text_chars) == (WORDS, "Hello thére.", 5)
        assert speech.turns == (SpokenTurn(0, "heart", 0, 0.3), SpokenTurn(1, None, 0.3, 0.5))
