"""Fields of a request for speech: what has to be taken, and what has to be refused."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass

from vivavoce_conformance.rules import ERRORS, OPENAI, PRACTICE, SDK, Group, Level
from vivavoce_conformance.sound import samples_of, seconds
from vivavoce_conformance.target import (
    ABSENT,
    JSON,
    SHORT_TEXT,
    SPEECH,
    TEXT,
    Failed,
    Skipped,
    Target,
    expect_refusal,
    expect_speech,
    shown,
)

REQUESTS = Group("requests", "fields of a request for speech")
VOICES = (
    "alloy", "ash", "ballad", "coral", "echo", "fable", "onyx", "nova", "sage", "shimmer", "verse", "marin", "cedar",
)  # fmt: skip
MODELS = ("tts-1", "tts-1-hd", "gpt-4o-mini-tts", "gpt-4o-mini-tts-2025-12-15")
MAX_INPUT_CHARS = 4096


@REQUESTS.check("must", OPENAI, "model, input and voice are enough for speech")
async def plain(target: Target) -> None:
    answer = await target.request_speech()
    if answer.status == 401 and target.key is None:
        raise Failed("status 401: the server wants a key, which --key gives to this suite")
    expect_speech(answer, "a plain request")


def taken(name: str, level: Level, source: str, title: str, **fields: object) -> None:
    """Adds a check that a request with these fields is answered with speech."""

    async def run(target: Target) -> None:
        await target.speak(**fields)

    REQUESTS.add(name, level, source, title, run)


def refused(name: str, values: tuple[object, ...], source: str, title: str) -> None:
    """Adds a check that each of these values of a field is refused. The name is the field's, and a word."""
    field = name.rpartition("_")[0]

    async def run(target: Target) -> None:
        for value in values:
            expect_refusal(await target.request_speech(**{field: value}), f"{field} {shown(value)}")

    REQUESTS.add(name, "must", source, title, run)


def each_value(name: str, level: Level, source: str, title: str, field: str, values: tuple[object, ...]) -> None:
    """Adds a check that every one of these values is taken. All that are not are named."""

    async def run(target: Target) -> None:
        wrong = []
        for value in values:
            answer = await target.request_speech(**{field: value})
            if answer.status != 200:
                wrong.append(f"{shown(value)} ({answer.status}: {answer.excerpt})")
        if wrong:
            raise Failed(f"{field} is refused: {'; '.join(wrong)}")

    REQUESTS.add(name, level, source, title, run)


each_value("voices", "should", SDK, "OpenAI's 13 names of voices are taken", "voice", VOICES)
each_value("models", "should", SDK, "OpenAI's names of models are taken, the dated one too", "model", MODELS)


@REQUESTS.check("should", f"{SDK}, VoiceID", 'voice may be an object {"id"}')
async def voice_object(target: Target) -> None:
    await target.speak(voice={"id": target.voice})


taken("instructions", "should", OPENAI, "instructions are taken, obeyed or not", instructions="Speak calmly.")
taken("instructions_empty", "should", PRACTICE, "empty instructions are taken: clients send them", instructions="")
taken(
    "nulls",
    "should",
    "openai SDK 3.57: an optional field that is None is sent as null",
    "null is the default of optional fields",
    response_format=None, speed=None, stream_format=None, instructions=None,
)  # fmt: skip
taken("stream_format_audio", "should", OPENAI, 'stream_format "audio" is taken', stream_format="audio")
each_value("speed_limits", "must", OPENAI, "speed 0.25, 1 and 4 are taken", "speed", (0.25, 1, 1.0, 4.0))


@REQUESTS.check("must", OPENAI, "speed changes the length of the speech")
async def speed(target: Target) -> None:
    lengths_s = {}
    for value in (0.5, 1.0, 2.0):
        answer = await target.speak(input=TEXT, response_format="pcm", speed=value)
        lengths_s[value] = seconds(samples_of(answer.body))
    slow_s, plain_s, fast_s = (lengths_s[value] for value in (0.5, 1.0, 2.0))
    if slow_s < 1.25 * plain_s or fast_s > 0.8 * plain_s:
        raise Failed(f"{slow_s:.2f} s at speed 0.5, {plain_s:.2f} s at 1, {fast_s:.2f} s at 2")


UNKNOWN = "no-such-name-7f3a"
REFUSED: tuple[tuple[str, tuple[object, ...], str, str], ...] = (
    ("speed_range", (0.24, 4.1, 0, -1), OPENAI, "speed below 0.25 or above 4 is refused"),
    ("speed_type", ("fast", [], {}), OPENAI, "speed that is no number is refused"),
    ("input_missing", (ABSENT,), OPENAI, "a request without input is refused"),
    ("input_empty", ("",), OPENAI, "an empty input is refused"),
    ("input_type", (5, None, [], {}, True), OPENAI, "input that is no string is refused"),
    ("voice_unknown", (UNKNOWN,), OPENAI, "an unknown voice is refused, never replaced"),
    ("voice_type", (5, [], {}, {"id": 5}), f"{SDK}, VoiceID", "a voice that is no name and no {id} is refused"),
    ("model_unknown", (UNKNOWN,), ERRORS, "an unknown model is refused, never replaced"),
    ("model_type", (5, [], {}), OPENAI, "a model that is no string is refused"),
    ("response_format_unknown", (UNKNOWN,), OPENAI, "an unknown response_format is refused"),
    ("response_format_type", (5, [], {}), OPENAI, "response_format that is no string is refused"),
    ("stream_format_unknown", (UNKNOWN,), OPENAI, "an unknown stream_format is refused"),
)
"""Name, which begins with the field's, and values, each refused as an error of the client; source and title."""
for _name, _values, _source, _title in REFUSED:
    refused(_name, _values, _source, _title)


@REQUESTS.check("must", OPENAI, "input of 4096 characters is taken")
async def input_longest(target: Target) -> None:
    sentence = "This sentence is one of many that fill the longest input. "
    text = (sentence * (MAX_INPUT_CHARS // len(sentence) + 1))[:MAX_INPUT_CHARS]
    async with target.open_speech(input=text) as response:
        if response.status_code != 200:
            raise Failed(f"status {response.status_code} instead of 200 for {len(text)} characters")
        async for piece in response.aiter_raw():
            if piece:
                return  # leaving ends the speech
    raise Failed("status 200 with an empty body")


@REQUESTS.check("should", OPENAI, "input of more than 4096 characters is refused")
async def input_too_long(target: Target) -> None:
    text = "Too long. " * (MAX_INPUT_CHARS // 10 + 1)
    async with target.open_speech(input=text) as response:
        if not 400 <= response.status_code < 500:
            raise Failed(f"status {response.status_code} instead of 4xx for {len(text)} characters")


taken(
    "unicode", "must", "RFC 8259, 8.1", "text beyond ASCII is taken, in UTF-8",
    input="Café, naïve, déjà vu, “quoted” … and a smile 🙂.",
)  # fmt: skip


@REQUESTS.check("must", "RFC 8259, 7", "text with JSON's escapes is taken, pairs of surrogates too")
async def escapes(target: Target) -> None:
    body = json.dumps(target.body(input="Caf\u00e9 and a smile \U0001f642.")).encode()
    expect_speech(await target.post(body), "a body with \\u escapes")


@REQUESTS.check("must", "RFC 8259, 8.2", "half a pair of surrogates does not break the server")
async def lone_surrogate(target: Target) -> None:
    body = json.dumps(target.body(input="Hello \ud800 there.")).encode()
    answer = await target.post(body)
    if answer.status != 200:
        expect_refusal(answer, "input with half a pair of surrogates")


@REQUESTS.check("must", "RFC 9110, 8.3.1", "Content-Type with a charset is taken")
async def charset(target: Target) -> None:
    body = target.content()
    expect_speech(await target.post(body, "application/json; charset=utf-8"), "application/json; charset=utf-8")


@REQUESTS.check("must", "openai SDK 3.57: headers of its requests", "the headers of OpenAI's clients are taken")
async def client_headers(target: Target) -> None:
    headers = {
        "Accept": "application/octet-stream",
        "OpenAI-Organization": "org-1",
        "OpenAI-Project": "proj_1",
        "User-Agent": "OpenAI/Python 3.57.0",
        "X-Stainless-Lang": "python",
        "X-Stainless-Retry-Count": "0",
        "X-Stainless-Read-Timeout": "600",
    }
    answer = await target.ask("POST", SPEECH, {**JSON, **headers}, target.content())
    expect_speech(answer, "a request with the SDK's headers")


@REQUESTS.check(
    "should", "SillyTavern, wyoming-openai: their requests without a key", "an empty Bearer token is no wrong key"
)
async def empty_bearer(target: Target) -> None:
    if target.key is not None:
        raise Skipped("the server has keys")
    answer = await target.ask("POST", SPEECH, {**JSON, "Authorization": "Bearer"}, target.content())
    expect_speech(answer, "Authorization: Bearer without a token")


@dataclass(frozen=True, slots=True)
class InTwoPieces:
    """A body that is sent in two chunks, as often as it is asked for."""

    body: bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self.body[:10]
        yield self.body[10:]


@REQUESTS.check("must", "RFC 9112, 7.1", "a chunked request is taken")
async def chunked_request(target: Target) -> None:
    headers = {"Content-Type": "application/json"}
    content = InTwoPieces(target.content())
    answer = await target.ask("POST", SPEECH, headers, content)
    expect_speech(answer, "a body in two chunks")


@REQUESTS.check("must", PRACTICE, "four requests at once are all answered")
async def at_once(target: Target) -> None:
    answers = await asyncio.gather(*(target.request_speech(input=f"{SHORT_TEXT} {n}.") for n in range(4)))
    for answer in answers:
        expect_speech(answer, "one of four requests at once")


def _seed(target: Target) -> str:
    if target.dialect.seed is None:
        raise Skipped("OpenAI's API has no seed; --server names a kind of server that has one")
    return target.dialect.seed


@REQUESTS.check("extension", "vLLM-Omni's documentation, speech API", "the same seed gives the same bytes")
async def seed(target: Target) -> None:
    name = _seed(target)
    first, second = [(await target.speak(input=TEXT, response_format="pcm", **{name: 7})).body for _ in range(2)]
    if first != second:
        raise Failed(f"{name} 7 gave {len(first)} and {len(second)} bytes that differ")


@REQUESTS.check("extension", "vLLM-Omni's documentation, speech API", "another seed gives other speech")
async def seed_varies(target: Target) -> None:
    name = _seed(target)
    spoken = {(await target.speak(input=TEXT, response_format="pcm", **{name: n})).body for n in range(1, 5)}
    if len(spoken) == 1:
        raise Failed(f"{name} 1 to 4 gave the same bytes")


@REQUESTS.check("extension", PRACTICE, "a seed that is no number is refused")
async def seed_type(target: Target) -> None:
    name = _seed(target)
    answer = await target.request_speech(**{name: "seven"})
    expect_refusal(answer, f'{name} "seven"')
