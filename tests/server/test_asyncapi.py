"""The AsyncAPI document is valid, and is what the sockets do: its messages are taken, and no others are sent."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, get_args

import httpx
import jsonschema_rs
import pytest
from pydantic import SecretStr
from vivavoce_server import ServerConfig
from vivavoce_server.app import SOCKETS
from vivavoce_server.asyncapi import (
    CHANNELS,
    LIVE,
    MULTI_STREAM_INPUT,
    REALTIME,
    STREAM_INPUT,
    Channel,
    Message,
    document,
)
from vivavoce_server.live import websocket
from vivavoce_server.live.closing import Code
from vivavoce_server.live.realtime_events import CLIENT_EVENTS
from websockets.asyncio.client import ClientConnection, connect

from tests.support.live_server import LiveServer, live_server
from tests.support.programs import needs
from tests.support.waiting import HUNG_S

SCHEMA = Path(__file__).parents[1] / "web/node_modules/@asyncapi/specs/schemas/3.0.0-without-$id.json"
Json = dict[str, Any]

each_message = pytest.mark.parametrize(
    "message",
    [message for channel in CHANNELS for message in channel.messages if message.model],
    ids=lambda message: message.name,
)


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with live_server() as running:
        yield running


def keyed() -> Json:
    return document("localhost:8000", "https", "/speech", has_keys=True)


def references(node: object) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


# ---- the document ---------------------------------------------------------------------------------------------


@needs("tests/web/node_modules")
@pytest.mark.parametrize("has_keys", [False, True])
def test_the_document_has_the_form_of_asyncapi_3(has_keys: bool) -> None:
    validator = jsonschema_rs.validator_for(json.loads(SCHEMA.read_text(encoding="utf-8")))
    own = document("localhost:8000", "http", "", has_keys)
    assert [str(error)[:500] for error in validator.iter_errors(own)] == []
    assert not validator.is_valid({**own, "channels": {"live": {"address": 1}}})


def test_every_reference_leads_somewhere() -> None:
    own = keyed()
    found = set(references(own))
    assert len(found) > 50
    for reference in found:
        node: Any = own
        for key in reference.removeprefix("#/").split("/"):
            node = node[key]


def test_the_document_is_served_with_the_address_that_was_called(server: LiveServer) -> None:
    own = httpx.get(f"{server.url}/asyncapi.json").json()
    assert own["servers"] == {"this": {"host": server.url.removeprefix("http://"), "protocol": "ws"}}
    assert "securitySchemes" not in own["components"]
    assert "security" not in own["operations"]["live.receive"]
    with live_server(config=ServerConfig(api_keys=(SecretStr("k"),))) as other:
        own = httpx.get(f"{other.url}/asyncapi.json").json()
    assert own["operations"]["live.receive"]["security"][0] == {"$ref": "#/components/securitySchemes/key"}
    assert keyed()["servers"] == {"this": {"host": "localhost:8000", "protocol": "wss", "pathname": "/speech"}}


def test_the_channels_are_the_sockets_of_the_server() -> None:
    addresses = [getattr(route, "path", "") for router in SOCKETS for route in router.routes]
    assert sorted(channel.address for channel in CHANNELS) == sorted(addresses)
    for channel in keyed()["channels"].values():
        assert channel["x-close-codes"].keys() == {str(code.value) for code in Code}
        assert channel["bindings"]["ws"]["query"]["properties"]
        assert len(channel["description"]) > 500


def test_the_messages_of_clients_are_those_that_the_sockets_parse() -> None:
    kinds = {get_args(model.model_fields["type"].annotation)[0]: model for model in get_args(websocket.Message)}
    assert {message.name: message.model for message in LIVE.received} == kinds
    assert {message.name: message.model for message in REALTIME.received} == CLIENT_EVENTS


def test_every_field_of_a_message_has_a_description() -> None:
    schemas = keyed()["components"]["schemas"]
    fields = {
        f"{name}.{key}": value for name, each in schemas.items() for key, value in each.get("properties", {}).items()
    }
    assert len(fields) > 100
    assert [name for name, field in fields.items() if not field.get("description", "").strip()] == []


@each_message
def test_an_example_fits_its_schema(message: Message) -> None:
    own = keyed()
    schema = {**message.as_json()["payload"], "components": own["components"]}
    assert jsonschema_rs.validator_for(schema).is_valid(message.example)
    assert message.as_json()["summary"]


# ---- the sockets ----------------------------------------------------------------------------------------------


def name_of(message: Json | bytes, channel: Channel) -> str:
    """The documented name of a message of the server, which must have exactly documented fields."""
    if isinstance(message, bytes):
        return "audio"
    if channel is LIVE or channel is REALTIME:
        kind = message["type"]
        name = f"server.{kind}" if channel is REALTIME else kind
    else:
        name = "error" if "error" in message else "final" if message["isFinal"] else "audio"
    [documented] = [each for each in channel.sent if each.name == name]
    assert documented.model is not None
    # A field that the model lacks would be missing here.
    assert documented.model.model_validate(message).model_dump(exclude_unset=True) == message
    return name


class Talk:
    """A connection whose messages are compared with the document."""

    def __init__(self, connection: ClientConnection, channel: Channel) -> None:
        self._connection = connection
        self._channel = channel
        self.seen: list[str] = []
        self.examples: dict[str, Json] = {
            message.name: message.example for message in channel.received if isinstance(message.example, dict)
        }

    async def example(self, name: str, **fields: object) -> None:
        await self.send({**self.examples[name], **fields})

    async def send(self, message: Json) -> None:
        await self._connection.send(json.dumps(message))

    async def until(self, name: str) -> Json:
        """Receives messages up to one of this name."""
        while True:
            async with asyncio.timeout(HUNG_S):
                given = await self._connection.recv()
            message: Json | bytes = given if isinstance(given, bytes) else json.loads(given)
            self.seen.append(name_of(message, self._channel))
            if self.seen[-1] == name:
                assert isinstance(message, dict)
                return message


@asynccontextmanager
async def talk(server: LiveServer, channel: Channel, query: str = "") -> AsyncIterator[Talk]:
    address = channel.address.replace("{voice_id}", "heart")
    async with connect(server.url.replace("http", "ws") + address + query, proxy=None) as connection:
        yield Talk(connection, channel)


async def test_live_text_takes_the_examples_and_sends_what_is_documented(server: LiveServer) -> None:
    async with talk(server, LIVE) as live:
        await live.example("session.config", word_timestamps=True)
        for name in ("input.text", "input.done"):
            await live.example(name)
        await live.until("audio.done")
        await live.example("input.cancel")
        assert "error" not in live.seen
        await live.send({"type": "session.config", "speed": 9})
        await live.until("error")
        await live.example("session.close")
        await live.until("session.done")
    assert set(live.seen) == {message.name for message in LIVE.sent}


async def test_stream_input_takes_the_example_and_sends_what_is_documented(server: LiveServer) -> None:
    async with talk(server, STREAM_INPUT, "?output_format=pcm_24000") as stream:
        await stream.example("text")
        await stream.send({"text": ""})
        await stream.until("final")
    assert set(stream.seen) == {"audio", "final"}
    async with talk(server, STREAM_INPUT, "?output_format=none") as stream:
        await stream.example("text")
        await stream.until("error")


async def test_multi_stream_input_takes_the_example_and_sends_what_is_documented(server: LiveServer) -> None:
    async with talk(server, MULTI_STREAM_INPUT, "?output_format=pcm_24000") as stream:
        await stream.example("text")
        await stream.send({"context_id": "turn-1", "flush": True})
        await stream.send({"context_id": "turn-1", "close_context": True})
        assert (await stream.until("final"))["contextId"] == "turn-1"
        await stream.send({"context_id": "turn-1"})
        await stream.until("error")
    assert set(stream.seen) == {"audio", "final", "error"}


async def test_realtime_takes_the_examples_and_sends_what_is_documented(server: LiveServer) -> None:
    async with talk(server, REALTIME, "?model=gpt-realtime") as realtime:
        await realtime.until("server.session.created")
        await realtime.example("session.update")
        await realtime.until("server.session.updated")
        await realtime.example("conversation.item.create")
        await realtime.until("server.conversation.item.done")
        await realtime.example("conversation.item.retrieve")
        await realtime.example("input_audio_buffer.append")
        await realtime.example("input_audio_buffer.clear")
        await realtime.until("server.input_audio_buffer.cleared")
        await realtime.example("response.create")
        item_id = (await realtime.until("server.response.output_item.added"))["item"]["id"]
        await realtime.until("server.response.done")
        await realtime.example("conversation.item.truncate", item_id=item_id)
        await realtime.until("server.conversation.item.truncated")
        await realtime.example("conversation.item.delete")
        await realtime.until("server.conversation.item.deleted")
        assert "server.error" not in realtime.seen
        await realtime.example("response.cancel")
        await realtime.until("server.error")
    assert set(realtime.seen) == {message.name for message in REALTIME.sent}
