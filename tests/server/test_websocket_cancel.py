"""Barge-in and leaving at any moment: speech stops, the row is free, and other clients lose nothing."""

import asyncio
from contextlib import suppress

import pytest
from vivavoce_engine import EngineConfig
from vivavoce_server import ServerConfig
from websockets.exceptions import ConnectionClosed

from tests.support.live_server import Gate, LiveServer, fake_engine, live_server
from tests.support.live_socket import Socket, dial, pcm_of
from tests.support.waiting import wait_until

LONG = "A text that takes a while to say." + " A text that takes a while to say." * 19


def is_idle(server: LiveServer) -> bool:
    stats = server.engine.stats()
    return (stats.running, stats.queued) == (0, 0)


async def assert_usable(socket: Socket, index: int) -> None:
    await socket.say("Hi!")
    await socket.send("input.done")
    heard = await socket.utterance()
    assert (heard.start["utterance_index"], heard.audio) == (index, pcm_of(5, 3))


async def test_cancel_before_there_is_text(server: LiveServer) -> None:
    async with dial(server) as socket:
        await socket.configure()
        await socket.send("input.cancel")
        await assert_usable(socket, 0)


async def test_cancel_while_it_waits_for_a_row() -> None:
    gate = Gate()
    engine = fake_engine(EngineConfig(max_streams=1), before_step=gate)
    with live_server(engine) as server:
        async with dial(server) as first, dial(server) as second:
            await first.configure()
            await first.say("One")
            await first.send("input.done")
            await first.expect("audio.start")
            wait_until(lambda: bool(gate.batches))
            await second.configure()
            await second.say("Two or more ")
            await second.expect("audio.start")
            wait_until(lambda: server.engine.stats().queued == 1)
            await second.send("input.cancel")
            done = await second.expect("audio.done")
            assert (done["cancelled"], done["total_bytes"], done["duration_ms"]) == (True, 0, 0)
            gate.open()
            assert (await first.rest())[0] == pcm_of(5, 3)
            await assert_usable(second, 1)
        wait_until(lambda: is_idle(server))


@pytest.mark.parametrize("ended", [False, True])
async def test_cancel_while_it_speaks_frees_the_row_before_the_next_frame(ended: bool) -> None:
    gate = Gate(hold_from_step=3)
    with live_server(fake_engine(before_step=gate)) as server:
        async with dial(server) as socket:
            await socket.configure()
            await socket.say(LONG)
            if ended:
                await socket.send("input.done")
                await socket.say("This waits its turn, and is forgotten")
            await socket.expect("audio.start")
            wait_until(lambda: len(gate.batches) == 4)  # the fourth step is held
            await socket.send("input.cancel")
            _, done = await socket.rest()
            assert done["cancelled"]
            gate.open()
            wait_until(lambda: is_idle(server))
            assert gate.batches == [1, 1, 1, 1]
            await assert_usable(socket, 1)


async def test_cancel_while_it_waits_for_text(server: LiveServer) -> None:
    async with dial(server) as socket:
        await socket.configure()
        await socket.say("He said ")
        await socket.expect("audio.start")
        audio = await socket.audio()
        wait_until(lambda: server.engine.stats().running == 1)
        await socket.send("input.cancel")
        rest, done = await socket.rest()
        assert done["cancelled"]
        assert done["total_bytes"] == len(audio + rest)
        assert pcm_of(5, 2).startswith(audio + rest)
        wait_until(lambda: is_idle(server))
        await assert_usable(socket, 1)


async def test_cancel_takes_back_what_has_not_left(server: LiveServer) -> None:
    """All has been made, and the client has read little: what it is told is what it gets."""
    async with dial(server, max_queue=1) as socket:
        await socket.configure()
        await socket.say(LONG)
        await socket.send("input.done")
        await socket.expect("audio.start")
        wait_until(lambda: is_idle(server))
        await socket.send("input.cancel")
        audio, done = await socket.rest()
        assert done["total_bytes"] == len(audio)
        assert done["duration_ms"] == round(len(audio) / 48)
        assert pcm_of(5, len(LONG)).startswith(audio)
        await assert_usable(socket, 1)


async def test_cancel_after_the_end_is_no_error(server: LiveServer) -> None:
    async with dial(server) as socket:
        await socket.configure()
        await assert_usable(socket, 0)
        await socket.send("input.cancel")
        await socket.send("input.cancel")
        await assert_usable(socket, 1)


async def test_200_abrupt_disconnects_leave_no_row_behind(server: LiveServer) -> None:
    async def leave(number: int) -> None:
        async with dial(server) as socket:
            phase = number % 5
            if phase:
                await socket.configure(seed=number)
            if phase >= 2:
                await socket.say(LONG[:100] if phase > 2 else "He said ")
                await socket.expect("audio.start")
            if phase >= 3:
                await socket.audio()
            if phase == 4:
                await socket.send("input.done")
            socket.connection.transport.abort()

    for start in range(0, 200, 20):
        results = await asyncio.gather(*(leave(start + offset) for offset in range(20)), return_exceptions=True)
        assert [error for error in results if isinstance(error, AssertionError)] == []
    wait_until(lambda: is_idle(server))
    wait_until(lambda: server.service.live_sessions == 0)
    assert server.service.speaking == 0
    async with dial(server) as socket:
        await socket.configure()
        await assert_usable(socket, 0)


async def test_a_reader_that_stops_is_closed_and_others_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vivavoce_server.live.connection.FLUSH_S", 0.05)
    monkeypatch.setattr("vivavoce_server.uvicorn_sockets.ABORT_S", 0.05)
    config = ServerConfig(live_max_unsent_bytes=2**16, live_stall_s=0.05)
    with live_server(fake_engine(EngineConfig(max_context=2**16)), config) as server:
        async with dial(server, max_queue=1) as slow, dial(server) as other:
            await slow.configure()
            await slow.say("word " * 1200)  # 23 MB: more than all the buffers between
            await slow.send("input.done")
            await other.configure()
            await other.say(LONG)
            await other.send("input.done")
            assert (await other.utterance()).audio == pcm_of(5, len(LONG))
            wait_until(lambda: server.service.live_sessions == 1)
            wait_until(lambda: is_idle(server))
            await assert_usable(other, 1)
            # What it has not read by then is cut off, and so may be the reason.
            assert await slow.close_code() in (1006, 1008)


async def test_a_client_that_only_sends_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vivavoce_server.live.connection.CONTROL_BYTES", 2**10)
    monkeypatch.setattr("vivavoce_server.live.connection.FLUSH_S", 0.05)
    config = ServerConfig(live_max_unsent_bytes=1)
    with live_server(config=config) as server:
        async with dial(server, max_queue=1) as socket:
            await socket.configure()
            with suppress(ConnectionClosed):
                while server.service.live_sessions:
                    await socket.send("session.config", voice="nobody" * 1000)
            wait_until(lambda: server.service.live_sessions == 0)
            socket.connection.transport.abort()
