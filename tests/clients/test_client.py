"""The client over a mock transport: its requests, and its handling of each answer."""

import json
from collections.abc import AsyncIterator, Callable, Iterator

import httpx
import pytest
from vivavoce_client import ApiError, AsyncClient, Client, ConnectionFailed, StreamBroken, VivavoceError, Voice

Handler = Callable[[httpx.Request], httpx.Response]


class Pieces(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body in pieces that breaks off, if told so."""

    def __init__(self, *pieces: bytes, broken: bool = False) -> None:
        self._pieces = pieces
        self._broken = broken

    def __iter__(self) -> Iterator[bytes]:
        yield from self._pieces
        if self._broken:
            raise httpx.RemoteProtocolError("incomplete chunked read")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self:
            yield piece


def sync_client(handler: Handler, api_key: str | None = None) -> Client:
    return Client("http://server", api_key=api_key, transport=httpx.MockTransport(handler))


def async_client(handler: Handler) -> AsyncClient:
    return AsyncClient("http://server", transport=httpx.MockTransport(handler))


def speech(request: httpx.Request) -> httpx.Response:
    return httpx.Response(200, headers={"content-type": "audio/pcm"}, stream=Pieces(b"ab", b"cd"))


@pytest.mark.parametrize(
    ("key", "header"), [(None, None), ("", None), (" \n", None), ("k", "Bearer k"), (" k\n", "Bearer k")]
)
def test_an_empty_key_is_no_key_and_blanks_are_no_part_of_one(key: str | None, header: str | None) -> None:
    seen: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return speech(request)

    with sync_client(handler, api_key=key) as client:
        client.speak("Hello.", voice="heart")
    assert seen[0].headers.get("authorization") == header


@pytest.mark.parametrize("key", ["schlüssel", "two\nlines"])
def test_a_key_that_no_header_carries_is_refused_and_not_repeated(key: str) -> None:
    with pytest.raises(VivavoceError, match="printable ASCII") as refused:
        sync_client(speech, api_key=key)
    assert key not in str(refused.value)


def test_the_request_is_openais() -> None:
    seen: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return speech(request)

    with sync_client(handler, api_key="k") as client:
        client.speak("Hello.", voice="heart", seed=5, model="m")
    (request,) = seen
    assert (request.method, request.url.path) == ("POST", "/v1/audio/speech")
    assert request.headers["authorization"] == "Bearer k"
    assert json.loads(request.content) == {
        "input": "Hello.",
        "voice": "heart",
        "response_format": "pcm",
        "seed": 5,
        "model": "m",
    }


def test_stream_gives_the_pieces() -> None:
    with sync_client(speech) as client, client.stream("Hello.", voice="heart") as running:
        assert running.first_audio_s is None
        assert list(running) == [b"ab", b"cd"]
        assert running.first_audio_s is not None
        assert running.content_type == "audio/pcm"


async def test_async_stream_gives_the_pieces() -> None:
    async with async_client(speech) as client, client.stream("Hello.", voice="heart") as running:
        assert [piece async for piece in running] == [b"ab", b"cd"]


async def test_async_speak_is_the_join() -> None:
    async with async_client(speech) as client:
        assert await client.speak("Hello.", voice="heart") == b"abcd"


def refuse(request: httpx.Request) -> httpx.Response:
    error = {"message": "full", "type": "rate_limit_error", "param": None, "code": "queue_full"}
    return httpx.Response(429, json={"error": error}, headers={"retry-after": "3"})


def test_a_refusal_is_typed() -> None:
    with sync_client(refuse) as client, pytest.raises(ApiError, match="full") as caught:
        client.speak("Hello.", voice="heart")
    error = caught.value
    assert (error.status, error.param, error.code, error.retry_after_s) == (429, None, "queue_full", 3.0)


async def test_an_async_refusal_is_typed() -> None:
    async with async_client(refuse) as client:
        with pytest.raises(ApiError, match="full"):
            await client.speak("Hello.", voice="heart")
        with pytest.raises(ApiError, match="full"):
            await client.voices()


def test_a_proxys_page_is_the_message() -> None:
    with (
        sync_client(lambda _: httpx.Response(502, text="Bad gateway")) as client,
        pytest.raises(ApiError, match="Bad gateway") as caught,
    ):
        client.voices()
    assert (caught.value.status, caught.value.code) == (502, None)


def broken(request: httpx.Request) -> httpx.Response:
    return httpx.Response(200, headers={"content-type": "audio/pcm"}, stream=Pieces(b"ab", broken=True))


def test_broken_speech_is_not_taken_for_whole() -> None:
    with sync_client(broken) as client, pytest.raises(StreamBroken):
        client.speak("Hello.", voice="heart")


async def test_broken_async_speech_is_not_taken_for_whole() -> None:
    async with async_client(broken) as client:
        with pytest.raises(StreamBroken):
            await client.speak("Hello.", voice="heart")


def test_no_server_is_told() -> None:
    def refuse_connection(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with sync_client(refuse_connection) as client, pytest.raises(ConnectionFailed):
        client.voices()


SPOKEN = {
    "text": "Five dollars.",
    "parts": [{"text": "Five dollars."}, {"pause_s": 0.5}, {"text": "Bye."}],
    "warnings": ["'Привет' is left out"],
    "language": "en",
}


async def test_the_text_that_would_be_said() -> None:
    seen: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json=SPOKEN)

    with sync_client(handler) as client:
        spoken = client.spoken_text("$5. [pause:500ms] Bye.", language="english", normalize=["numbers"])
    async with async_client(handler) as async_one:
        assert await async_one.spoken_text("$5. [pause:500ms] Bye.") == spoken
    assert str(spoken) == "Five dollars. [pause:0.5s] Bye."
    assert spoken.parts == ("Five dollars.", 0.5, "Bye.")
    assert spoken.warnings == ("'Привет' is left out",)
    assert spoken.answer == SPOKEN
    assert [(request.method, request.url.path) for request in seen] == [("POST", "/v1/audio/speech")] * 2
    common = {"input": "$5. [pause:500ms] Bye.", "return": "text"}
    assert [json.loads(request.content) for request in seen] == [
        {**common, "language": "english", "normalize": ["numbers"]},
        common,
    ]


def test_a_server_that_answers_with_audio_is_told() -> None:
    with sync_client(speech) as client, pytest.raises(VivavoceError, match='does not know `"return": "text"`'):
        client.spoken_text("Hello.")


def test_a_text_that_cannot_be_said_is_a_typed_refusal() -> None:
    with sync_client(refuse) as client, pytest.raises(ApiError, match="full"):
        client.spoken_text("Hello.")


async def test_voices() -> None:
    plain = {"id": "a", "name": "A", "model": "m", "aliases": ["alloy"], "object": "audio.voice"}
    sound = {"sex": "male", "accent": "Irish", "language": "english", "languages": ["english"], "description": "Deep"}
    listed = {"voices": [plain, {**plain, "id": "b", **sound}]}
    expected = [
        Voice("a", "A", "m", ("alloy",)),
        Voice("b", "A", "m", ("alloy",), None, "male", "Irish", "english", ("english",), "Deep"),
    ]
    with sync_client(lambda _: httpx.Response(200, json=listed)) as client:
        assert client.voices() == expected
    async with async_client(lambda _: httpx.Response(200, json=listed)) as async_one:
        assert await async_one.voices() == expected
