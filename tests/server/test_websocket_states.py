"""The live socket under any order of messages: each utterance ends once, and has all or part of the requested text.

An utterance without a letter is refused once its end is there.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from vivavoce_text import Profile, speakable

from tests.support.live_server import LiveServer, live_server
from tests.support.live_socket import Socket, dial, pcm_of
from tests.support.waiting import wait_until

FRAGMENTS = ("Hello", " there", "! ", " and so on" * 4)


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with live_server() as running:
        yield running


@dataclass
class Model:
    """Expectations of a client: the text of each utterance that it asked for, and whether one is open."""

    texts: list[str] = field(default_factory=list)
    open: bool = False

    def apply(self, step: str) -> None:
        match step:
            case "input.done":
                self.open = False
            case "input.cancel":
                self.open = False
            case text if not text.startswith("session."):
                if not self.open:
                    self.texts.append("")
                self.open = True
                self.texts[-1] += text

    @property
    def audio(self) -> list[bytes]:
        """The audio of each utterance."""
        return [pcm_of(3, said_frames(text)) for text in self.texts]


def said_frames(text: str) -> int:
    said = speakable(text, "en", Profile(frozenset())).text
    return max(2, len(said)) if any(char.isalpha() for char in said) else 0


STEPS = st.lists(st.sampled_from([*FRAGMENTS, "input.done", "input.done", "input.cancel", "pause"]), max_size=25)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_any_order_of_messages(server: LiveServer, steps: list[str]) -> None:
    asyncio.run(run(server, steps))
    wait_until(lambda: server.engine.stats().running + server.engine.stats().queued == 0)


async def run(server: LiveServer, steps: list[str]) -> None:
    model = Model()
    async with dial(server) as socket:
        await socket.configure(seed=3, normalize=False)
        for step in steps:
            if step == "pause":
                await asyncio.sleep(0.002)
                continue
            await (socket.say(step) if step in FRAGMENTS else socket.send(step))
            model.apply(step)
        await socket.send("session.close")
        heard = await all_that_comes(socket)
        assert await socket.close_code() == 1000
    cancels = steps.count("input.cancel")
    # A cancel takes back what waited its turn: such an utterance never starts. All others come in order.
    assert [index for index, _, _ in heard] == list(range(len(heard)))
    assert len(heard) <= len(model.texts)
    if not cancels:
        assert [(audio, cancelled) for _, audio, cancelled in heard] == [(audio, not audio) for audio in model.audio]
    longest = max(model.audio, key=len, default=b"")
    for _, audio, cancelled in heard:
        assert longest.startswith(audio)
        assert cancelled or audio in model.audio
    assert sum(cancelled for _, _, cancelled in heard) <= cancels + model.audio.count(b"")


async def all_that_comes(socket: Socket) -> list[tuple[int, bytes, bool]]:
    """(index, audio, cancelled) up to session.done. Errors tell of a text without a letter, or of a needless end."""
    heard: list[tuple[int, bytes, bool]] = []
    speaking: int | None = None
    audio = b""
    while True:
        message = await socket.receive()
        if isinstance(message, bytes):
            assert speaking is not None, "audio came outside of an utterance"
            audio += message
            continue
        match message["type"]:
            case "audio.start":
                assert speaking is None
                speaking, audio = message["utterance_index"], b""
            case "audio.done":
                assert message["utterance_index"] == speaking
                assert message["total_bytes"] == len(audio)
                heard.append((message["utterance_index"], audio, message["cancelled"]))
                speaking = None
            case "error":
                assert message["error"]["code"] in ("invalid_state", "nothing_to_speak")
            case "session.done":
                assert speaking is None
                assert message["utterances"] == len(heard)
                return heard
