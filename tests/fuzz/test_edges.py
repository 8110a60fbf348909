"""Requests and messages with several odd values at once, drawn from the edges of the schemas and from beyond them."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import strategies as st
from vivavoce_engine import Engine, EngineConfig, VoiceStore
from vivavoce_engine.fake_runner import FakeRunner, fake_voices
from vivavoce_server import ServerConfig, create_app

from tests.support.edge_requests import (
    JSON_WORDS,
    OWN_BODY,
    Asked,
    body_schema,
    fault_of,
    good_body,
    json_request,
    operations,
)
from tests.support.edge_talks import Protocol, hold, protocols, talk_with
from tests.support.edges import Edge, Field, Schema, fields, values, with_value
from tests.support.fuzzing import fuzz_function
from tests.support.live_server import LiveServer, live_server
from tests.support.waiting import HUNG_S

DOCUMENT: Schema = create_app(Engine(FakeRunner(), EngineConfig()), ServerConfig()).openapi()
BODIES = [
    (method, path.replace("{voice_id}", "heart"), schema)
    for method, path, operation in operations(DOCUMENT)
    if (schema := body_schema(operation, "application/json")) is not None
]
PROTOCOLS = [protocol for protocol in protocols() if fields(protocol.schema, protocol.schema)]
MAX_ODD = 4
BEYOND = (
    st.floats() | st.integers() | st.text(max_size=50) | st.none() | st.booleans() | st.lists(st.floats(), max_size=5)
)
NAMES = (*JSON_WORDS, "voice", "input", "text")
"""Words of errors about several fields together."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder: Path = tmp_path_factory.mktemp("voices")
    engine = Engine(FakeRunner(), EngineConfig(), fake_voices(VoiceStore(folder, max_voices=50)))
    with live_server(engine) as running:
        yield running
        assert httpx.post(f"{running.url}/v1/audio/speech", json=OWN_BODY).status_code == 200


def odd_values(schema: Schema, root: Schema) -> st.SearchStrategy[list[tuple[Field, Edge]]]:
    """Fields of a document, each with a value."""
    choices = [(field, list(values(field, root))) for field in fields(schema, root)]

    def valued(choice: tuple[Field, list[Edge]]) -> st.SearchStrategy[tuple[Field, Edge]]:
        field, edges = choice
        drawn = st.sampled_from(edges) | BEYOND.map(lambda value: Edge(repr(value), value))
        return drawn.map(lambda edge: (field, edge))

    return st.lists(st.sampled_from(choices).flatmap(valued), min_size=1, max_size=MAX_ODD)


def changed(document: object, odd: list[tuple[Field, Edge]], schema: Schema, root: Schema) -> object:
    for field, edge in odd:
        document = with_value(document, field, edge.value, schema, root)
    return document


def names_of(odd: list[tuple[Field, Edge]]) -> tuple[str, ...]:
    return tuple(str(key) for field, _ in odd for key in field.path if isinstance(key, str)) + NAMES


@pytest.mark.parametrize(("method", "path", "schema"), BODIES, ids=[path for _, path, _ in BODIES])
def test_several_odd_values_of_a_request(server: LiveServer, method: str, path: str, schema: Schema) -> None:
    with httpx.Client(base_url=server.url, timeout=HUNG_S, trust_env=False) as http:

        def check(odd: list[tuple[Field, Edge]]) -> None:
            told = ", ".join(f"{field.label} = {edge.label}" for field, edge in odd)
            document = changed(good_body(path), odd, schema, DOCUMENT)
            asked: Asked = json_request(method, path, told, names_of(odd), document)
            fault = fault_of(asked, asked.send(http))
            assert fault is None, fault

        fuzz_function("HTTP: several edges", 0.04 / len(BODIES), check, odd=odd_values(schema, DOCUMENT))


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=[f"{protocol.path} {protocol.name}" for protocol in PROTOCOLS])
def test_several_odd_values_of_a_message(server: LiveServer, protocol: Protocol) -> None:
    def check(odd: list[tuple[Field, Edge]]) -> None:
        told = ", ".join(f"{field.label} = {edge.label}" for field, edge in odd)
        message: Any = changed(protocol.good, odd, protocol.schema, protocol.schema)
        fault = asyncio.run(hold(server.url, talk_with(protocol, told, message, (*names_of(odd), "type", "item"))))
        assert fault is None, fault

    share = 0.02 / len(PROTOCOLS)
    fuzz_function("sockets: several edges", share, check, odd=odd_values(protocol.schema, protocol.schema))
