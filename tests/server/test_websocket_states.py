"""The live socket under any order of messages: each utterance ends once, and has all or part of the requested text."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.live_server import LiveServer, live_server
from tests.support.live_socket import Socket, dial, pcm_of
from tests.support.waiting import wait_until

FRAGMENTS = ("Hello", " there", "! ", "x" * 40)


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with live_server() as running:
        yield running


@dataclass
class Model:
    """What a client may expect: the frames of each utterance that it asked for, and whether it took it back."""

    frames: list[int] = field(default_factory=list)
    open: bool = False

    def apply(self, step: str) -> None:
        match step:
            case "input.done":
                self.open = False
            case "input.cancel":
                self.open = False
            case text if not text.startswith("session."):
                if not self.open:
                    self.frames.append(0)
                self.open = True
                self.frames[-1] += len(text)


STEPS = st.lists(st.sampled_from([*FRAGMENTS, "input.done", "input.done", "input.cancel", "pause"]), max_size=25)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_any_order_of_messages(server: LiveServer, steps: list[str]) -> None:
    asyncio.run(run(server, steps))
    wait_until(lambda: server.engine.stats().running + server.engine.stats().queued == 0)


async def run(server: LiveServer, steps: list[str]) -> None:
    model = Model()
    async with dial(server) as socket:
        await socket.configure(seed=3)
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
    assert len(heard) <= len(model.frames)
    if not cancels:
        assert [(len(audio), cancelled) for _, audio, cancelled in heard] == [
            (len(pcm_of(3, max(2, frames))), False) for frames in model.frames
        ]
    whole = pcm_of(3, max([2, *model.frames]))
    for _, audio, cancelled in heard:
        assert whole.startswith(audio)
        assert cancelled or len(audio) in {len(pcm_of(3, max(2, frames))) for frames in model.frames}
    assert sum(cancelled for _, _, cancelled in heard) <= cancels


async def all_that_comes(socket: Socket) -> list[tuple[int, bytes, bool]]:
    """(index, audio, cancelled) up to session.done; the only errors are those of an input.done too many."""
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
                assert message["error"]["code"] == "invalid_state"
            case "session.done":
                assert speaking is None
                assert message["utterances"] == len(heard)
                return heard
