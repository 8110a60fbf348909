"""WS /v1/audio/speech/stream: text in while it is written, speech out while it is made.

Messages are JSON. Audio is binary.

Client → server
    session.config   {model, voice, language, instructions, response_format ("pcm"), sample_rate, speed, seed, …}: the
                     fields of POST /v1/audio/speech. It comes first. Sent again between utterances, it replaces all
                     fields. The first one may contain api_key, for browsers. split is "none" (default) or "sentence",
                     which makes every sentence an utterance of its own, the same ones for any fragments. A sentence
                     ends before the complete word that follows it, and at 1000 characters. leading_silence is "trim"
                     or "keep", for each utterance. word_timestamps true, or timestamp_granularities ["word"], asks for
                     audio.words.
    input.text       {text}: more text, in fragments of any size. The first fragment opens an utterance. Text is spoken
                     as it arrives, and its cuts have no effect. The text must contain its own spaces. It is read as
                     `normalize` says, so a word waits for the complete word that follows it, or for input.done, however
                     long the client pauses. [pause:2s] is silence. [voice:michael] gives the text behind it to another
                     voice; turn_pause_s of the configuration is the silence between two voices.
    input.done       Ends the text of this utterance. Messages sent meanwhile wait until it has been spoken.
    input.cancel     Stops at once (barge-in), and drops waiting messages. It is never an error, because it may cross
                     the utterance's end.
    session.close    All text sent so far is still spoken. Then the connection closes with 1000.

Server → client
    session.created  {session_id, model, limits}: the first session.config is valid.
    audio.start      {utterance_index, format, sample_rate}. A server that marks its speech adds synthetic_audio
                     {digital_source_type, software, model, voice}.
    (binary)         The next bytes of the utterance's file. Each utterance is a complete file of its format.
    audio.words      {utterance_index, words}: words that begin in the audio before it, if they were asked for. `words`
                     are [{word, start, end, text_start, text_end}]: the word as it came in, seconds of the utterance's
                     audio, and its characters in the utterance's text. start and end are null where they are not known.
                     Words that were not said to their end, because speech was cut before, are not told.
                     Each word comes once, in order, and all of them before audio.done. Fragments of the text change
                     neither the words nor their times.
    audio.done       {utterance_index, duration_ms, total_bytes, frames, cancelled, parts, spoken_text_chars,
                     characters_per_minute, words_per_minute, text_begun?, segments?}: exactly one for each audio.start.
                     After a cancellation, audio already on its way may precede it. No audio of the utterance follows
                     it. The numbers count what was sent: milliseconds, bytes, and codec frames of 80 ms, which pauses
                     do not have. `parts` are [{text, end_ms}]: the text as it came in, up to where the speech was first
                     cut, and each part's end in the audio. Only parts of which all audio was sent are there, so their
                     texts, joined, were said for certain; spoken_text_chars is their length. With a model that has
                     word times, the last of them may end with a word. characters_per_minute and words_per_minute are
                     the rate of the parts that were made to their end, and null if there are none. `text_begun` is
                     there if the utterance was cancelled, or ended by max_new_tokens: the next word with its markup, or
                     the next part if the times of its words are not known, of which some audio was sent, or "". Neither
                     ends inside markup or a tag.
                     A dialogue has `segments`, the turns that were sent: [{index, voice, start, end}], in seconds of
                     the audio. Each of its parts has a `voice`, null for a pause and for a voice without a name.
                     `warnings` is a list of sentences about what was not spoken as it was asked for, such as letters
                     or instructions that the model cannot follow; absent without any. `ignored` is a list of the
                     fields that were ignored because the model cannot follow them; absent without any.
                     `finish_reason` is "length" if max_new_tokens ended the speech, and absent otherwise. Speech that
                     another limit ends is cancelled, after an error.
    session.done     {utterances}: the answer to session.close, before the connection closes.
    error            {message, error: {message, type, param, code}}: OpenAI's four keys. An invalid value changes
                     nothing, and a wrong tag is passed over. An utterance that breaks off ends with audio.done,
                     cancelled. The rest of its text is ignored until input.done, input.cancel or session.config.
                     input.done ends an utterance in this way if nothing in its text can be spoken, with the error of
                     POST (nothing_to_speak, unsupported_script).

Text is spoken in one acoustic context, except at pauses, and for a model that speaks only short texts reliably. Such a
model gets parts, which end at the ends of sentences where they can. All parts are one utterance here: one audio.start,
one file, one seed.

A part also ends at each end of a pause. Other models speak an utterance without pauses as one part, so split "sentence"
tells more of an interruption there, if the model has no word times. A client plays more slowly than it receives:
audio.words and `end_ms` tell it which text was heard when the listener interrupted, also of an utterance that had been
sent to its end.

A connection may be silent for as long as it answers pings, before its first message too. Only a client that has not
sent its key must do so within 10 s.

The handshake is answered 401 if it has a wrong key, 403 if it may not come in by its Host or Origin, 404 at a path
without a WebSocket, and 400 if it offers subprotocols: there are none here.
A message has at most 16,384 fields, lists and objects, and 33,000 elements. Of messages with an empty text, a client
may send 200 a second, and 10,000 at once.
Close codes: 1000 after session.close; 1002 another protocol; 1008 key, no key within 10 s, too many empty messages, or
a client that does not read; 1009 message too large; 1011 fault of the server; 1013 stopping or full, try later.
A server that stops says so with the error not_serving and 1013: at once to a connection without an open utterance, and
to others once it has ended.
The handshake's header x-request-timeout limits the seconds that each utterance may wait for its turn. After them the
error is queue_full, and the connection stays open.
A client should read frames as fast as they come, and keep audio that it cannot play yet, because pings queue behind
audio.
"""

import json
from contextlib import nullcontext
from typing import Annotated, Literal

from fastapi import APIRouter, WebSocket
from pydantic import Field, SecretStr, TypeAdapter, ValidationError

from vivavoce_server.access import bearer_key
from vivavoce_server.audio import AudioOptions
from vivavoce_server.config import ServerConfig
from vivavoce_server.errors import ApiError, ErrorDetail, validation_detail
from vivavoce_server.formats import FormatName
from vivavoce_server.framing import CUT_SHORT
from vivavoce_server.json_bodies import parse_json
from vivavoce_server.limits import MAX_MESSAGE_BYTES
from vivavoce_server.live.closing import Closing, Code, fault
from vivavoce_server.live.connection import FIRST_MESSAGE_S, Connection
from vivavoce_server.live.plan import plan_live
from vivavoce_server.live.sentences import Sentences
from vivavoce_server.live.session import LiveSession, State
from vivavoce_server.live.utterance import SpokenWords, UtteranceSummary
from vivavoce_server.logs import request_id
from vivavoce_server.reading import in_worker
from vivavoce_server.schemas import Fields, NullIsDefault, SpeechOptions
from vivavoce_server.service import Service

MAX_TEXT_BYTES = 128 * 2**10
"""Maximum size of a message with text."""
SHOWN_CHARS = 200
"""Most characters of an error that a message repeats."""

router = APIRouter()


class SessionConfig(SpeechOptions):
    """The voice, the model and the format of the utterances that follow."""

    type: Literal["session.config"] = Field(description="Kind of the message")
    response_format: Annotated[
        FormatName, Field(description="Format of the audio", examples=["pcm"]), NullIsDefault()
    ] = "pcm"
    split: Annotated[
        Literal["none", "sentence"],
        Field(description="`sentence` makes every sentence an utterance of its own", examples=["none"]),
        NullIsDefault(),
    ] = "none"
    api_key: SecretStr | None = Field(
        default=None, description="The key, in the first message of a browser", examples=["sk-1234"]
    )


class InputText(Fields):
    """More text, in fragments of any size. The first fragment opens an utterance."""

    type: Literal["input.text"] = Field(description="Kind of the message")
    text: Annotated[str, Field(max_length=MAX_MESSAGE_BYTES, description="A fragment with its own spaces")]


class InputDone(Fields):
    """The end of the text of this utterance."""

    type: Literal["input.done"] = Field(description="Kind of the message")


class InputCancel(Fields):
    """An interruption: speech stops at once, and waiting messages are dropped."""

    type: Literal["input.cancel"] = Field(description="Kind of the message")


class SessionClose(Fields):
    """The end of the connection, once all text sent so far has been spoken."""

    type: Literal["session.close"] = Field(description="Kind of the message")


Message = SessionConfig | InputText | InputDone | InputCancel | SessionClose
MESSAGES: TypeAdapter[Message] = TypeAdapter(Annotated[Message, Field(discriminator="type")])
NOT_THIS_PROTOCOL = frozenset({"model_attributes_type", "union_tag_invalid", "union_tag_not_found"})
"""pydantic's names for errors after which no later message of the client can be understood."""


def check_size(kind: str, message: str, max_bytes: int) -> None:
    """Raises Closing if a message is too large."""
    if len(message) > max_bytes:
        raise Closing(Code.TOO_LARGE, fault(f"{kind} has at most {max_bytes} bytes", "message_too_large"))


def parse(message: str) -> Message:
    """Parses a message. Raises Closing if it is not one of this protocol, ApiError if a field is invalid."""
    try:
        return MESSAGES.validate_python(parse_json(message.encode(), "The message"))
    except ApiError as error:
        raise _not_this_protocol(str(error)) from None
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] in NOT_THIS_PROTOCOL:
            raise _not_this_protocol(first["msg"]) from None
        detail = validation_detail(first["loc"][1:], first["type"], first["msg"])
        raise ApiError(400, detail.message, detail.param, detail.code or "invalid_value") from None


def _not_this_protocol(reason: str) -> Closing:
    return Closing(Code.PROTOCOL, fault(f"This is no message of the protocol: {reason[:SHOWN_CHARS]}", "bad_message"))


class SpeechStream:
    """The protocol of this module, as a LiveProtocol."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._sentences: Sentences | None = None
        self._utterances = 0

    # ---- reading ----------------------------------------------------------------------------------------------

    def connection_key(self, websocket: WebSocket) -> str | None:
        return bearer_key(websocket) or websocket.query_params.get("api_key")

    def first_key(self, message: str) -> str | None:
        # Other errors in the message are reported when it is handled, and only to clients with a key.
        try:
            config = parse_json(message.encode())
        except ApiError:
            return None
        key = config.get("api_key") if isinstance(config, dict) else None
        return key if isinstance(key, str) else None

    async def handle(self, message: str, session: LiveSession) -> None:
        parsed = self._parse(message)
        if session.state is State.UNCONFIGURED and not isinstance(parsed, SessionConfig | SessionClose):
            raise Closing(Code.PROTOCOL, fault(f"{parsed.type} came before session.config", "invalid_state"))
        match parsed, self._sentences:
            case SessionConfig() as config, _:
                await self._configure(config, session)
            case InputText(text=text), None:
                session.append(text)
            case InputText(text=text), Sentences() as sentences:
                for sentence in await in_worker(sentences.append, text):
                    self._say_whole(sentence, session)
            case InputDone(), None:
                session.end()
            case InputDone(), _:
                self._say_whole(self._take_held(), session)
            case InputCancel(), _:
                self._take_held()
                session.cancel()
            case SessionClose(), _:
                self._say_whole(self._take_held(), session)
                session.finish()

    def _parse(self, message: str) -> Message:
        check_size("A message", message, MAX_MESSAGE_BYTES)
        parsed = parse(message)
        if not isinstance(parsed, SessionConfig):
            check_size("A message with text", message, MAX_TEXT_BYTES)
        return parsed

    async def _configure(self, config: SessionConfig, session: LiveSession) -> None:
        # A recording costs as speech does, whether it is sent with a text or before it.
        with nullcontext() if config.ref_audio is None else session.caller.speaking():
            plan = await plan_live(config, self._service)
        first = session.state is State.UNCONFIGURED
        # The unfinished sentence belongs to the utterance that it would have become.
        self._say_whole(self._take_held(), session)
        self._sentences = Sentences(config.language) if config.split == "sentence" else None
        session.configure(plan)
        if first:
            limits = limits_of(self._service.config)
            session.outbox.put(_json("session.created", session_id=request_id.get(), model=plan.model, limits=limits))

    def _take_held(self) -> str:
        return "" if self._sentences is None else self._sentences.take()

    @staticmethod
    def _say_whole(sentence: str, session: LiveSession) -> None:
        if sentence:
            session.append(sentence)
            session.end()

    # ---- writing ----------------------------------------------------------------------------------------------

    def started(self, index: int, audio: AudioOptions, sample_rate: int) -> str:
        self._utterances += 1
        marked = {} if audio.mark is None else {"synthetic_audio": audio.mark.facts()}
        return _json("audio.start", utterance_index=index, format=audio.format, sample_rate=sample_rate, **marked)

    def audio(self, piece: bytes, words: SpokenWords | None) -> bytes:
        return piece

    def words(self, words: SpokenWords) -> str | None:
        if not words.words or not words.are_asked_for:
            return None
        told = [word.fields() for word in words.words]
        return _json("audio.words", utterance_index=words.index, words=told)

    def ended(self, summary: UtteranceSummary) -> str:
        return _json(
            "audio.done",
            utterance_index=summary.index,
            duration_ms=round(summary.audio_s * 1000),
            total_bytes=summary.audio_bytes,
            frames=summary.said.frames,
            cancelled=summary.cancelled,
            parts=_parts(summary),
            spoken_text_chars=summary.said.chars,
            **summary.rate.fields(),
            **({"text_begun": summary.said.begun} if summary.cancelled or summary.is_cut_short else {}),
            **({"segments": [turn.fields() for turn in summary.turns]} if summary.turns else {}),
            **({"warnings": summary.warnings} if summary.warnings else {}),
            **({"ignored": summary.ignored} if summary.ignored else {}),
            **({"finish_reason": CUT_SHORT} if summary.is_cut_short else {}),
        )

    def error(self, detail: ErrorDetail) -> str:
        # The message's `type` leaves no room for the error's. `message` is repeated for vLLM-Omni's clients.
        return _json("error", message=detail.message, error=detail.model_dump())

    def farewell(self) -> str:
        return _json("session.done", utterances=self._utterances)


def _parts(summary: UtteranceSummary) -> list[dict[str, object]]:
    """The parts that were said. Those of a dialogue name their voices."""
    parts: list[dict[str, object]] = [
        {"text": part.text, "end_ms": round(part.end_s * 1000)} for part in summary.said.parts
    ]
    for part, voice in zip(parts, summary.part_voices, strict=False):
        part["voice"] = voice
    return parts


def limits_of(config: ServerConfig) -> dict[str, float]:
    """The limits that a client should know before it exceeds them."""
    return {
        "first_message_s": FIRST_MESSAGE_S,
        "idle_s": config.live_idle_s,
        "max_config_bytes": MAX_MESSAGE_BYTES,
        "max_text_bytes": MAX_TEXT_BYTES,
        "max_utterance_chars": config.live_max_chars,
        "max_unsent_bytes": config.live_max_unsent_bytes,
    }


def _json(kind: str, **fields: object) -> str:
    return json.dumps({"type": kind, **fields}, ensure_ascii=False)


@router.websocket("/v1/audio/speech/stream")
async def speech_stream(websocket: WebSocket) -> None:
    """Serves this module's protocol on one connection."""
    service = websocket.app.state.service
    assert isinstance(service, Service)
    await Connection(websocket, SpeechStream(service)).run()
