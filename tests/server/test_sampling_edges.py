"""The shipped voice at the edges of a request's numbers for sampling: speech of the usual length, and no fault."""

from collections.abc import Iterator

import httpx
import pytest
from pydantic import ValidationError
from vivavoce_server.schemas import SpeechRequest

from tests.support.edges import Field, Literal, fields, numbers
from tests.support.server_process import serving
from tests.support.waiting import HUNG_S

TEXT = "Hello there."
MAX_S = 8.0
"""Far beyond what a seed makes of TEXT."""
BYTES_A_S = 48_000
SCHEMA = SpeechRequest.model_json_schema()
SAMPLING = ("temperature", "top_p", "top_k", "repetition_penalty")
FIELDS = [field for field in fields(SCHEMA, SCHEMA) if field.label in SAMPLING]


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with (
        serving(tmp_path_factory.mktemp("server")) as (_, url),
        httpx.Client(base_url=url, timeout=HUNG_S, trust_env=False) as client,
    ):
        yield client


def allowed_numbers(field: Field) -> dict[str, object]:
    """The edges that the schema allows, by their labels. Others are refused before they reach an engine."""
    found: dict[str, object] = {}
    for edge in numbers(field.kinds):
        if isinstance(edge.value, Literal):
            continue
        try:
            SpeechRequest.model_validate({"input": TEXT, field.label: edge.value})
        except ValidationError:
            continue
        found[edge.label] = edge.value
    return found


def test_the_fields_are_in_the_schema() -> None:
    assert [len(allowed_numbers(field)) >= 2 for field in FIELDS] == [True] * len(SAMPLING)


@pytest.mark.parametrize("field", FIELDS, ids=SAMPLING)
def test_speech_ends_whatever_the_number(http: httpx.Client, field: Field) -> None:
    for label, value in allowed_numbers(field).items():
        body = {"input": TEXT, "voice": "alloy", "response_format": "pcm", "seed": 7, field.label: value}
        answer = http.post("/v1/audio/speech", json=body)
        assert answer.status_code == 200, (label, answer.text)
        assert 0 < len(answer.content) <= MAX_S * BYTES_A_S, label
