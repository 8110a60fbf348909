"""Interruptions at any moment, by each protocol: no audio after the answer, a free row, and the next turn intact."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from vivavoce_engine.fake_runner import SAMPLE_RATE
from vivavoce_server import ServerConfig
from vivavoce_server.audio import AudioOptions, SpeechEncoder
from websockets.asyncio.client import connect

from tests.server.test_elevenlabs_multi import Contexts, close, flush, text
from tests.server.test_live_encoding import mp3_of
from tests.server.test_websocket_cancel import is_idle
from tests.support.live_server import LiveServer, fake_engine, live_server
from tests.support.live_socket import Socket, dial, pcm_of
from tests.support.realtime_socket import Realtime, dial_realtime
from tests.support.waiting import wait_until
from tests.support.wyoming_client import dial_wyoming
from tests.support.wyoming_server import wyoming_server

LONG = "This is a sentence. [pause:100ms]And another one! " * 6
NEXT = "Hi!"
STEP_S = 0.001
TURNS = 12
FRAME_BYTES = len(pcm_of(5, 1))


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    # A queue of a few frames, so that the outbox is full whenever the client does not read.
    with live_server(fake_engine(step_s=STEP_S), ServerConfig(live_max_unsent_bytes=8 * FRAME_BYTES)) as running:
        yield running


async def hesitate(draw: random.Random) -> None:
    """Waits for none, some or nearly all of the speech."""
    for _ in range(draw.choice((0, 1, 2, 5, 20, 60))):
        await asyncio.sleep(STEP_S * draw.random() * 4)


# ---- the live socket


async def interrupt(socket: Socket, draw: random.Random) -> None:
    """Begins an utterance, interrupts it, and asks for the next one at once."""
    await socket.say(LONG[: draw.randint(5, len(LONG))])
    if draw.random() < 0.5:
        await socket.send("input.done")
    await hesitate(draw)
    for _ in range(draw.choice((1, 1, 2))):
        await socket.send("input.cancel")
    await socket.say(NEXT)
    await socket.send("input.done")


@pytest.mark.parametrize("response_format", ["pcm", "mp3", "opus"])
@pytest.mark.parametrize("max_queue", [1, 64], ids=["slow reader", "reader"])
async def test_the_live_socket(server: LiveServer, response_format: str, max_queue: int) -> None:
    draw = random.Random(response_format + str(max_queue))
    follows = None
    if response_format == "mp3":
        follows = mp3_of(NEXT, SpeechEncoder(AudioOptions("mp3"), SAMPLE_RATE))
    elif response_format == "pcm":
        follows = pcm_of(5, len(NEXT))
    async with dial(server, max_queue=max_queue) as socket:
        await socket.configure(response_format=response_format)
        for turn in range(TURNS):
            await interrupt(socket, draw)
            # Its bytes are counted, and audio.start comes directly behind audio.done.
            first, second = await socket.utterance(), await socket.utterance()
            assert first.start["utterance_index"] == 2 * turn
            assert LONG.startswith("".join(part["text"] for part in first.done["parts"]))
            assert not second.done["cancelled"]
            assert second.done["parts"] == [{"text": NEXT, "end_ms": len(NEXT) * 80}]
            if follows is not None:
                assert second.audio == follows
    wait_until(lambda: is_idle(server))


async def test_sentences_of_the_live_socket(server: LiveServer) -> None:
    """Each sentence is an utterance. A cancel drops those that wait, and the half of a sentence that is held."""
    draw = random.Random(1)
    async with dial(server) as socket:
        await socket.configure(split="sentence")
        index = 0
        for _ in range(TURNS):
            await interrupt(socket, draw)
            while (heard := await socket.utterance()).audio != pcm_of(5, len(NEXT)):
                assert heard.start["utterance_index"] == index
                index += 1
            assert heard.done["parts"][0]["text"] == NEXT
            index += 1
    wait_until(lambda: is_idle(server))


# ---- ElevenLabs


@asynccontextmanager
async def dial_contexts(server: LiveServer, output_format: str) -> AsyncIterator[Contexts]:
    address = server.url.replace("http", "ws") + "/v1/text-to-speech/heart/multi-stream-input"
    async with connect(f"{address}?seed=5&output_format={output_format}", proxy=None, max_queue=1) as socket:
        yield Contexts(socket)


@pytest.mark.parametrize("output_format", ["pcm_24000", "mp3_44100_128"])
async def test_a_context_of_elevenlabs(server: LiveServer, output_format: str) -> None:
    """`Contexts` sees to it that no audio of a context follows its isFinal."""
    draw = random.Random(output_format)
    heard = set()
    async with dial_contexts(server, output_format) as client:
        for turn in range(TURNS):
            gone, following = f"gone {turn}", f"following {turn}"
            await client.send(text(gone, LONG[: draw.randint(5, len(LONG))]))
            await hesitate(draw)
            await client.send(*[close(gone)] * draw.choice((1, 1, 2)))
            await client.send(text(following, NEXT), flush(following), close(following))
            await client.until_finals(2 * turn + 2)
            assert {final["contextId"] for final in client.finals[-2:]} == {gone, following}
            heard.add(client.audio[following])
    assert len(heard) == 1
    if output_format == "pcm_24000":
        assert heard == {pcm_of(5, len(NEXT))}
    wait_until(lambda: is_idle(server))


async def test_who_leaves_elevenlabs_single_context(server: LiveServer) -> None:
    draw = random.Random(2)
    address = server.url.replace("http", "ws") + "/v1/text-to-speech/heart/stream-input?seed=5"
    for _ in range(TURNS):
        async with connect(address, proxy=None) as connection:
            await connection.send(json.dumps({"text": LONG[: draw.randint(5, len(LONG))]}))
            await hesitate(draw)
            connection.transport.abort()
    wait_until(lambda: is_idle(server))


# ---- OpenAI Realtime


async def turn_of(socket: Realtime, said: str) -> str:
    """Begins a response of the conversation. Returns its id."""
    await socket.add(said)
    await socket.send("response.create")
    response_id: str = (await socket.expect("response.created"))["response"]["id"]
    return response_id


async def test_a_response_of_realtime(server: LiveServer) -> None:
    draw = random.Random(3)
    async with dial_realtime(server, max_queue=1) as socket:
        await socket.expect("session.created")
        for _ in range(TURNS):
            said = LONG[: draw.randint(5, len(LONG))]
            gone = await turn_of(socket, said)
            await hesitate(draw)
            for _ in range(times := draw.choice((1, 1, 2))):
                await socket.send("response.cancel", response_id=gone)
            heard = await socket.response()
            assert heard.response["id"] == gone
            if heard.response["status"] == "cancelled" and heard.response["usage"]:
                frames = heard.response["usage"]["output_tokens"]
                assert frames * FRAME_BYTES <= len(heard.audio) <= len(pcm_of(0, len(said))) + 24 * 2 * 100 * 6
                [part] = heard.response["output"][0]["content"]
                assert said.startswith(part["transcript"])
            # A cancel that comes too late is told by name.
            late = times - (heard.response["status"] == "cancelled")
            for _ in range(late):
                assert (await socket.error())["code"] == "response_cancel_not_active"
            following = await turn_of(socket, NEXT)
            heard = await socket.response()
            deltas = [event for event in heard.events if event["type"] == "response.output_audio.delta"]
            assert {event["response_id"] for event in deltas} == {following}
            assert len(heard.audio) == len(NEXT) * FRAME_BYTES
            assert heard.response["output"][0]["content"][0]["transcript"] == NEXT
    wait_until(lambda: is_idle(server))


# ---- Wyoming


async def test_who_hangs_up_on_wyoming() -> None:
    draw = random.Random(4)
    with wyoming_server(fake_engine(step_s=STEP_S)) as server:
        for _ in range(TURNS):
            async with dial_wyoming(server.port) as client:
                await client.send("synthesize-start")
                await client.send("synthesize-chunk", text=LONG[: draw.randint(5, len(LONG))])
                await hesitate(draw)
        async with dial_wyoming(server.port) as client:
            await client.send("synthesize", text=NEXT)
            spoken = await client.until("audio-stop")
        assert len(spoken.audio) == len(NEXT) * FRAME_BYTES
        wait_until(lambda: server.engine.stats().running == server.engine.stats().queued == 0)
