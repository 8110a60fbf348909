"""The lists of models and voices."""

from typing import Any

from vivavoce_conformance.rules import ERRORS, PRACTICE, SDK, Group
from vivavoce_conformance.target import Answer, Failed, Skipped, Target, error_of, expect_refusal

MODELS = Group("models", "the list of models")
VOICES = Group("voices", "voices and consents, if the server has them")
ABSENT_STATUSES = (404, 405, 501)
MODEL_TYPE = "openai SDK 3.57, types/model"


def objects_of(answer: Answer, what: str) -> list[dict[str, Any]]:
    """The objects of a list in OpenAI's shape. Raises Failed."""
    if answer.status != 200:
        raise Failed(f"{what}: status {answer.status} instead of 200: {answer.excerpt}")
    data = answer.object().get("data")
    if not isinstance(data, list) or not all(isinstance(one, dict) for one in data):
        raise Failed(f"{what}: no list of objects in data: {answer.excerpt}")
    return data


@MODELS.check("must", MODEL_TYPE, "GET /models lists models by their id")
async def listing(target: Target) -> None:
    data = objects_of(await target.get("/models"), "GET /models")
    if not data or not all(isinstance(one.get("id"), str) and one["id"] for one in data):
        raise Failed("GET /models: it lists nothing, or something without an id")


@MODELS.check("should", MODEL_TYPE, "the list and its models have OpenAI's fields")
async def fields(target: Target) -> None:
    answer = await target.get("/models")
    data = objects_of(answer, "GET /models")
    if answer.object().get("object") != "list":
        raise Failed(f"object of the list is {answer.object().get('object')!r}")
    for one in data:
        if (
            one.get("object") != "model"
            or type(one.get("created")) is not int
            or not isinstance(one.get("owned_by"), str)
        ):
            raise Failed(f"object, created or owned_by of {one.get('id')!r} is wrong")


@MODELS.check("should", "openai SDK 3.57, models.retrieve", "GET /models/ID has each model of the list")
async def retrieve(target: Target) -> None:
    for one in objects_of(await target.get("/models"), "GET /models")[:8]:
        name = str(one.get("id"))
        answer = await target.get(f"/models/{name}")
        if answer.status != 200 or answer.object().get("id") != name:
            raise Failed(f"GET /models/{name}: status {answer.status}: {answer.excerpt}")


@MODELS.check("should", PRACTICE, "GET /models/NAME has the model that speech is asked of, by that name too")
async def retrieve_used(target: Target) -> None:
    answer = await target.get(f"/models/{target.model}")
    if answer.status != 200:
        raise Failed(f"GET /models/{target.model}: status {answer.status}: {answer.excerpt}")


@MODELS.check("must", ERRORS, "GET /models/NAME of an unknown model is a 404")
async def retrieve_unknown(target: Target) -> None:
    expect_refusal(await target.get("/models/no-such-model-7f3a"), "an unknown model", 404)


async def optional(target: Target, path: str) -> Answer:
    """The answer of a route that a server need not have. Raises Skipped."""
    answer = await target.get(path)
    if answer.status in ABSENT_STATUSES:
        raise Skipped(f"the server has no GET {path}: {answer.status}")
    return answer


@VOICES.check("extension", "Open WebUI, Kokoro-FastAPI: {voices}", "GET /audio/voices lists voices with their ids")
async def list_voices(target: Target) -> None:
    answer = await optional(target, "/audio/voices")
    given = answer.object()
    voices = given.get("voices", given.get("data"))
    if answer.status != 200 or not isinstance(voices, list) or not voices:
        raise Failed(f"GET /audio/voices: status {answer.status} without voices: {answer.excerpt}")
    for voice in voices:
        name = voice.get("id", voice.get("voice_id")) if isinstance(voice, dict) else voice
        if not isinstance(name, str) or not name:
            raise Failed(f"a voice without an id: {voice!r}"[:160])


@VOICES.check("extension", f"{SDK}/voice_create_params", "POST /audio/voices without fields is an error of the client")
async def create_empty(target: Target) -> None:
    answer = await target.ask("POST", "/audio/voices", {"Content-Type": "application/x-www-form-urlencoded"}, b"")
    if answer.status in ABSENT_STATUSES:
        raise Skipped(f"the server has no POST /audio/voices: {answer.status}")
    expect_refusal(answer, "a voice without fields")
    error_of(answer)


@VOICES.check("extension", f"{SDK}/voice_deleted", "DELETE of an unknown voice is a 404")
async def delete_unknown(target: Target) -> None:
    answer = await target.ask("DELETE", "/audio/voices/no-such-voice-7f3a")
    if answer.status in (405, 501):
        raise Skipped(f"the server deletes no voices: {answer.status}")
    expect_refusal(answer, "DELETE of an unknown voice", 404)


@VOICES.check("extension", f"{SDK}/voice_consent", "GET /audio/voice_consents is a page of consents")
async def list_consents(target: Target) -> None:
    answer = await optional(target, "/audio/voice_consents")
    for one in objects_of(answer, "GET /audio/voice_consents"):
        if one.get("object") != "audio.voice_consent" or not isinstance(one.get("id"), str):
            raise Failed(f"{one.get('id')!r} is no audio.voice_consent")
    if not isinstance(answer.object().get("has_more"), bool):
        raise Failed("the page has no has_more")


@VOICES.check("extension", f"{SDK}/voice_consent_list_params", "a limit outside 1 to 100 is refused")
async def consents_limit(target: Target) -> None:
    await optional(target, "/audio/voice_consents")
    for limit in ("0", "101", "many"):
        expect_refusal(await target.get(f"/audio/voice_consents?limit={limit}"), f"limit={limit}")
