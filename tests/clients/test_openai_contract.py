"""OpenAI's Python package, method by method and field by field, against this server's OpenAPI document.

A release of the package that adds a method, a field, a type or a value fails here, by its name.
"""

import collections.abc
import types
import typing
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NotRequired, Required, get_args, get_origin, get_type_hints

import openai
import pydantic
import pytest
import typing_extensions
from openai._types import FileTypes
from openai.pagination import SyncConversationCursorPage, SyncCursorPage, SyncPage
from openai.resources.audio import Audio, Speech, VoiceConsents, Voices
from openai.resources.models import Models
from openai.types import Model
from openai.types.audio import (
    SpeechModel,
    Voice,
    VoiceConsent,
    VoiceConsentDeleted,
    VoiceDeleted,
    speech_create_params,
    voice_consent_create_params,
    voice_consent_list_params,
    voice_consent_update_params,
    voice_create_params,
)
from openai.types.realtime import (
    RealtimeClientEvent,
    RealtimeResponseCreateParams,
    RealtimeServerEvent,
    RealtimeSessionCreateRequest,
)
from vivavoce_server import ServerConfig, create_app
from vivavoce_server.live.realtime_events import CLIENT_EVENTS, REFUSED_EVENTS, ResponseSettings, SessionSettings
from vivavoce_server.openai_voices import OPENAI_VOICES
from vivavoce_server.service import MODEL_ALIAS

from tests.support.live_server import fake_engine, live_server
from tests.support.realtime_socket import dial_realtime

VERSION = openai.__version__
Schema = dict[str, Any]
KINDS: dict[object, str] = {str: "string", float: "number", int: "integer", bool: "boolean", type(None): "null"}
WRAPPERS = (Annotated, Required, NotRequired, typing_extensions.Required, typing_extensions.NotRequired)
MARKS_OF_REQUIRED = (Required, typing_extensions.Required)
JSON, MULTIPART = "application/json", "multipart/form-data"


@dataclass(frozen=True)
class Call:
    """A method of the package: the route that it calls, its parameters by variants, and its result."""

    method: str
    path: str
    params: tuple[type, ...] = ()
    result: type | None = None
    body: str = JSON
    page: tuple[str, ...] = ()
    """Fields of the page that holds the results."""


SPEECH, VOICES, CONSENTS = "/v1/audio/speech", "/v1/audio/voices", "/v1/audio/voice_consents"
VOICE_PARAMS = (voice_create_params.CreateVoiceRequestAudioSample, voice_create_params.CreateVoiceRequestPrompt)
SERVED: dict[type, dict[str, Call | None]] = {
    Speech: {"create": Call("post", SPEECH, (speech_create_params.SpeechCreateParams,))},
    Voices: {
        "create": Call("post", VOICES, VOICE_PARAMS, Voice, MULTIPART),
        "delete": Call("delete", f"{VOICES}/{{voice_id}}", result=VoiceDeleted),
    },
    VoiceConsents: {
        "create": Call(
            "post", CONSENTS, (voice_consent_create_params.VoiceConsentCreateParams,), VoiceConsent, MULTIPART
        ),
        "retrieve": Call("get", f"{CONSENTS}/{{consent_id}}", result=VoiceConsent),
        "update": Call(
            "post",
            f"{CONSENTS}/{{consent_id}}",
            (voice_consent_update_params.VoiceConsentUpdateParams,),
            VoiceConsent,
        ),
        "list": Call(
            "get",
            CONSENTS,
            (voice_consent_list_params.VoiceConsentListParams,),
            VoiceConsent,
            page=("data", "has_more"),
        ),
        "delete": Call("delete", f"{CONSENTS}/{{consent_id}}", result=VoiceConsentDeleted),
    },
    Models: {
        "retrieve": Call("get", "/v1/models/{model}", result=Model),
        "list": Call("get", "/v1/models", result=Model, page=("data", "object")),
        "delete": None,  # the models of this server are its operator's: 405
    },
}
"""The resources of the package that are served; None marks a method that is not."""
NOT_SERVED = {"transcriptions", "translations"}
"""Parts of the resource `audio` that are no speech."""
DEFAULTS = {"response_format": "mp3", "speed": 1.0, "stream_format": "audio"}
"""Defaults that the package describes."""
CALLS = [(cls, name, call) for cls, calls in SERVED.items() for name, call in calls.items() if call is not None]


def name_of(value: object) -> str:
    return value if isinstance(value, str) else getattr(value, "__name__", "call")


@pytest.fixture(scope="module")
def document() -> Schema:
    return create_app(fake_engine(), ServerConfig()).openapi()


# ---- kinds of values ------------------------------------------------------------------------------------------


def kinds_of(annotation: Any) -> set[str]:
    """The JSON types of an annotation of the package, and its literal values as `=value`."""
    if annotation == FileTypes:
        return {"file"}
    if annotation in KINDS:
        return {KINDS[annotation]}
    origin, args = get_origin(annotation), get_args(annotation)
    if origin in WRAPPERS:
        return kinds_of(args[0])
    if origin is Literal:
        return {f"={value}" for value in args}
    if origin in (typing.Union, types.UnionType):
        return set().union(*map(kinds_of, args))
    if isinstance(origin, type) and issubclass(origin, collections.abc.Mapping):
        return {"object"}
    if isinstance(origin, type) and issubclass(origin, collections.abc.Iterable):
        return {"array"}
    assert isinstance(annotation, type), f"openai {VERSION} has a type that this test does not know: {annotation}"
    return {"object"}


def kinds_in(schema: Schema, document: Schema) -> set[str]:
    """The same of an OpenAPI schema."""
    schema = resolved(schema, document)
    members = schema.get("anyOf", schema.get("oneOf"))
    if members is not None:
        return set().union(*(kinds_in(member, document) for member in members))
    if "const" in schema or "enum" in schema:
        return {f"={value}" for value in schema.get("enum", [schema.get("const")])}
    if "contentMediaType" in schema or schema.get("format") == "binary":
        return {"file"}
    return {schema["type"]}


def resolved(schema: Schema, document: Schema) -> Schema:
    if "$ref" not in schema:
        return schema
    name = schema["$ref"].rpartition("/")[2]
    found: Schema = document["components"]["schemas"][name]
    return found


def accepted(kind: str, by: Iterable[str]) -> bool:
    return kind in by or (kind == "integer" and "number" in by) or (kind.startswith("=") and "string" in by)


# ---- the tables are whole -------------------------------------------------------------------------------------


def methods_of(cls: type) -> set[str]:
    return {
        name for name, value in vars(cls).items() if not name.startswith("_") and isinstance(value, types.FunctionType)
    }


def parts_of(cls: type) -> set[str]:
    parts = {
        name for name, value in vars(cls).items() if not name.startswith(("_", "with_")) and hasattr(value, "func")
    }
    return parts | {name for name in methods_of(cls) if not name.startswith("with_")}


def test_every_method_of_a_resource_is_known() -> None:
    for cls, calls in SERVED.items():
        assert methods_of(cls) == calls.keys(), f"openai {VERSION} has other methods of {cls.__name__}"
    served = {"speech", "voices", "voice_consents"}
    assert parts_of(Audio) == served | NOT_SERVED, f"openai {VERSION} has other parts of the resource audio"


# ---- fields ---------------------------------------------------------------------------------------------------


def request_schema(call: Call, document: Schema) -> tuple[Schema, set[str]]:
    """The fields that the server takes, and the required ones among them."""
    operation = document["paths"][call.path][call.method]
    if call.method == "get":
        query = [part for part in operation["parameters"] if part["in"] == "query"]
        return {part["name"]: part["schema"] for part in query}, {part["name"] for part in query if part["required"]}
    schema = resolved(operation["requestBody"]["content"][call.body]["schema"], document)
    return schema["properties"], set(schema.get("required", ()))


@pytest.mark.parametrize(("cls", "name", "call"), [each for each in CALLS if each[2].params], ids=name_of)
def test_every_field_is_taken(cls: type, name: str, call: Call, document: Schema) -> None:
    ours, needed = request_schema(call, document)
    for params in call.params:
        hints = get_type_hints(params, include_extras=True)
        where = f"{cls.__name__}.{name} of openai {VERSION}"
        assert hints.keys() <= ours.keys(), f"{where} sends fields that the server does not know"
        required = {field for field, hint in hints.items() if get_origin(hint) in MARKS_OF_REQUIRED}
        assert needed <= required, f"{where} may leave out a field that the server wants"
        for field, hint in hints.items():
            known = kinds_in(ours[field], document)
            refused = {kind for kind in kinds_of(hint) if not accepted(kind, known)}
            assert not refused, f"{where} sends {field} as {refused}; the server takes {known}"
            if field not in required and call.method != "get":
                assert "null" in known, f"{where} may send null as {field}"


def test_defaults_are_openais(document: Schema) -> None:
    ours, _ = request_schema(SERVED[Speech]["create"] or Call("", ""), document)
    assert {field: ours[field].get("default") for field in DEFAULTS} == DEFAULTS
    page, _ = request_schema(SERVED[VoiceConsents]["list"] or Call("", ""), document)
    assert (page["limit"]["default"], page["limit"]["minimum"], page["limit"]["maximum"]) == (20, 1, 100)


@pytest.mark.parametrize(("cls", "name", "call"), [each for each in CALLS if each[2].result], ids=name_of)
def test_every_field_of_a_result_is_sent(cls: type, name: str, call: Call, document: Schema) -> None:
    content = document["paths"][call.path][call.method]["responses"]["200"]["content"][JSON]["schema"]
    ours = resolved(content["anyOf"][0] if "anyOf" in content else content, document)
    where = f"{cls.__name__}.{name} of openai {VERSION}"
    if call.page:
        assert ours["properties"].keys() >= set(call.page)
        ours = resolved(ours["properties"]["data"]["items"], document)
    assert call.result is not None
    for field, info in call.result.model_fields.items():  # type: ignore[attr-defined]
        assert field in ours["properties"], f"{where} reads {field}"
        schema = ours["properties"][field]
        if info.is_required():
            always = field in ours.get("required", ()) or schema.get("default") is not None
            assert always, f"{where} wants {field} always"
        theirs = kinds_of(info.annotation)
        unknown = {kind for kind in kinds_in(schema, document) if not accepted(kind, theirs)}
        assert not unknown, f"{where} reads {field} as {theirs}; the server sends {unknown}"


def test_pages_have_the_fields_that_the_package_reads() -> None:
    assert set(SyncPage.model_fields) == {"data", "object"}
    assert set(SyncCursorPage.model_fields) == {"data", "has_more"}
    assert "last_id" in SyncConversationCursorPage.model_fields


def test_every_model_and_voice_is_known() -> None:
    models = get_args(SpeechModel)
    assert all(MODEL_ALIAS.fullmatch(model) for model in models), f"openai {VERSION} names {models}"
    voices = {kind.removeprefix("=") for kind in kinds_of(speech_create_params.Voice) if kind.startswith("=")}
    assert voices == OPENAI_VOICES.keys(), f"openai {VERSION} has other voices"


# ---- Realtime -------------------------------------------------------------------------------------------------

FOR_A_LANGUAGE_MODEL = {"max_output_tokens", "parallel_tool_calls", "prompt", "reasoning"}
IGNORED_SESSION = FOR_A_LANGUAGE_MODEL | {"include", "tracing", "truncation"}
IGNORED_RESPONSE = FOR_A_LANGUAGE_MODEL | {"instructions", "tool_choice"}
"""Fields that direct a language model, a microphone or a trace, and have no effect here."""


def members(union: Any) -> dict[str, type[pydantic.BaseModel]]:
    """The events of a union of the package, by their type."""
    events = get_args(get_args(union)[0])
    return {get_args(event.model_fields["type"].annotation)[0]: event for event in events}


def test_every_event_of_a_realtime_client_is_known() -> None:
    unknown = members(RealtimeClientEvent).keys() - CLIENT_EVENTS.keys() - REFUSED_EVENTS.keys()
    assert not unknown, f"openai {VERSION} sends events that the server does not know"
    for kind, event in members(RealtimeClientEvent).items():
        if kind in CLIENT_EVENTS:
            ignored = {"type", "event_id"} | ({"audio"} if kind == "input_audio_buffer.append" else set())
            assert event.model_fields.keys() - CLIENT_EVENTS[kind].model_fields.keys() == ignored, kind


@pytest.mark.parametrize(
    ("theirs", "ours", "ignored"),
    [
        (RealtimeSessionCreateRequest, SessionSettings, IGNORED_SESSION),
        (RealtimeResponseCreateParams, ResponseSettings, IGNORED_RESPONSE),
    ],
)
def test_every_realtime_setting_is_used_or_known_to_be_ignored(
    theirs: type[pydantic.BaseModel], ours: type[pydantic.BaseModel], ignored: set[str]
) -> None:
    rest = theirs.model_fields.keys() - ours.model_fields.keys()
    assert rest == ignored, f"openai {VERSION}: {theirs.__name__}"


async def test_every_realtime_event_of_the_server_has_the_fields_that_the_package_reads() -> None:
    known = members(RealtimeServerEvent)
    item = {"id": "msg_1", "type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi."}]}
    sent: list[tuple[str, dict[str, Any]]] = [
        ("session.update", {"session": {"type": "realtime"}}),
        ("conversation.item.create", {"item": item}),
        ("conversation.item.retrieve", {"item_id": "msg_1"}),
        ("response.create", {}),
        ("input_audio_buffer.clear", {}),
        ("no.event", {}),
    ]
    seen = set()
    with live_server() as server:
        async with dial_realtime(server) as socket:
            for kind, fields in sent:
                await socket.send(kind, **fields)
            awaited = {"response.done", "error", "input_audio_buffer.cleared"}
            async for event in events_of(socket.receive):
                known[event["type"]].model_validate(event, strict=True)
                seen.add(event["type"])
                if awaited <= seen:
                    break
            await socket.send("conversation.item.delete", item_id="msg_1")
            deleted = await socket.receive()
            known[deleted["type"]].model_validate(deleted, strict=True)
    assert seen >= {"session.created", "session.updated", "conversation.item.added", "response.output_audio.delta"}


async def events_of(receive: Callable[[], Awaitable[dict[str, Any]]]) -> AsyncIterator[dict[str, Any]]:
    while True:
        yield await receive()


def test_the_checks_tell_a_difference(document: Schema) -> None:
    taken = kinds_in(request_schema(SERVED[Speech]["create"] or Call("", ""), document)[0]["response_format"], document)
    assert accepted("=mp3", taken)
    assert not accepted("=midi", taken)
    assert not accepted("string", taken)
    assert kinds_of(FileTypes) == {"file"}
    assert kinds_of(list[str] | dict[str, int] | None) == {"array", "object", "null"}
