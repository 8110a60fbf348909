"""WS /v1/audio/speech/stream: refusals, their messages, and the close codes."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from pydantic import SecretStr
from vivavoce_engine import Engine, EngineConfig
from vivavoce_engine.batching.scheduler import Plan
from vivavoce_engine.fake_runner import FakeRunner
from vivavoce_server import ServerConfig
from vivavoce_server.uvicorn_sockets import connection_options
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Origin, Subprotocol

from tests.support.live_server import Gate, LiveServer, fake_engine, live_server
from tests.support.live_socket import dial, pcm_of
from tests.support.waiting import wait_until

KEY = "sk-secret"


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with live_server() as running:
        yield running


@pytest.fixture(scope="module")
def keyed_server() -> Iterator[LiveServer]:
    with live_server(config=ServerConfig(api_keys=(SecretStr(KEY),), key_max_concurrent=1)) as running:
        yield running


@pytest.mark.parametrize("message", ["", "no JSON", "[]", '"input.text"', "{}", '{"type": "input.texts"}', b"\x00\x01"])
async def test_what_is_not_the_protocol_closes_with_1002(server: LiveServer, message: str | bytes) -> None:
    async with dial(server) as socket:
        await socket.configure()
        await socket.connection.send(message)
        assert (await socket.error())["type"] == "invalid_request_error"
        assert await socket.close_code() == 1002


@pytest.mark.parametrize("kind", ["input.text", "input.done", "input.cancel"])
async def test_the_first_message_is_the_configuration(server: LiveServer, kind: str) -> None:
    async with dial(server) as socket:
        await socket.send(kind, **({"text": "Hello."} if kind == "input.text" else {}))
        assert (await socket.error())["code"] == "invalid_state"
        assert await socket.close_code() == 1002


async def test_a_session_may_be_closed_at_once(server: LiveServer) -> None:
    async with dial(server) as socket:
        await socket.send("session.close")
        assert (await socket.expect("session.done"))["utterances"] == 0
        assert await socket.close_code() == 1000


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"voice": "nobody"}, "voice", "voice_not_found"),
        ({"voice": "heart", "model": "other"}, "model", "model_not_found"),
        ({"voice": "heart", "sped": 2}, "sped", "unknown_parameter"),
        ({"voice": "heart", "speed": 9}, "speed", "invalid_value"),
        ({"voice": "heart", "response_format": "ogg"}, "response_format", "invalid_value"),
        ({"voice": "heart", "sample_rate": 44100}, "sample_rate", "invalid_value"),
        ({"voice": "heart", "split": "word"}, "split", "invalid_value"),
        ({"voice": "heart", "normalize": ["nothing"]}, "normalize", "invalid_value"),
        ({"voice": "heart", "normalization_options": {"x": 1}}, "normalization_options.x", "unknown_parameter"),
        ({"voice": "heart", "language": "klingon"}, "language", "invalid_value"),
        ({"voice": "heart", "non_streaming_mode": True}, "non_streaming_mode", "not_available"),
        ({}, "voice", "missing_required_parameter"),
    ],
)
async def test_a_wrong_configuration_is_told_and_may_be_corrected(
    server: LiveServer, fields: dict[str, object], param: str, code: str
) -> None:
    async with dial(server) as socket:
        await socket.send("session.config", **fields)
        error = await socket.error()
        assert (error["param"], error["code"]) == (param, code)
        assert error["message"]
        await socket.configure()


async def test_messages_out_of_place_are_told(server: LiveServer) -> None:
    async with dial(server) as socket:
        await socket.configure()
        await socket.send("input.done")
        assert (await socket.error())["code"] == "invalid_state"
        await socket.say("He")
        await socket.expect("audio.start")
        await socket.send("session.config", voice="michael")
        await socket.send("input.text")
        await socket.send("input.text", text=5)
        errors: list[tuple[str, str | None]] = []
        while len(errors) < 3:
            message = await socket.receive()
            if isinstance(message, dict):
                errors.append((message["error"]["code"], message["error"]["param"]))
        assert errors == [("invalid_state", None), ("missing_required_parameter", "text"), ("invalid_value", "text")]


async def test_blank_text_is_told(server: LiveServer) -> None:
    with live_server(Engine(BlankRunner(), EngineConfig())) as blank_server:
        async with dial(blank_server) as socket:
            await socket.configure()
            await socket.say("Hm")
            await socket.expect("audio.start")
            await socket.send("input.done")
            error = await socket.error()
            assert (error["param"], error["code"]) == ("input", "invalid_value")
            assert (await socket.expect("audio.done"))["cancelled"]


class BlankRunner(FakeRunner):
    """Finds no token in any text."""

    def __init__(self) -> None:
        super().__init__()
        self.text = NoText(self.info)


class NoText(type(FakeRunner().text)):  # type: ignore[misc]
    def append(self, text: str, word_ends: bool = False) -> list[int]:
        return []

    def live_text(self, word_times: bool = False) -> "NoText":
        return self


async def test_too_large_messages_close_with_1009(server: LiveServer) -> None:
    async with dial(server) as socket:
        limits = (await socket.configure())["limits"]
        assert limits["max_config_bytes"] == connection_options(ServerConfig())["ws_max_size"] == 2**22
        await socket.say("x" * 2**17)
        assert (await socket.error())["code"] == "message_too_large"
        assert await socket.close_code() == 1009
    async with dial(server) as socket:
        with suppress(ConnectionClosed):
            await socket.send("session.config", voice="x" * 2**22)
        assert await socket.close_code() == 1009


async def test_too_much_text_in_an_utterance_is_passed_over() -> None:
    with live_server(config=ServerConfig(live_max_chars=600)) as server:
        async with dial(server) as socket:
            await socket.configure()
            await socket.say("words " * 98 + "of")
            await socket.expect("audio.start")
            await socket.say(" far too many")
            await socket.say(" mine, ok.")
            await socket.send("input.done")
            codes, audio_bytes = [], 0
            while True:
                message = await socket.receive()
                if isinstance(message, bytes):
                    audio_bytes += len(message)
                elif message["type"] == "audio.done":
                    break
                else:
                    codes.append(message["error"]["code"])
            assert codes == ["string_above_max_length"]
            assert audio_bytes == len(pcm_of(5, 600))


async def test_too_much_that_waits_its_turn_closes_with_1008() -> None:
    gate = Gate()
    with live_server(fake_engine(before_step=gate), ServerConfig(live_max_chars=600)) as server:
        async with dial(server) as socket:
            await socket.configure()
            await socket.say("Hi")
            await socket.send("input.done")
            for _ in range(10):
                await socket.say("")
            assert await socket.close_code() == 1008
            gate.open()
        wait_until(lambda: server.engine.stats().running == 0)


async def test_without_a_key_the_first_message_must_come_soon(
    keyed_server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vivavoce_server.live.connection.FIRST_MESSAGE_S", 0.01)
    async with dial(keyed_server) as socket:
        assert (await socket.error())["code"] == "first_message_timeout"
        assert await socket.close_code() == 1008
    async with dial(keyed_server, f"?api_key={KEY}") as socket:
        await asyncio.sleep(0.1)
        await socket.configure()


async def test_an_utterance_that_gets_no_more_text_gives_up_its_row() -> None:
    with live_server(config=ServerConfig(live_idle_s=0.5)) as server:
        async with dial(server) as socket:
            await socket.configure()
            await socket.say("He said ")
            await socket.expect("audio.start")
            await socket.audio()
            message = await socket.receive()
            while isinstance(message, bytes):
                message = await socket.receive()
            assert message["error"]["code"] == "idle_timeout"
            assert (await socket.expect("audio.done"))["cancelled"]
            wait_until(lambda: server.engine.stats().running == 0)
            await socket.say("this is passed over")
            await socket.send("input.done")
            await socket.say("Hi!")
            await socket.send("input.done")
            assert (await socket.utterance()).audio == pcm_of(5, 3)


async def test_a_text_that_is_too_long_is_not_called_blank() -> None:
    with live_server(config=ServerConfig(live_max_chars=10)) as server:
        async with dial(server) as socket:
            await socket.configure()
            await socket.say("Hello, all of you.")
            await socket.send("input.done")
            await socket.expect("audio.start")
            assert (await socket.error())["code"] == "string_above_max_length"
            error = await socket.error()
            assert (error["code"], error["message"]) == (
                "nothing_to_speak",
                "All of the input was passed over: nothing in it can be spoken",
            )
            assert (await socket.expect("audio.done"))["cancelled"]


@pytest.mark.parametrize("place", ["header", "query", "message"])
async def test_keys_may_come_in_three_places(keyed_server: LiveServer, place: str) -> None:
    headers = {"Authorization": f"Bearer {KEY}"} if place == "header" else {}
    query = f"?api_key={KEY}" if place == "query" else ""
    async with dial(keyed_server, query, additional_headers=headers) as socket:
        await socket.configure(**({"api_key": KEY} if place == "message" else {}))
        await socket.say("Hi!")
        await socket.send("input.done")
        assert (await socket.utterance()).audio == pcm_of(5, 3)


@pytest.mark.parametrize("fields", [{}, {"api_key": "wrong"}])
async def test_without_a_key_it_closes_with_1008(keyed_server: LiveServer, fields: dict[str, str]) -> None:
    async with dial(keyed_server) as socket:
        with suppress(ConnectionClosed):
            await socket.send("session.config", voice="heart", **fields)
        error = await socket.error()
        assert error["code"] == "invalid_api_key"
        assert "wrong" not in error["message"]
        assert await socket.close_code() == 1008


async def refusal_of(url: str, **options: Any) -> tuple[int, dict[str, Any]]:
    """Status and error object of a handshake that is refused."""
    with pytest.raises(InvalidStatus) as refused:
        await connect(url.replace("http", "ws"), proxy=None, **options)
    response = refused.value.response
    assert response.body is not None
    return response.status_code, json.loads(response.body)["error"]


@pytest.mark.parametrize("path", ["/v1/audio/speech/stream", "/v1/text-to-speech/heart/stream-input"])
@pytest.mark.parametrize(("query", "headers"), [("?api_key=wrong", {}), ("", {"Authorization": "Bearer wrong"})])
async def test_a_wrong_key_is_a_401_in_the_handshake(
    keyed_server: LiveServer, path: str, query: str, headers: dict[str, str]
) -> None:
    status, error = await refusal_of(keyed_server.url + path + query, additional_headers=headers)
    assert (status, error["code"]) == (401, "invalid_api_key")


@pytest.mark.parametrize("path", ["/", "/v1/audio/speech", "/audio/speech/stream"])
async def test_a_path_without_a_socket_is_a_404_that_names_those_with_one(server: LiveServer, path: str) -> None:
    status, error = await refusal_of(server.url + path)
    assert (status, error["code"]) == (404, "not_found")
    assert f"There is no WebSocket at {path}; there are /v1/audio/speech/stream," in error["message"]


async def test_connections_without_a_key_take_no_place_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vivavoce_server.service.MAX_SESSIONS_WITHOUT_KEY", 2)
    config = ServerConfig(api_keys=(SecretStr(KEY),), live_max_sessions=2)
    with live_server(config=config) as server:

        def two_wait() -> bool:
            return server.service.sessions_without_key == 2

        async with dial(server) as oldest, dial(server) as second, dial(server, f"?api_key={KEY}") as socket:
            await socket.configure()
            await asyncio.to_thread(wait_until, two_wait)
            async with dial(server) as newest:
                # The oldest that has sent no key gives way; one that sends its key is let in.
                assert (await oldest.error())["code"] == "too_many_without_key"
                assert await oldest.close_code() == 1013
                await newest.configure(api_key=KEY)
                assert server.service.live_sessions == 2
                await second.send("session.config", voice="heart", api_key=KEY)
                assert (await second.error())["type"] == "rate_limit_error"
                assert await second.close_code() == 1013


@pytest.mark.parametrize(
    ("path", "offered", "chosen"),
    [
        ("/v1/realtime", ["realtime", f"openai-insecure-api-key.{KEY}", "openai-beta.realtime-v1"], "realtime"),
        ("/v1/realtime", [f"openai-insecure-api-key.{KEY}"], None),
        ("/v1/audio/speech/stream", ["realtime"], None),
        ("/v1/text-to-speech/heart/stream-input", ["graphql-ws", "x"], None),
        ("/v1/text-to-speech/heart/multi-stream-input", ["x"], None),
    ],
)
async def test_offered_subprotocols_are_answered(
    keyed_server: LiveServer, path: str, offered: list[str], chosen: str | None
) -> None:
    url = keyed_server.url + path
    subprotocols = [Subprotocol(name) for name in offered]
    if chosen is None:
        status, error = await refusal_of(url, subprotocols=subprotocols)
        assert (status, error["code"]) == (400, "unknown_subprotocol")
        assert KEY not in error["message"]
        return
    async with connect(url.replace("http", "ws"), proxy=None, subprotocols=subprotocols) as connection:
        assert connection.subprotocol == chosen
        assert json.loads(await connection.recv())["type"] == "session.created"


async def test_a_keys_limit_counts_utterances_not_connections(keyed_server: LiveServer) -> None:
    query = f"?api_key={KEY}"
    async with dial(keyed_server, query) as first, dial(keyed_server, query) as second:
        await first.configure()
        await second.configure()
        await first.say("He")
        await first.expect("audio.start")
        await second.say("No", "t now")
        assert (await second.error())["code"] == "rate_limit_exceeded"
        await second.send("input.done")
        await first.send("input.cancel")
        await first.rest()
        await second.say("Now")
        await second.send("input.done")
        assert (await second.utterance()).audio == pcm_of(5, 3)


@pytest.mark.parametrize("origin", ["", "http://good.example"])
async def test_pages_of_its_own_and_of_listed_sites_come_in(origin: str) -> None:
    with live_server(config=ServerConfig(cors_origins=("http://good.example",))) as server:
        async with dial(server, origin=Origin(origin or server.url)) as socket:
            await socket.configure()


async def test_a_full_server_closes_with_1013() -> None:
    with live_server(config=ServerConfig(live_max_sessions=1)) as server:
        async with dial(server) as first:
            await first.configure()
            async with dial(server) as second:
                assert (await second.error())["type"] == "rate_limit_error"
                assert await second.close_code() == 1013
        wait_until(lambda: server.service.live_sessions == 0)
        async with dial(server) as third:
            await third.configure()


async def test_a_server_that_stops_finishes_what_it_says_and_closes_with_1013() -> None:
    gate = Gate()
    with live_server(fake_engine(before_step=gate)) as server:
        async with dial(server) as speaking, dial(server) as waiting:
            await waiting.configure()
            await speaking.configure()
            await speaking.say("Hi!")
            await speaking.send("input.done")
            await speaking.expect("audio.start")
            server.service.drain()
            # An idle connection is told at once, a speaking one when it has spoken.
            assert (await waiting.error())["code"] == "not_serving"
            assert await waiting.close_code() == 1013
            gate.open()
            assert (await speaking.rest())[0] == pcm_of(5, 3)
            assert (await speaking.error())["code"] == "not_serving"
            assert await speaking.close_code() == 1013
            async with dial(server) as late:
                assert await late.close_code() == 1013


async def test_a_full_queue_is_told_and_may_be_tried_again() -> None:
    gate = Gate()
    engine = fake_engine(EngineConfig(max_streams=1, max_queue=1), before_step=gate)
    with live_server(engine) as server:
        async with dial(server) as first, dial(server) as second, dial(server) as third:
            for socket in (first, second):
                await socket.configure()
                await socket.say("Hi!")
                await socket.send("input.done")
                await socket.expect("audio.start")
                wait_until(lambda: bool(gate.batches))
            wait_until(lambda: server.engine.stats().queued == 1)  # audio.start may come before
            await third.configure()
            await third.say("Hi there, you ")
            await third.expect("audio.start")
            assert (await third.error())["code"] == "queue_full"
            assert (await third.expect("audio.done"))["cancelled"]
            await third.send("input.done")
            gate.open()
            assert (await second.rest())[0] == pcm_of(5, 3)
            await third.say("Hi!")
            await third.send("input.done")
            assert (await third.utterance()).audio == pcm_of(5, 3)


async def test_an_engine_that_dies_is_told() -> None:
    def fail(plan: Plan) -> None:
        if plan.vocode:
            raise RuntimeError("a broken GPU")

    with live_server(fake_engine(before_step=fail)) as server:
        async with dial(server) as socket:
            await socket.configure()
            await socket.say("Hello there ")
            await socket.expect("audio.start")
            assert (await socket.expect("audio.done"))["cancelled"]
            error = await socket.error()
            assert (error["type"], error["code"]) == ("service_unavailable", "not_serving")
            assert await socket.close_code() == 1013


async def test_a_bug_closes_with_1011(server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("something secret")

    async with dial(server) as socket:
        await socket.configure()
        monkeypatch.setattr("vivavoce_server.live.session.LiveSession.append", fail)
        await socket.say("Hello")
        error = await socket.error()
        assert error["code"] == "bug"
        assert "secret" not in error["message"]
        assert await socket.close_code() == 1011


async def test_a_text_that_is_no_utf_8_closes_with_1007_and_logs_no_traceback(
    server: LiveServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with dial(server) as socket:
        await socket.configure()
        await socket.connection.send([b"\xff", b"\xfe"], text=True)
        assert await socket.close_code() == 1007
    assert socket.connection.close_reason == "invalid start byte at position 0"
    assert [record for record in caplog.records if record.exc_info] == []


async def test_a_message_in_too_many_fragments_closes_with_1009(
    server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vivavoce_server.uvicorn_sockets.MAX_FRAGMENTS", 4)
    async with dial(server) as socket:
        # The client sends one more frame, which is empty, as the last one.
        await socket.connection.send(['{"type": "session.config"', "", ', "voice": "heart"}'])
        await socket.expect("session.created")
        await socket.connection.send(['{"type": "session.config"', "", "", ', "voice": "heart"}'])
        assert await socket.close_code() == 1009
    assert socket.connection.close_reason == "a message has at most 4 fragments"


async def test_half_a_character_in_an_events_id_is_told_escaped(server: LiveServer) -> None:
    message = '{"type": "unknown", "event_id": "\\ud800", "pad": "' + "a" * 2**18 + '"}'
    async with connect(f"{server.url.replace('http', 'ws')}/v1/realtime", proxy=None) as socket:
        await socket.recv()
        await socket.send(message)
        assert json.loads(await socket.recv())["error"]["event_id"] == "\\ud800"
