"""Live sessions of the client: over a scripted connection, and with the real server."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from vivavoce_client import ApiError, AsyncClient, AsyncLiveSession, Client, ConnectionFailed, SaidPart, StreamBroken
from vivavoce_client.live_transport import ConnectionLost, LiveConnection, stream_url

from tests.support.live_server import Gate, LiveServer, fake_engine, live_server
from tests.support.live_socket import pcm_of
from tests.support.texts import plain_text
from tests.support.waiting import wait_until

CREATED = json.dumps({"type": "session.created", "limits": {}})
START = json.dumps({"type": "audio.start", "utterance_index": 0, "format": "pcm", "sample_rate": 24000})
DONE = json.dumps(
    {
        "type": "audio.done",
        "utterance_index": 0,
        "duration_ms": 80,
        "total_bytes": 2,
        "frames": 1,
        "cancelled": False,
        "parts": [{"text": "Hel", "end_ms": 50}, {"text": "lo", "end_ms": 80}],
    }
)


def error(code: str, kind: str = "invalid_request_error") -> str:
    detail = {"message": f"it is {code}", "type": kind, "param": "voice", "code": code}
    return json.dumps({"type": "error", "message": detail["message"], "error": detail})


class Script:
    """A connection that gives these messages; each one that is an exception is raised. Then it is silent."""

    def __init__(self, *messages: str | bytes | ConnectionLost) -> None:
        self.sent: list[dict[str, Any]] = []
        self.closed = False
        self._messages = list(messages)
        self._text_sent = asyncio.Event()
        self._text_ended = asyncio.Event()

    async def send(self, message: str) -> None:
        self.sent.append(json.loads(message))
        if self.sent[-1]["type"] != "session.config":
            self._text_sent.set()
        if self.sent[-1]["type"] in ("input.done", "input.cancel"):
            self._text_ended.set()

    async def receive(self) -> str | bytes:
        if not self._messages:
            await asyncio.Event().wait()
        if self._messages[0] is not CREATED and not _is(self._messages[0], "error"):
            await self._text_sent.wait()
        if _is(self._messages[0], "audio.done"):
            await self._text_ended.wait()
        message = self._messages.pop(0)
        if isinstance(message, ConnectionLost):
            raise message
        return message

    async def close(self) -> None:
        self.closed = True

    @property
    def texts(self) -> list[str]:
        return [message["text"] for message in self.sent if message["type"] == "input.text"]


def _is(message: object, kind: str) -> bool:
    return isinstance(message, str) and json.loads(message)["type"] == kind


class Dialer:
    """Gives its connections one after the other, and notes what it was asked for and how long it was waited."""

    def __init__(self, *outcomes: Script | ConnectionLost) -> None:
        self.outcomes = list(outcomes)
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.pauses_s: list[float] = []

    async def connect(self, url: str, headers: dict[str, str]) -> LiveConnection:
        self.asked.append((url, headers))
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, ConnectionLost):
            raise outcome
        return outcome

    async def sleep(self, seconds: float) -> None:
        self.pauses_s.append(seconds)

    def session(self) -> AsyncLiveSession:
        return AsyncLiveSession("http://server/path/", {"voice": "heart"}, "k", self.connect, self.sleep)


async def hear(session: AsyncLiveSession, text: Any) -> bytes:
    async with session.say(text) as speech:
        return b"".join([piece async for piece in speech])


LOST = ConnectionLost("gone", again=True)


async def test_what_is_sent() -> None:
    connection = Script(CREATED, START, b"ab", DONE)
    dialer = Dialer(connection)
    session = dialer.session()
    async with session.say(["Hel", "", "lo"]) as speech:
        assert [piece async for piece in speech] == [b"ab"]
        assert (speech.sample_rate, speech.duration_s, speech.cancelled) == (24000, 0.08, False)
        assert speech.first_audio_s is not None
        assert (speech.frames, speech.parts) == (1, (SaidPart("Hel", 0.05), SaidPart("lo", 0.08)))
        assert [speech.said(played_s) for played_s in (0.04, 0.05, 0.08)] == ["", "Hel", "Hello"]
        assert (speech.said(), speech.text_begun) == ("Hello", "")
    await session.close()
    assert dialer.asked == [("ws://server/path/v1/audio/speech/stream", {"Authorization": "Bearer k"})]
    assert connection.sent == [
        {"type": "session.config", "voice": "heart"},
        {"type": "input.text", "text": "Hel"},
        {"type": "input.text", "text": "lo"},
        {"type": "input.done"},
    ]
    assert connection.closed


def test_addresses() -> None:
    assert stream_url("https://host:1/a") == "wss://host:1/a/v1/audio/speech/stream"


async def test_it_connects_again_with_growing_pauses() -> None:
    dialer = Dialer(LOST, LOST, LOST, Script(CREATED, START, b"ab", DONE))
    assert await hear(dialer.session(), "Hi") == b"ab"
    assert dialer.pauses_s == [0.25, 0.5, 1.0]


async def test_it_gives_up_at_last() -> None:
    dialer = Dialer(*[LOST] * 6)
    with pytest.raises(ConnectionFailed, match="gone"):
        await hear(dialer.session(), "Hi")
    assert dialer.pauses_s == [0.25, 0.5, 1.0, 2.0, 4.0]


async def test_what_was_not_heard_is_said_again_from_its_start() -> None:
    first, second = Script(CREATED, START, LOST), Script(CREATED, START, b"ab", DONE)
    assert await hear(Dialer(first, second).session(), ["Hel", "lo"]) == b"ab"
    assert second.texts == ["Hel", "lo"]
    assert first.closed


async def test_a_server_that_always_drops_is_given_up() -> None:
    dialer = Dialer(*[Script(CREATED, LOST) for _ in range(6)])
    with pytest.raises(StreamBroken):
        await hear(dialer.session(), "Hi")
    assert dialer.pauses_s == [0.25, 0.5, 1.0, 2.0, 4.0]


async def test_what_was_heard_is_not_said_again() -> None:
    dialer = Dialer(Script(CREATED, START, b"ab", LOST), Script(CREATED, START, b"cd", DONE))
    session = dialer.session()
    with pytest.raises(StreamBroken, match="gone"):
        await hear(session, "Hi")
    assert await hear(session, "Ho") == b"cd"


async def test_a_policy_is_not_tried_again() -> None:
    with pytest.raises(ConnectionFailed):
        await hear(Dialer(ConnectionLost("policy", again=False)).session(), "Hi")


async def test_refused_options_are_typed() -> None:
    connection = Script(error("voice_not_found"))
    with pytest.raises(ApiError, match="it is voice_not_found") as caught:
        await Dialer(connection).session().open()
    assert (caught.value.status, caught.value.param, caught.value.code) == (400, "voice", "voice_not_found")
    assert connection.closed


async def test_a_server_that_is_full_is_tried_again() -> None:
    dialer = Dialer(Script(error("not_serving", "service_unavailable")), Script(CREATED, START, b"ab", DONE))
    assert await hear(dialer.session(), "Hi") == b"ab"
    assert dialer.pauses_s == [0.25]


async def test_a_refused_utterance_does_not_spoil_the_next() -> None:
    connection = Script(CREATED, error("queue_full", "rate_limit_error"), START, b"ab", DONE)
    session = Dialer(connection).session()
    with pytest.raises(ApiError) as caught:
        await hear(session, "Hi")
    assert caught.value.status == 429
    assert await hear(session, "Ho") == b"ab"
    assert [message["type"] for message in connection.sent].count("input.cancel") == 1


async def test_what_the_source_raises_comes_out() -> None:
    async def tokens() -> AsyncIterator[str]:
        yield "He"
        raise ValueError("no more tokens")

    session = Dialer(Script(CREATED, START, DONE)).session()
    with pytest.raises(ValueError, match="no more tokens"):
        await hear(session, tokens())


@pytest.mark.parametrize("text", ["", [], ["", ""]])
async def test_no_text_is_no_speech(text: Any) -> None:
    connection = Script(CREATED)
    assert await hear(Dialer(connection).session(), text) == b""
    assert connection.texts == []


# ---- with the real server -----------------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[LiveServer]:
    with live_server() as running:
        yield running


async def test_tokens_are_spoken_as_they_come(server: LiveServer) -> None:
    heard = asyncio.Event()

    async def tokens() -> AsyncIterator[str]:
        yield "Hello there again "
        await heard.wait()  # the first words are heard before the last are written
        yield "there"

    async with AsyncClient(server.url) as client, client.live("heart", seed=5) as live:
        audio = b""
        async with live.say(tokens()) as speech:
            async for piece in speech:
                audio += piece
                heard.set()
        assert audio == pcm_of(5, len("Hello there again there"))
        await live.configure(seed=6)
        assert await hear(live, "Hi!") == pcm_of(6, 3)


async def test_barge_in(server: LiveServer) -> None:
    async with AsyncClient(server.url) as client, client.live("heart", seed=5) as live:
        async with live.say(plain_text(500)) as speech:
            async for _ in speech:
                await live.cancel()
            assert speech.cancelled
        wait_until(lambda: server.engine.stats().running == 0)
        assert await hear(live, "Hi!") == pcm_of(5, 3)


@pytest.mark.parametrize("leaves", [False, True])
async def test_barge_in_tells_what_was_said(leaves: bool) -> None:
    gate = Gate(hold_from_step=8)
    with live_server(fake_engine(before_step=gate)) as server:
        async with AsyncClient(server.url) as client, client.live("heart", seed=5) as live:
            heard = 0
            async with live.say("One.[pause:100ms]Two, three. Four. ") as speech:
                async for piece in speech:
                    heard += len(piece)
                    if heard > len(pcm_of(5, 4)) + 4800:  # some of the second text
                        if leaves:
                            break
                        await live.cancel()
            gate.open()
    assert speech.cancelled
    first, pause, *words = speech.parts
    assert (first, pause) == (SaidPart("One.", 0.32), SaidPart("[pause:100ms]", 0.42))
    assert speech.said() == "One.[pause:100ms]" + "".join(word.text for word in words)
    assert speech.said(played_s=0.4) == "One."
    assert speech.text_begun
    assert "One.[pause:100ms]Two, three. Four. ".startswith(speech.said() + speech.text_begun)
    assert speech.frames is not None
    assert 4 < speech.frames <= 8


async def test_leaving_early_stops_the_servers_work(server: LiveServer) -> None:
    never = asyncio.Event()

    async def tokens() -> AsyncIterator[str]:
        yield "Hello there again "
        await never.wait()

    async with AsyncClient(server.url) as client, client.live("heart", seed=5) as live:
        async with live.say(tokens()) as speech:
            async for _ in speech:
                break
        wait_until(lambda: server.engine.stats().running == 0)
        assert await hear(live, "Hi!") == pcm_of(5, 3)


async def test_one_utterance_at_a_time(server: LiveServer) -> None:
    async with AsyncClient(server.url) as client, client.live("heart") as live, live.say("Hi"):
        with pytest.raises(RuntimeError, match="under way"):
            await hear(live, "Ho")


async def test_a_lost_server_is_told() -> None:
    with live_server() as server:
        url = server.url
    async with AsyncClient(url) as client, client.live("heart") as live:
        live._sleep = _no_sleep
        with pytest.raises(ConnectionFailed):
            await hear(live, "Hi")


async def _no_sleep(seconds: float) -> None:
    pass


def test_without_asyncio(server: LiveServer) -> None:
    with Client(server.url) as client, client.live("heart", seed=5) as live:
        with live.say(iter(["Hello", " there"])) as speech:
            assert b"".join(speech) == pcm_of(5, 11)
            assert (speech.sample_rate, speech.duration_s, speech.cancelled) == (24000, 0.88, False)
            assert speech.first_audio_s is not None
        with live.say(plain_text(500)) as speech:
            for _ in speech:
                live.cancel()
            assert speech.cancelled
            assert speech.frames is not None
            assert plain_text(500).startswith(speech.said() + speech.text_begun)
        live.configure(seed=6)
        with live.say("Hi!") as speech:
            assert b"".join(speech) == pcm_of(6, 3)
        live.configure(language="klingon")
        with live.say("nuqneH") as speech, pytest.raises(ApiError, match="klingon"):
            list(speech)
