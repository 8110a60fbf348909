"""Bounds on the cost of a request: numbers, lengths, pauses and bodies are bounded, and a refusal names the field."""

import gzip
import json
import tracemalloc
from typing import Any

import httpx
import pytest
from pydantic import ValidationError
from vivavoce_engine import Rejected
from vivavoce_engine.fake_runner import FAKE_INFO
from vivavoce_engine.voices.blends import blend_embeddings, parse_blend
from vivavoce_server import ServerConfig, create_app
from vivavoce_server.elevenlabs_options import seed_of
from vivavoce_server.errors import ApiError
from vivavoce_server.jobs import prepare
from vivavoce_server.json_bodies import MAX_ESCAPES, MAX_KEYS, MAX_LISTS, MAX_QUOTES, MAX_VALUES, parse_json
from vivavoce_server.live.elevenlabs_multi import inactivity_of
from vivavoce_server.schemas import SpeechOptions, SpeechRequest
from vivavoce_server.service import Service
from vivavoce_server.voice_routes import parse_embedding

from tests.support.live_server import LiveServer, fake_engine
from tests.support.live_text import plan_for, record

SPEECH = "/v1/audio/speech"
ELEVENLABS = "/v1/text-to-speech/heart"
GOOD: dict[str, Any] = {"input": "Hello.", "voice": "heart", "response_format": "pcm"}
JSON = {"Content-Type": "application/json"}
COMPRESSED = gzip.compress(b'{"input": "Hi"}', mtime=0)
"""Without the time: a test has the same name in each of pytest's processes."""


def refusal(response: httpx.Response) -> tuple[int, str | None]:
    return response.status_code, response.json()["error"]["param"]


# ---- numbers


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("top_k", 2**63),
        ("top_k", 65_537),
        ("temperature", 2.01),
        ("repetition_penalty", 0.01),
        ("repetition_penalty", 0.99),
        ("max_new_tokens", 2**63),
        ("initial_codec_chunk_frames", 2**63),
        ("seed", 10**400),
        ("top_p", 1.01),
        ("language", "a" * 300),
        ("model", "a" * 300),
        ("voice", "a" * 2000),
        ("instructions", "a" * 20_000),
        ("ref_text", "a" * 5000),
        ("normalize", ["clean"] * 33),
        ("normalize", ["x" * 10_000]),
        ("speaker_embedding", [0.5] * 4097),
        ("speaker_embedding", [{"embedding": [0.5]}] * 17),
        ("speaker_embedding", [{"embedding": [0.5], "weight": 1e308}] * 2),
        ("speaker_embedding", [{"embedding": [0.5], "weight": 0}]),
        ("speaker_embedding", [{"embedding": [0.5] * 4097}]),
    ],
)
def test_a_value_out_of_range_names_its_field(server: LiveServer, field: str, value: object) -> None:
    given = {name: GOOD[name] for name in GOOD if name != "voice" or field != "speaker_embedding"}
    response = httpx.post(server.url + SPEECH, json={**given, field: value})
    status, param = refusal(response)
    assert (status, (param or "").split("[")[0]) == (400, field)
    assert len(response.content) < 1000, "the message repeats no long input"


@pytest.mark.parametrize(
    "fields",
    [
        {"top_k": 65_536},
        {"top_k": -1},
        {"temperature": 1e-38},
        {"temperature": 2},
        {"repetition_penalty": 1},
        {"repetition_penalty": 2},
        {"top_p": 1e-300},
        {"max_new_tokens": 65_536},
        {"initial_codec_chunk_frames": 65_536},
        {"seed": 2**63 - 1},
    ],
)
def test_the_edges_of_each_range_are_served(server: LiveServer, fields: dict[str, float]) -> None:
    assert httpx.post(server.url + SPEECH, json={**GOOD, **fields}).status_code == 200


async def test_a_temperature_near_zero_is_zero() -> None:
    service = Service({"fake": fake_engine()}, ServerConfig())
    jobs = [prepare(SpeechRequest(input="Hi", temperature=given), service) for given in (0.0, 1e-38, 0.0099, 0.01)]
    drawn = [job.turns[0].options.sampling.talker.temperature for job in jobs]
    assert drawn == [0, 0, 0, 0.01]


def test_every_number_of_the_document_has_a_range_and_every_text_and_list_a_length() -> None:
    document = create_app(fake_engine(), ServerConfig()).openapi()
    schemas = document["components"]["schemas"]
    bodies = ["SpeechRequest", "BatchRequest", "BatchItem", "TextToSpeech", "VoiceSettings"]
    for path in ("/v1/audio/voices", "/v1/audio/voice_consents"):
        form = document["paths"][path]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"]
        bodies.append(path)
        schemas[path] = form
    lacking = []

    def look(place: str, schema: dict[str, Any]) -> None:
        for member in ("anyOf", "oneOf"):
            for each in schema.get(member, ()):
                look(place, each)
        if schema.get("type") in ("number", "integer") and "enum" not in schema:
            has = {"minimum", "exclusiveMinimum"} & schema.keys() and {"maximum", "exclusiveMaximum"} & schema.keys()
            lacking.extend([] if has else [place])
        if schema.get("type") == "string" and not {"enum", "const", "contentMediaType"} & schema.keys():
            lacking.extend([] if "maxLength" in schema else [place])
        if schema.get("type") == "array":
            lacking.extend([] if "maxItems" in schema else [place])
            look(f"{place}[]", schema["items"])

    for name in (*bodies, "VoiceId", "WeightedEmbedding", "NormalizationOptions"):
        for field, schema in schemas[name]["properties"].items():
            look(f"{name}.{field}", schema)
    assert lacking == []


@pytest.mark.parametrize("seed", ["\u00b2", "\u0663", "9" * 5000, "-1", "1.5", str(2**63), ""])
def test_the_seed_of_a_query_is_a_number_in_ascii(seed: str) -> None:
    with pytest.raises(ApiError, match=r"seed is a whole number from 0 to 9223372036854775807") as refused:
        seed_of(seed)
    assert refused.value.detail.param == "seed"


def test_a_seed_of_a_query_is_taken() -> None:
    assert [seed_of(seed) for seed in ("0", "0042", str(2**63 - 1))] == [0, 42, 2**63 - 1]


@pytest.mark.parametrize("token", ["\u00b2", "\u0663", "9" * 5000, "-1"])
def test_a_token_of_a_page_is_a_short_number(server: LiveServer, token: str) -> None:
    response = httpx.get(f"{server.url}/v2/voices", params={"next_page_token": token})
    assert refusal(response) == (400, "next_page_token")


@pytest.mark.parametrize("timeout", ["\u00b2", "\u0663", "9" * 5000, "0", "-1", "nan", ""])
def test_a_time_of_inactivity_is_a_short_number(timeout: str) -> None:
    with pytest.raises(ApiError, match="whole number of seconds"):
        inactivity_of(timeout)


@pytest.mark.parametrize("weight", ["9" * 308, "0", "0.0000001", "1000001"])
def test_weights_of_mixes_have_a_range(server: LiveServer, weight: str) -> None:
    voice = f"heart({weight})+michael({weight})"
    assert refusal(httpx.post(server.url + SPEECH, json={**GOOD, "voice": voice})) == (400, "voice")
    with pytest.raises(Rejected, match=r"from 0.000001 to 1000000"):
        parse_blend(voice)
    with pytest.raises(Rejected, match=r"from 0.000001 to 1000000"):
        blend_embeddings([[0.5], [0.5]], [float(weight), 1.0])


def test_a_mix_is_read_as_it_is_written() -> None:
    assert parse_blend(" a (2) + b c( .5 )+d") == [("a", 2.0), ("b c", 0.5), ("d", 1.0)]


# ---- null, names, languages


@pytest.mark.parametrize(
    "field", [name for name in SpeechRequest.model_fields if name not in ("input", "voice", "answer")] + ["return"]
)
def test_null_is_the_default(server: LiveServer, field: str) -> None:
    with_null = httpx.post(server.url + SPEECH, json={"input": "Hello.", "voice": "heart", "seed": 1, field: None})
    without = httpx.post(server.url + SPEECH, json={"input": "Hello.", "voice": "heart", "seed": 1})
    assert (with_null.status_code, with_null.headers["content-type"]) == (200, without.headers["content-type"])


def test_null_in_an_item_leaves_the_value_of_the_batch(server: LiveServer) -> None:
    item = {"input": "Hello.", "response_format": None, "speed": None}
    body = {"items": [item], "voice": "heart", "response_format": "wav"}
    (result,) = httpx.post(f"{server.url}{SPEECH}/batch", json=body).json()["results"]
    assert result["media_type"] == "audio/wav"


def test_an_unknown_field_is_refused_also_with_null(server: LiveServer) -> None:
    assert refusal(httpx.post(server.url + SPEECH, json={**GOOD, "sped": None})) == (400, "sped")


@pytest.mark.parametrize(
    ("model", "status"),
    [
        ("gpt-4o-mini-tts-2025-12-15", 200),
        ("gpt-4o-mini-tts-2025-03-20", 200),
        ("tts-1-1106", 200),
        ("tts-1-hd-1106", 200),
        ("tts-1-hd", 200),
        ("tts-1-hd-11", 404),
        ("tts-2", 404),
        ("gpt-4o-mini-tts-\u0662\u0660\u0662\u0665-12-15", 404),
    ],
)
def test_dated_names_of_models(server: LiveServer, model: str, status: int) -> None:
    assert httpx.post(server.url + SPEECH, json={**GOOD, "model": model}).status_code == status


@pytest.mark.parametrize(
    ("given", "language"),
    [("en", "english"), ("EN", "english"), ("en-US", "english"), ("zh_CN", "chinese"), ("Auto", "Auto"), ("x", "x")],
)
def test_codes_of_languages(given: str, language: str) -> None:
    assert SpeechOptions(language=given).language == language


# ---- the cost of a body


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'{"a":[' + b"{}," * MAX_LISTS + b"{}]}", "objects and lists"),
        (b'{"a":[' + b"1," * (MAX_VALUES + 1) + b"1]}", "values"),
        (b"[" * (MAX_LISTS + 1), "objects and lists"),
        (b"{" + b'"a":1,' * (MAX_KEYS + 1) + b'"a":1}', "keys"),
        (b'{"a":"' + b"\\n" * (MAX_ESCAPES + 1) + b'"}', "escaped"),
        (b"[" + b'"' * (MAX_QUOTES + 1) + b"]", "quotation marks"),
        (b'{"a":[' + b",".join([b"9" * 4000] * 600) + b"]}", "besides its recordings"),
        (b'{"a":' + b"9" * 5000 + b"}", "5000 digits"),
        (b"[" * 10_000, "nested too deeply"),
        (b'{"a":' * 10_000, "nested too deeply"),
        (b'{"input": "caf\xe9"}', "no UTF-8 (byte 0xe9 at 14)"),
        (COMPRESSED, "compressed"),
    ],
)
def test_a_body_that_costs_too_much_is_refused_before_it_is_parsed(content: bytes, says: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ApiError) as refused:
            parse_json(content)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert says in str(refused.value)
    assert refused.value.status == 400
    assert peak_bytes < 3 * len(content) + 2**20


def test_bodies_of_the_largest_requests_are_parsed() -> None:
    recording = "QUJD" * (10 * 2**20 // 3)
    texts = [{"input": "\U0001f600," * 2048} for _ in range(32)]
    mixes = [{"input": "Hi", "speaker_embedding": [0.123456789] * 2048} for _ in range(32)]
    for body in ({"input": "Hi", "ref_audio": recording}, {"items": texts}, {"items": mixes}):
        assert parse_json(json.dumps(body).encode()) == body


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"speaker_embedding": [{}] * 100_000}, "speaker_embedding"),
        ({"speaker_embedding": ["a"] * 100_000}, "speaker_embedding"),
        ({"speaker_embedding": [[]] * 100_000}, "speaker_embedding"),
        ({"speaker_embedding": [0.5, *[{}] * 100_000]}, "speaker_embedding"),
        ({"normalize": [{}] * 100_000}, "normalize"),
        ({"voice": {f"v{number}": 1 for number in range(30_000)}}, "voice"),
        ({f"unknown{number}": 1 for number in range(30_000)}, "unknown0"),
    ],
)
def test_the_first_error_is_all_that_a_body_costs(fields: dict[str, Any], param: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ValidationError) as refused:
            SpeechRequest.model_validate({"input": "Hi", **fields})
        errors = refused.value.errors()
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert errors[0]["loc"][0] == param
    assert len(errors) <= 3
    assert peak_bytes < 2**20


def test_wrong_items_of_a_batch_cost_as_one(server: LiveServer) -> None:
    response = httpx.post(f"{server.url}{SPEECH}/batch", json={"items": [{}] * 10_000})
    assert refusal(response) == (400, "items[0].input")


@pytest.mark.parametrize("name", ["sp" * 100_000])
def test_a_long_name_is_not_repeated(server: LiveServer, name: str) -> None:
    response = httpx.post(server.url + SPEECH, json={**GOOD, name: 1})
    assert response.status_code == 400
    assert len(response.content) < 1000


@pytest.mark.parametrize(
    ("headers", "content", "says"),
    [
        ({"Content-Type": "application/x-www-form-urlencoded"}, b'{"input": "Hi"}', "Content-Type: application/json"),
        ({"Content-Type": "text/plain"}, b'{"input": "Hi"}', "Content-Type: application/json"),
        ({**JSON, "Content-Encoding": "gzip"}, COMPRESSED, "Content-Encoding: gzip"),
        (JSON, COMPRESSED, "compressed"),
        (JSON, '{"input": "caf\u00e9"}'.encode("latin-1"), "UTF-8"),
        (JSON, b"[" * 10_000, "nested"),
    ],
)
@pytest.mark.parametrize("path", [SPEECH, f"{SPEECH}/batch", ELEVENLABS])
def test_a_body_of_another_form_is_told(
    server: LiveServer, path: str, headers: dict[str, str], content: bytes, says: str
) -> None:
    response = httpx.post(server.url + path, content=content, headers=headers)
    assert response.status_code == 400
    assert says in response.json()["error"]["message"]


@pytest.mark.parametrize(
    "embedding", ["[" + "{}," * 15_000 + "{}]", "[" + "{}," * 20_000 + "{}]", "[0" + ",0" * 5000 + "]"]
)
def test_an_embedding_of_a_form_costs_as_little(embedding: str) -> None:
    with pytest.raises(ApiError) as refused:
        parse_embedding(embedding)
    assert refused.value.detail.param == "speaker_embedding"
    assert len(str(refused.value)) < 300


# ---- pauses

TOO_MANY = "There are more than 64 pauses, which is the most"
TOO_LONG = "The pauses are longer than 60 s together, which is the most"
LONG_TAG = "Hi.[pause:" + "x" * 150 + "]"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("Hi." + "[pause:10s]" * 7, TOO_LONG),
        ("Hi." + "[pause:10s]" * 370, TOO_LONG),
        ("Hi." + "[pause:10s]" * 6 + "[pause:1ms]", TOO_LONG),
        ("Hi." + "[pause:1ms]" * 65, TOO_MANY),
        ("Hi." + '<break time="10s"/>' * 7, TOO_LONG),
        ("Hi." + "<break/>" * 65, TOO_MANY),
        ("Hi.[pause:10.001s]", "the longest pause is 10 s"),
        (LONG_TAG, "is not a pause"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_pauses_have_a_budget(server: LiveServer, text: str, says: str, stream: bool) -> None:
    given = {**GOOD, "input": text, "normalize": ["markup"], "stream": stream}
    response = httpx.post(server.url + SPEECH, json=given)
    assert refusal(response) == (400, "input")
    assert says in response.json()["error"]["message"]
    assert len(response.content) < 300


def test_pauses_within_the_budget_are_spoken(server: LiveServer) -> None:
    spoken = httpx.post(server.url + SPEECH, json={**GOOD, "input": "[pause:10s]" * 6 + "Hi.", "stream": False})
    assert spoken.status_code == 200
    assert len(spoken.content) > 60 * 24_000 * 2


def test_elevenlabs_names_its_text(server: LiveServer) -> None:
    response = httpx.post(server.url + ELEVENLABS, json={"text": "Hi." + '<break time="10s"/>' * 7})
    assert refusal(response) == (400, "text")


def test_the_pauses_of_a_batch_are_those_of_one_request(server: LiveServer) -> None:
    url = f"{server.url}{SPEECH}/batch"
    items = [{"input": "Hi.[pause:10s]"}] * 7
    response = httpx.post(url, json={"voice": "heart", "items": items})
    assert refusal(response) == (400, "items[6].input")
    assert response.json()["error"]["message"] == TOO_LONG
    wrong = httpx.post(url, json={"voice": "heart", "items": [{"input": "Hi.[pause:long]"}, {"input": "Hi."}]}).json()
    assert [result["status_code"] for result in wrong["results"]] == [400, 200]


async def test_too_many_pauses_of_live_text_are_passed_over_and_told_once() -> None:
    recorded = await record(plan_for(FAKE_INFO), ["One." + "[pause:10s]" * 90 + " Two."])
    assert recorded.parts == ["One.", *[10.0] * 6, "Two."]
    assert [error.message for error in recorded.errors] == [f"{TOO_LONG}. Further tags are passed over"]
