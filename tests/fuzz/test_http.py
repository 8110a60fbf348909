"""Requests that the OpenAPI document allows or forbids get only answers that it describes, and cause no fault."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis.errors import Unsatisfiable
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.generation import GenerationMode
from schemathesis.schemas import APIOperation
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from vivavoce_engine import Engine, EngineConfig, VoiceStore
from vivavoce_engine.fake_runner import FakeRunner, fake_voices
from vivavoce_server import ServerConfig, create_app

from tests.support.fuzzing import fuzz_function
from tests.support.live_server import LiveServer, live_server
from tests.support.waiting import wait_until

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
Operation = APIOperation[Any, Any, Any, Any]
TIMEOUT_S = 30
SHARE = 0.21
KINDS = {GenerationMode.POSITIVE: "HTTP: as documented", GenerationMode.NEGATIVE: "HTTP: against the document"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    store = VoiceStore(tmp_path_factory.mktemp("voices"), max_voices=50)
    engine = Engine(FakeRunner(), EngineConfig(max_context=512), fake_voices(store))
    with live_server(engine, ServerConfig(max_input_chars=200)) as running:
        yield running
        wait_until(lambda: running.service.speaking == 0)
        stats = engine.stats()
        assert (stats.running, stats.queued) == (0, 0)
        assert httpx.post(f"{running.url}/v1/audio/speech", json={"input": "Hi", "voice": "heart"}).status_code == 200


def operations() -> list[Operation]:
    """Of the document, as an app has it; the requests go to the server, over its socket."""
    document = create_app(Engine(FakeRunner(), EngineConfig()), ServerConfig()).openapi()
    schema = schemathesis.openapi.from_dict(document)
    found = [result.ok() for result in schema.get_all_operations() if isinstance(result, Ok)]
    assert len(found) >= 10
    return found


OPERATIONS = operations()
VARIED = sum(bool([*operation.iter_parameters()] or operation.body) for operation in OPERATIONS)
NEGATED = sum(bool(operation.body) for operation in OPERATIONS)
"""Of the others there is one request each, and no wrong one: in a path, any text is right."""


@pytest.mark.parametrize("mode", KINDS, ids=["allowed", "not allowed"])
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.label)
def test_every_operation(server: LiveServer, operation: Operation, mode: GenerationMode) -> None:
    def ask(case: schemathesis.Case[Any]) -> None:
        case.call_and_validate(base_url=server.url, checks=CHECKS, timeout=TIMEOUT_S)

    try:
        fuzz_function(KINDS[mode], SHARE / (VARIED + NEGATED), ask, case=operation.as_strategy(generation_mode=mode))
    except Unsatisfiable:
        pytest.skip("there is nothing of this kind to send")
