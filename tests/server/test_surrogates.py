"""Characters that fragments cut in half are joined, on every socket."""

import asyncio
import json

import pytest
from vivavoce_server.live.surrogates import MAX_CONTEXTS, SurrogateHalves
from websockets.asyncio.client import connect

from tests.support.live_server import LiveServer
from tests.support.live_socket import dial, pcm_of
from tests.support.waiting import HUNG_S

TEXT = "Hello \U0001f600 there."
HALVES = ("Hello \ud83d", "\ude00 there.")


def fragments(*texts: str, **fields: object) -> str:
    """The text that a socket takes from these fragments."""
    halves = SurrogateHalves()
    mended = [halves.mend(json.dumps({"text": text, **fields})) for text in texts]
    return "".join(json.loads(message)["text"] for message in mended if message is not None)


@pytest.mark.parametrize(
    "texts",
    [HALVES, ("Hello ", "\ud83d", "\ude00", " there."), (TEXT,), (*TEXT[:7], TEXT[7:])],
)
def test_halves_join(texts: tuple[str, ...]) -> None:
    assert fragments(*texts) == TEXT


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (("a\ud83d", "b"), "a\ufffdb"),
        (("a\ude00",), "a\ufffd"),
        (("\ud83d", "\ud83d", "\ude00"), "\ufffd\U0001f600"),
        (("a \\ud83d",), "a \\ud83d"),
    ],
)
def test_a_half_alone_is_replaced(texts: tuple[str, ...], expected: str) -> None:
    assert fragments(*texts) == expected


def test_other_messages_end_the_wait_for_the_other_half() -> None:
    halves = SurrogateHalves()
    assert halves.mend('{"type": "input.text", "text": "\\ud83d"}') is None
    assert halves.mend('{"type": "input.done"}') == '{"type": "input.done"}'
    assert halves.mend('{"type": "input.text", "text": "Hi"}') == '{"type": "input.text", "text": "Hi"}'


def test_a_message_that_says_more_than_its_text_is_not_held_back() -> None:
    assert json.loads(SurrogateHalves().mend('{"text": "\\ud83d", "flush": true}') or "") == {
        "text": "\ufffd",
        "flush": True,
    }


def test_an_empty_text_stays_empty() -> None:
    halves = SurrogateHalves()
    assert halves.mend('{"text": "a\\ud83d"}') == '{"text": "a"}'
    assert halves.mend('{"text": ""}') == '{"text": ""}'
    assert halves.mend('{"text": "\\ude00"}') == '{"text": "\U0001f600"}'


def test_contexts_do_not_mix_and_are_bounded() -> None:
    halves = SurrogateHalves()
    for number in range(2 * MAX_CONTEXTS):
        assert halves.mend(json.dumps({"text": "\ud83d", "context_id": str(number)})) is None
    assert len(halves._held) == MAX_CONTEXTS
    message = halves.mend(json.dumps({"text": "\ude00", "contextId": "7"}))
    assert json.loads(message or "")["text"] == "\U0001f600"


@pytest.mark.parametrize("message", ['{"text": "\\ud83d"', "[" * 100_000 + "\\ud83d", '"\\ud83d"'])
def test_what_is_no_object_stays(message: str) -> None:
    assert SurrogateHalves().mend(message) == message


async def test_a_cut_emoji_loses_nothing_on_the_servers_own_socket(server: LiveServer) -> None:
    async with dial(server) as socket:
        await socket.configure(normalize=False)
        await socket.say(*HALVES)
        await socket.send("input.done")
        assert (await socket.utterance()).audio == pcm_of(5, len(TEXT))


async def test_a_cut_emoji_loses_nothing_on_elevenlabs_socket(server: LiveServer) -> None:
    url = server.url.replace("http", "ws") + "/v1/text-to-speech/heart/stream-input?seed=5&output_format=pcm_24000"
    async with connect(f"{url}&apply_text_normalization=off", proxy=None) as connection:
        for text in (" ", *HALVES, ""):
            await connection.send(json.dumps({"text": text}))
        messages = [json.loads(message) async for message in connection]
    assert messages[-1] == {"isFinal": True}
    assert not any("error" in message for message in messages)


async def test_half_an_emoji_does_not_outlive_the_end_on_elevenlabs_socket(server: LiveServer) -> None:
    url = server.url.replace("http", "ws") + "/v1/text-to-speech/heart/stream-input?output_format=pcm_24000"
    async with connect(url, proxy=None) as connection:
        await connection.send('{"text": "Hello \\ud83d"}')
        await connection.send('{"text": ""}')
        async with asyncio.timeout(HUNG_S):
            heard = [json.loads(message) async for message in connection]
    assert [message.get("isFinal") for message in heard][-1] is True
