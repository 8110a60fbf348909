"""The shipped voice at the edges of a request's numbers: speech of the usual length, or an error that names them."""

from collections.abc import Iterator

import httpx
import pytest
from vivavoce_server.schemas import SpeechRequest

from tests.support.edges import Field, Literal, as_json, fields, numbers
from tests.support.server_process import serving
from tests.support.waiting import HUNG_S

TEXT = "Hello there."
MAX_S = 8.0
"""Far beyond what a seed makes of TEXT, at the speed of 1."""
BYTES_A_S = 48_000
SLOWEST = 4
"""Times as long, or as many bytes, by the least speed or another sample rate."""
SCHEMA = SpeechRequest.model_json_schema()
NUMERIC = [field for field in fields(SCHEMA, SCHEMA) if field.types() & {"integer", "number"} and len(field.path) == 1]


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with (
        serving(tmp_path_factory.mktemp("server")) as (_, url),
        httpx.Client(base_url=url, timeout=HUNG_S, trust_env=False) as client,
    ):
        yield client


def test_the_numbers_of_a_request_are_found() -> None:
    assert {"temperature", "top_p", "top_k", "repetition_penalty", "speed"} <= {field.name for field in NUMERIC}


@pytest.mark.parametrize("field", NUMERIC, ids=[field.name for field in NUMERIC])
def test_a_number_ends_speech_or_is_refused(http: httpx.Client, field: Field) -> None:
    for edge in numbers(field.kinds):
        if isinstance(edge.value, Literal | str):
            continue
        body: dict[str, object] = {
            "input": TEXT,
            "voice": "alloy",
            "response_format": "pcm",
            "seed": 7,
            field.name: edge.value,
        }
        answer = http.post("/v1/audio/speech", content=as_json(body), headers={"Content-Type": "application/json"})
        if answer.status_code == 400:
            assert field.name in answer.text, (edge.label, answer.text)
            continue
        assert answer.status_code == 200, (edge.label, answer.text)
        assert len(answer.content) <= MAX_S * BYTES_A_S * SLOWEST, edge.label
