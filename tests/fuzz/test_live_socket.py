"""The live socket as a state machine, under good and bad messages in any order, cancels, and connections that break.

A client may rely on this in any state: Each audio.start has one audio.done, in order. Audio comes only between the two
and is the beginning of the requested speech. A fault is reported in OpenAI's four keys, or closes the connection with a
code of the protocol. A lost connection holds no row.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)
from vivavoce_server import ServerConfig
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from tests.support.fuzzing import count, fuzz
from tests.support.live_server import LiveServer, live_server
from tests.support.live_socket import PATH, Socket, pcm_of
from tests.support.waiting import wait_until

KIND = "live socket: series of messages"
SEED = 3
MAX_CHARS = 300
FRAGMENTS = st.sampled_from(("Hello", " there", "! ", "x" * 40, "")) | st.text(max_size=5)
BAD_CONFIGS: tuple[dict[str, object], ...] = (
    {"voice": "nobody"},
    {"voice": "heart", "sped": 1},
    {"voice": "heart", "speed": 9},
    {"voice": "heart", "split": "word"},
    {},
)
BAD_MESSAGES = st.sampled_from(
    ('{"type": "input.text"}', '{"type": "input.text", "text": 5}', '{"type": "input.done", "a": 1}')
)
END_MESSAGES = st.sampled_from(
    ("", "[]", "null", '{"type": "input.texts"}', "[" * 2000, b"\x00", "x" * (2**17 + 1))
) | st.text(max_size=20)
PROTOCOL_CODES = frozenset({1000, 1002, 1008, 1009})
Result = TypeVar("Result")


class Heard:
    """Checks each message of the server against what may come now."""

    def __init__(self, asked_frames: int) -> None:
        self._most = pcm_of(SEED, max(2, asked_frames))
        self._speaking: int | None = None
        self._audio = b""
        self._next = 0

    def take(self, message: dict[str, Any] | bytes) -> None:
        if isinstance(message, bytes):
            assert self._speaking is not None, "audio outside of an utterance"
            self._audio += message
            return
        match message["type"]:
            case "audio.start":
                assert (self._speaking, message["utterance_index"]) == (None, self._next)
                self._speaking, self._audio, self._next = self._next, b"", self._next + 1
            case "audio.done":
                assert message["utterance_index"] == self._speaking
                assert message["total_bytes"] == len(self._audio)
                assert self._most.startswith(self._audio)
                self._speaking = None
            case "error":
                error = message["error"]
                assert error.keys() == {"message", "type", "param", "code"}
                assert (error["type"], error["code"]) != ("server_error", "bug")
            case "session.created":
                assert message["limits"]
            case kind:
                assert (kind, message["utterances"], self._speaking) == ("session.done", self._next, None)


class LiveSocketMachine(RuleBasedStateMachine):
    """One connection after the other to one server."""

    server: LiveServer
    loop: asyncio.AbstractEventLoop

    def __init__(self) -> None:
        super().__init__()
        count(KIND)
        self.connection: ClientConnection | None = None
        self.frames = 0

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self.loop.run_until_complete(work)

    def send(self, kind: str, **fields: object) -> None:
        try:
            self.run(Socket(self.dialled()).send(kind, **fields))
        except ConnectionClosed:
            self.hear_out()

    def dialled(self) -> ClientConnection:
        """The connection, or a new one where the server has closed it: when that is noticed is a matter of time."""
        if self.connection is None:
            self.connection = self.run(_connect(self.server.url.replace("http", "ws") + PATH))
            self.frames = 0
        return self.connection

    @rule(
        fields=st.fixed_dictionaries(
            {}, optional={"split": st.sampled_from(("none", "sentence")), "speed": st.just(1.0)}
        )
    )
    def configure(self, fields: dict[str, object]) -> None:
        self.send("session.config", voice="heart", seed=SEED, **fields)

    @rule(fields=st.sampled_from(BAD_CONFIGS))
    def configure_badly(self, fields: dict[str, object]) -> None:
        self.send("session.config", **fields)

    @rule(text=FRAGMENTS)
    def say(self, text: str) -> None:
        self.dialled()
        self.frames += len(text)
        self.send("input.text", text=text)

    @rule(kind=st.sampled_from(("input.done", "input.cancel")))
    def end_or_cancel(self, kind: str) -> None:
        self.send(kind)

    @rule(message=BAD_MESSAGES)
    def say_it_wrong(self, message: str | bytes) -> None:
        try:
            self.run(self.dialled().send(message))
        except ConnectionClosed:
            self.hear_out()

    @rule(message=END_MESSAGES)
    def say_nonsense(self, message: str | bytes) -> None:
        self.say_it_wrong(message)
        if self.connection is not None:
            self.hear_out()

    @rule()
    def close(self) -> None:
        self.send("session.close")
        if self.connection is not None:
            self.hear_out()

    @rule()
    def vanish(self) -> None:
        connection, self.connection = self.dialled(), None
        connection.transport.abort()
        self.run(connection.wait_closed())

    @rule()
    def wait(self) -> None:
        self.run(asyncio.sleep(0.001))

    @invariant()
    def the_server_serves(self) -> None:
        assert self.server.service.ready

    def hear_out(self) -> None:
        """All that came, up to the close code."""
        assert self.connection is not None
        connection, self.connection = self.connection, None
        code = self.run(_hear_out(Socket(connection), Heard(self.frames)))
        assert code in PROTOCOL_CODES, f"closed with {code}"

    def teardown(self) -> None:
        if self.connection is not None:
            self.send("session.close")
        if self.connection is not None:
            self.hear_out()
        stats = self.server.engine.stats
        wait_until(lambda: stats().running == stats().queued == self.server.service.live_sessions == 0)


async def _connect(url: str) -> ClientConnection:
    return await connect(url, proxy=None, max_size=2**24)


async def _hear_out(socket: Socket, heard: Heard) -> int | None:
    try:
        while True:
            heard.take(await socket.receive())
    except ConnectionClosed:
        return socket.connection.close_code


def test_any_order_of_messages() -> None:
    loop = asyncio.new_event_loop()
    with live_server(config=ServerConfig(live_max_chars=MAX_CHARS * 64)) as server:
        LiveSocketMachine.server, LiveSocketMachine.loop = server, loop
        fuzz(KIND, 0.04, lambda amount: run_state_machine_as_test(LiveSocketMachine, settings=amount))
    loop.close()
