"""Speech that is sent while it is made, as a body and as server-sent events."""

import base64
import binascii
from dataclasses import dataclass

from vivavoce_conformance.checks.formats import decoded
from vivavoce_conformance.rules import GUIDE, OPENAI, PRACTICE, Group
from vivavoce_conformance.sound import seconds
from vivavoce_conformance.sse import Event, parse_events
from vivavoce_conformance.target import Failed, Skipped, Target, expect_speech, now

STREAMING = Group("streaming", "speech that is sent while it is made")
SENTENCE = "Streaming means that the beginning is heard while the end is still being made. "
LENGTHS_CHARS = (600, 2000, 4000)
"""Texts that are tried in turn: a fast server shows nothing by a short one, and a busy machine may blur one try."""
STREAMED_SHARE = 0.5
"""A first byte before this share of the time until a later one proves streaming."""
WITHOUT_EVENTS = ("tts-1", "tts-1-hd")
"""Models that speak without events at OpenAI; other servers may have events for these names."""
TELLING_S = 0.3
"""An answer that is complete sooner proves nothing: it may have been sent while it was made, or not."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """Times of the first and the latest byte, counted from the request."""

    first_s: float
    latest_s: float

    @property
    def is_streamed(self) -> bool:
        return self.first_s <= STREAMED_SHARE * self.latest_s and self.latest_s >= TELLING_S


async def arrival(target: Target, chars: int, **fields: object) -> Arrival:
    """Asks for long speech, and leaves as soon as it has been proved to be streamed."""
    text = (SENTENCE * (chars // len(SENTENCE) + 1))[:chars]
    begun_s = now()
    first_s = latest_s = 0.0
    async with target.open_speech(input=text, **fields) as response:
        if response.status_code != 200:
            raise Failed(f"status {response.status_code} instead of 200 for {chars} characters")
        async for piece in response.aiter_raw():
            if not piece:
                continue
            latest_s = now() - begun_s
            first_s = first_s or latest_s
            if (seen := Arrival(first_s, latest_s)).is_streamed:
                return seen
    return Arrival(first_s, latest_s)


async def expect_streaming(target: Target, **fields: object) -> None:
    """Passes with the first try that proves streaming. Raises Failed, or Skipped if the server is too fast to tell."""
    told = []
    for chars in LENGTHS_CHARS:
        seen = await arrival(target, chars, **fields)
        if seen.is_streamed:
            return
        if seen.latest_s >= TELLING_S:
            told.append(f"first byte after {seen.first_s:.2f} s, last after {seen.latest_s:.2f} s")
    if not told:
        raise Skipped(f"{LENGTHS_CHARS[-1]} characters are spoken within {TELLING_S} s: too fast to tell")
    raise Failed(f"the speech is sent when it is complete: {'; '.join(told)}")


def add_streaming(name: str, title: str, **fields: object) -> None:
    async def run(target: Target) -> None:
        await expect_streaming(target, **fields)

    STREAMING.add(name, "must", f"{GUIDE}: streaming by chunk transfer encoding", title, run)


add_streaming("pcm", "the first byte of pcm comes before the last is made", response_format="pcm")
add_streaming("mp3", "the first byte of mp3 comes before the last is made", response_format="mp3")


@STREAMING.check("should", "RFC 9112, 6.1", "an answer that is streamed states no length")
async def no_length(target: Target) -> None:
    async with target.open_speech(response_format="pcm") as response:
        length = response.headers.get("content-length")
    if length is not None:
        raise Failed(f"Content-Length: {length} on an answer that should leave while it is made")


async def events_of(target: Target, **fields: object) -> list[Event]:
    """The events of speech. Raises Failed, Skipped."""
    answer = await target.request_speech(stream_format="sse", **fields)
    if answer.status != 200:
        raise Skipped(f"the server has no events: {answer.status}")
    if answer.media_type != "text/event-stream":
        raise Skipped(f"the server has no events: it answers stream_format sse with {answer.media_type}")
    return parse_events(answer.body)


@STREAMING.check("should", OPENAI, 'stream_format "sse" is answered with events')
async def sse(target: Target) -> None:
    answer = await target.request_speech(stream_format="sse")
    if answer.status == 400 and target.model in WITHOUT_EVENTS:
        raise Skipped(f"OpenAI's {target.model} has no events; --model gpt-4o-mini-tts asks for them")
    expect_speech(answer, "stream_format sse")
    if answer.media_type != "text/event-stream":
        raise Failed(f"Content-Type is {answer.media_type}, by which clients choose their reader")


@STREAMING.check("must", f"{OPENAI}, speech.audio.delta", "events have the types that clients know, and one end")
async def sse_types(target: Target) -> None:
    kinds = [event.data.get("type") for event in await events_of(target)]
    if kinds.count("speech.audio.done") != 1 or kinds[-1:] != ["speech.audio.done"]:
        raise Failed(f"the events do not end with one speech.audio.done: {kinds[-4:]}")
    if "speech.audio.delta" not in kinds:
        raise Failed("there is no speech.audio.delta")
    if foreign := set(map(str, kinds)) - {"speech.audio.delta", "speech.audio.done"}:
        raise Failed(f"unknown types: {', '.join(sorted(foreign))}")


@STREAMING.check("should", f"HTML standard, 9.2; {PRACTICE}", "an event's name, if it has one, is its type")
async def sse_names(target: Target) -> None:
    for event in await events_of(target):
        if event.name not in ("message", event.data.get("type")):
            raise Failed(f"an event of the type {event.data.get('type')} has the name {event.name}")


@STREAMING.check("must", f"{OPENAI}, speech.audio.delta", "the deltas, joined, are the file")
async def sse_audio(target: Target) -> None:
    reference = await target.reference()
    audio = b""
    for event in await events_of(target, response_format="wav", **reference.fields):
        if event.data.get("type") == "speech.audio.delta":
            audio += audio_of(event)
    has_s, wanted_s = seconds(await decoded(audio, "wav")), seconds(reference.samples)
    slack = 0.02 if reference.repeats else 0.5
    if not (1 - slack) * wanted_s <= has_s <= (1 + slack) * wanted_s:
        raise Failed(f"the deltas hold {has_s:.2f} s of speech, pcm has {wanted_s:.2f} s")


def audio_of(event: Event) -> bytes:
    """The bytes of a delta. Raises Failed."""
    try:
        return base64.b64decode(event.data.get("audio", ""), validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise Failed("a delta has no base64 in the field audio") from None


@STREAMING.check("should", f"{OPENAI}, speech.audio.done", "the end tells the usage, and its sum is right")
async def sse_usage(target: Target) -> None:
    events = await events_of(target)
    usage = events[-1].data.get("usage") if events else None
    names = ("input_tokens", "output_tokens", "total_tokens")
    if not isinstance(usage, dict) or any(type(usage.get(name)) is not int for name in names):
        raise Failed(f"speech.audio.done has no usage with {', '.join(names)}")
    if usage["input_tokens"] + usage["output_tokens"] != usage["total_tokens"]:
        raise Failed(f"the usage does not add up: {[usage[name] for name in names]}")


@STREAMING.check("should", f"{OPENAI}, speech.audio.delta", "the first event comes before the last audio is made")
async def sse_early(target: Target) -> None:
    answer = await target.request_speech(stream_format="sse")
    if answer.media_type != "text/event-stream":
        raise Skipped("the server has no events")
    await expect_streaming(target, stream_format="sse", response_format="pcm")
