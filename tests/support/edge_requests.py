"""Requests at the edges of every route, made from the OpenAPI document; and the judgement of their answers."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import httpx

from tests.support.edges import (
    MANY,
    Edge,
    Field,
    Literal,
    Schema,
    as_json,
    fields,
    numbers,
    numbers_in_texts,
    resolved,
    some_values,
    texts,
    values,
    with_value,
)

TEXT = "Hi."
MAX_ANSWER_BYTES = 4 * 2**20
"""Far beyond all that the fake engine says to TEXT, at a quarter of the speed, at 48 kHz, in each of 32 items."""
UNAVAILABLE = frozenset({503, 507})
JSON_WORDS = ("JSON", "json", "body", "digits", "message", "Part")
"""An answer about a document that is no JSON cannot name a field; it has one of these words."""
OWN_BODY = {"input": TEXT, "voice": "heart", "response_format": "pcm"}
IDS = {"voice_id": "heart", "model": "fake", "consent_id": f"cons_{0:024}"}
"""The parts of paths that vary, each with a value of the right form."""
FORMS: dict[str, dict[str, str | bytes]] = {
    "/v1/audio/voices": {"name": "edge", "consent": "I agree.", "voice": "heart(1)+michael(1)"},
    "/v1/audio/voice_consents": {"name": "edge", "language": "en"},
}
FILES = ("recording",)
"""Files that forms lack here, which an error may name instead of the odd field."""
BODIES: dict[str, dict[str, Any]] = {
    "/v1/audio/voices": {**FORMS["/v1/audio/voices"]},
    f"/v1/audio/voice_consents/{IDS['consent_id']}": {"name": "edge"},
    "/v1/audio/speech": OWN_BODY,
    "/dev/captioned_speech": OWN_BODY,
    "/v1/chat/completions": {"messages": [{"role": "user", "content": TEXT}]},
    "/v1/audio/speech/batch": {"items": [{"input": TEXT}], "voice": "heart", "response_format": "pcm"},
}
PLAIN_PATH = "/v1/audio/speech"
ELEVENLABS_BODY = {"text": TEXT}
INSTEAD_OF_VOICE = ("speaker_embedding", "ref_audio")
FORM_EMBEDDING = "speaker_embedding"
"""A form's field that holds JSON of the schema of the same field in a request."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, what is odd about it, and the words of which an error must have one."""

    method: str
    path: str
    odd: str
    names: tuple[str, ...]
    query: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    form: dict[str, str | bytes] = field(default_factory=dict)

    def send(self, http: httpx.Client) -> httpx.Response:
        files = {name: (None, value) for name, value in self.form.items()} or None
        return http.request(
            self.method, self.path, params=self.query, headers=self.headers, content=self.body or None, files=files
        )


def fault_of(asked: Asked, answer: httpx.Response) -> str | None:
    """The promise that the answer breaks; None if it keeps all of them."""
    where = f"{asked.method} {asked.path}, {asked.odd}: {answer.status_code}"
    said = answer.text[:300] if answer.status_code >= 400 else ""
    if answer.status_code >= 500 and answer.status_code not in UNAVAILABLE:
        return f"{where} {said}"
    if answer.status_code < 400:
        size = len(answer.content)
        return f"{where} with {size} bytes" if size > MAX_ANSWER_BYTES else None
    try:
        error = answer.json()["error"]
        told = f"{error['param']} {error['message']}"
    except (ValueError, KeyError, TypeError):
        return f"{where} without an error object: {said}"
    if answer.status_code in (404, 405, 409, 413, 429) or any(name in told for name in asked.names):
        return None
    return f"{where} names none of {asked.names}: {said}"


def operations(document: Schema) -> Iterator[tuple[str, str, Schema]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def body_schema(operation: Schema, kind: str) -> Schema | None:
    found: Schema | None = operation.get("requestBody", {}).get("content", {}).get(kind, {}).get("schema")
    return found


def requests_at_edges(
    document: Schema, method: str, path: str, operation: Schema, thorough: bool = True
) -> Iterator[Asked]:
    """All requests of one operation that are odd in one place. Unless `thorough`, a batch's only in its items."""
    plain = path.format(**IDS)
    schema = body_schema(operation, "application/json")
    if schema is not None:
        yield from _bodies(document, method, plain, schema, thorough)
    schema = body_schema(operation, "multipart/form-data")
    if schema is not None:
        yield from _forms(document, method, plain, schema)
    good = good_body(plain) if body_schema(operation, "application/json") else {}
    for parameter in operation.get("parameters", ()):
        yield from _parameters(document, method, path, parameter, good)


def good_body(path: str) -> dict[str, Any]:
    return dict(BODIES.get(path, ELEVENLABS_BODY))


def json_request(method: str, path: str, odd: str, names: tuple[str, ...], document: object) -> Asked:
    query = {"output_format": "pcm_24000"} if "text-to-speech" in path else {}
    return Asked(method, path, odd, names, query, {"Content-Type": "application/json"}, as_json(document))


def _names(odd_field: Field, edge: Edge) -> tuple[str, ...]:
    keys = tuple(str(part) for part in odd_field.path if isinstance(part, str))
    keys += ("voice",) if odd_field.path[0] in INSTEAD_OF_VOICE else ()
    return keys + (JSON_WORDS if is_refused_unread(edge.value) else ())


def is_refused_unread(value: object) -> bool:
    """True for a value by which a whole document may be refused before its fields are known."""
    match value:
        case Literal() | [Literal(), *_]:
            return True
        case list() | dict() | str():
            return len(value) >= MANY
        case _:
            return False


def _bodies(document: Schema, method: str, path: str, schema: Schema, thorough: bool) -> Iterator[Asked]:
    number = count()
    for odd_field in fields(schema, document):
        if not thorough and "items" in BODIES.get(path, ()) and not _is_odd_in_a_batch(odd_field):
            continue
        good = good_body(path)
        if odd_field.path[0] in INSTEAD_OF_VOICE:
            good.pop("voice", None)
        for edge in values(odd_field, document) if thorough else some_values(odd_field, document):
            if path in FORMS:  # a name can be stored once
                good["name"] = f"edge-json-{next(number)}"
            odd = with_value(good, odd_field, edge.value, schema, document)
            yield json_request(method, path, f"{odd_field.label} = {edge.label}", _names(odd_field, edge), odd)
    for name, edge in numbers_in_texts() if thorough or path == PLAIN_PATH else ():
        good = good_body(path)
        name = name if name in resolved(schema, document)[0]["properties"] else "text"
        if name in resolved(schema, document)[0]["properties"]:
            yield json_request(method, path, f"{name} = {edge.label}", (name, "input"), {**good, name: edge.value})


def _is_odd_in_a_batch(odd_field: Field) -> bool:
    """True for the list of items and their numbers. The other fields are those of a single request."""
    numeric = bool({"integer", "number"} & odd_field.types())
    return odd_field.path[0] == "items" and (numeric or len(odd_field.path) <= 2)


def _forms(document: Schema, method: str, path: str, schema: Schema) -> Iterator[Asked]:
    good = FORMS[path]
    for odd_field in fields(schema, document):
        own = {name: value for name, value in good.items() if name != "voice" or odd_field.name in good}
        for edge in texts(odd_field.kinds):
            value = b"\xed\xa0\x80" if isinstance(edge.value, Literal) else str(edge.value).encode()
            names = (odd_field.name, *JSON_WORDS, *FILES, "voice", "characters")
            yield Asked(method, path, f"{odd_field.label} = {edge.label}", names, form={**own, odd_field.name: value})
    for name, edge in numbers_in_texts():
        if name == "voice" and name in good:
            form = {**good, "voice": str(edge.value)}
            yield Asked(method, path, f"voice = {edge.label}", ("voice",), form=form)
    if "voice" in good:
        yield from _form_embeddings(document, method, path, good)


def _form_embeddings(document: Schema, method: str, path: str, good: dict[str, str | bytes]) -> Iterator[Asked]:
    number = count()
    properties = document["components"]["schemas"]["SpeechRequest"]["properties"]
    schema = {"properties": {FORM_EMBEDDING: properties[FORM_EMBEDDING]}}
    own = {name: value for name, value in good.items() if name != "voice"}
    for odd_field in fields(schema, document):
        for edge in values(odd_field, document):
            odd = with_value({}, odd_field, edge.value, schema, document)
            assert isinstance(odd, dict)
            form = {**own, "name": f"edge-{next(number)}", FORM_EMBEDDING: as_json(odd[FORM_EMBEDDING])}
            yield Asked(method, path, f"{odd_field.label} = {edge.label}", (FORM_EMBEDDING, *JSON_WORDS), form=form)


def _parameters(document: Schema, method: str, path: str, parameter: Schema, body: dict[str, Any]) -> Iterator[Asked]:
    name, place = parameter["name"], parameter["in"]
    for edge in _written(resolved(parameter["schema"], document)):
        odd = f"{place} {name} = {edge.label}"
        text = str(edge.value)
        query = {"output_format": "pcm_24000"} if "text-to-speech" in path else {}
        headers = {"Content-Type": "application/json"} if body else {}
        plain = path.format(**IDS)
        match place:
            case "query":
                query[name] = text
            case "header":
                headers[name] = text
            case "path":
                plain = path.replace("{" + name + "}", httpx.URL("http://x/", params={"q": text}).query.decode()[2:])
        yield Asked(
            method, plain, odd, (name, name.removesuffix("_id")), query, headers, as_json(body) if body else b""
        )


def _written(kinds: tuple[Schema, ...]) -> Iterator[Edge]:
    """Values as an address or a header can hold them: short, in ASCII."""
    for edge in (*numbers(kinds), *texts(kinds)):
        text = edge.value.text if isinstance(edge.value, Literal) else str(edge.value)
        if text.isascii() and text.isprintable() and text == text.strip() != "" and len(text) < 10_000:
            yield Edge(edge.label, text)
