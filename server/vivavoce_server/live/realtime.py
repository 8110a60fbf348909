"""WS /v1/realtime: OpenAI's Realtime protocol, as far as it speaks given text.

There is no language model behind it and nothing listens. A response speaks the input_text of the last user message of
its `input`, or, without `input`, the user's text that came into the conversation since the last response. The text is
read as by POST /v1/audio/speech, and the transcript is the text as it came. `instructions` are orders to a language
model: they are neither spoken nor obeyed. Events, their order and their fields are OpenAI's; docs/realtime.md lists
them.

The query's `model` is a served one; OpenAI's own names mean the first. The key is a Bearer token, or the subprotocol
openai-insecure-api-key.KEY beside the subprotocol realtime. A connection whose key, model or purpose is refused is
accepted, gets one error event, and is closed with 1008: clients repeat a refused handshake. A full or stopping server
closes it with 1013 instead. An open connection may be silent for as long as it likes.

An event that is at fault gets an error event with its event_id, and changes nothing. A response whose text cannot be
spoken ends with status "failed". response.cancel stops at once: no audio follows its response.done, whose usage tells
the codec frames that were sent. One response at a time belongs to the conversation; others run beside it with
conversation "none".
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from fastapi import APIRouter, WebSocket
from vivavoce_engine import EngineError

from vivavoce_server.access import Caller, bearer_key
from vivavoce_server.audio import AudioOptions
from vivavoce_server.deadlines import max_wait_of
from vivavoce_server.errors import ApiError, ErrorDetail, error_detail, invalid
from vivavoce_server.formats import FormatName
from vivavoce_server.jobs import SpeechJob, prepare
from vivavoce_server.live.connection import Socket
from vivavoce_server.live.conversation import Conversation, Item, item_of
from vivavoce_server.live.handshake import check_subprotocols
from vivavoce_server.live.outbox import Lane
from vivavoce_server.live.realtime_events import (
    NOT_AVAILABLE,
    RATES,
    AudioClear,
    AudioFormat,
    FormatType,
    ItemCreate,
    ItemDelete,
    ItemRetrieve,
    ItemTruncate,
    Message,
    ResponseCancel,
    ResponseCreate,
    ResponseSettings,
    SessionUpdate,
    Settings,
    event,
    fields_of,
    new_id,
    parse,
)
from vivavoce_server.live.realtime_response import Asked, Response
from vivavoce_server.request_lines import current_line
from vivavoce_server.schemas import SpeechOptions, SpeechRequest, VoiceId

router = APIRouter()

SUBPROTOCOL = "realtime"
KEY_SUBPROTOCOL = "openai-insecure-api-key."
OWN_MODELS = "gpt-"
DEFAULT_VOICE = "alloy"
PCM = AudioFormat(type="audio/pcm")
MAX_RESPONSES = 32
"""Most responses of one connection that run at once."""
ENCODINGS: dict[FormatType, FormatName] = {
    "audio/pcm": "pcm",
    "audio/pcmu": "g711_ulaw",
    "audio/pcma": "g711_alaw",
}
PARAMS = {"voice": "audio.output.voice", "speed": "audio.output.speed"}
"""A request's field → its place in a session or a response."""
REFUSED_QUERIES = {
    "intent": "This server speaks given text and does not listen; leave intent out",
    "call_id": "This server takes no calls; leave call_id out",
}


@contextmanager
def _named(where: str) -> Iterator[None]:
    """Names the fields of a refusal as the protocol does. `where` is session or response."""
    try:
        yield
    except ApiError as error:
        if error.detail.param is not None:
            error.detail.param = f"{where}.{PARAMS.get(error.detail.param, error.detail.param)}"
        raise


@dataclass(frozen=True)
class Output:
    """Settings of the sound of responses. Clients change it for the session, and for one response."""

    model: str | None
    voice: str | VoiceId = DEFAULT_VOICE
    format: AudioFormat = PCM
    speed: float = 1.0

    def changed(self, settings: Settings, where: str) -> "Output":
        """This output with a client's settings, which are at `where` in its event.

        Raises:
            ApiError: 400, a setting needs a language model; names it.
        """
        if settings.output_modalities not in (None, ["audio"]):
            raise invalid(f"{where}.output_modalities", 'This server speaks: send ["audio"]', NOT_AVAILABLE)
        if settings.tools:
            message = "There is no language model here that could call tools; send []"
            raise invalid(f"{where}.tools", message, NOT_AVAILABLE)
        output = None if settings.audio is None else settings.audio.output
        if output is None:
            return self
        return replace(
            self,
            voice=output.voice or self.voice,
            format=output.format or self.format,
            speed=self.speed if output.speed is None else output.speed,
        )

    @property
    def served_model(self) -> str | None:
        """The model that is asked for here; None for the first one, which OpenAI's own names mean."""
        return None if self.model is not None and self.model.startswith(OWN_MODELS) else self.model

    def options(self) -> dict[str, object]:
        """The fields of a SpeechOptions."""
        return {
            "model": self.served_model,
            "voice": self.voice,
            "speed": self.speed,
        }

    def audio(self) -> AudioOptions:
        return AudioOptions(ENCODINGS[self.format.type], self.speed, RATES[self.format.type])

    def as_json(self) -> dict[str, object]:
        voice = {"id": self.voice.id} if isinstance(self.voice, VoiceId) else self.voice
        return {"format": self.format.as_json(), "voice": voice, "speed": self.speed}


class RealtimeConnection(Socket):
    """Serves this module's protocol on one connection."""

    def __init__(self, websocket: WebSocket) -> None:
        super().__init__(websocket, self)
        self._id = new_id("sess")
        self._output = Output(websocket.query_params.get("model"))
        self._instructions = ""
        self._tool_choice = "none"
        self._conversation = Conversation()
        self._responses: dict[str, Response] = {}
        self._silent = asyncio.Event()
        """Set while no response runs."""
        self._silent.set()

    # ---- as a SocketProtocol ----------------------------------------------------------------------------------

    def error(self, detail: ErrorDetail, event_id: str | None = None) -> str:
        return event("error", error={**detail.model_dump(), "event_id": event_id})

    def farewell(self) -> None:
        return None

    # ---- as a Socket ------------------------------------------------------------------------------------------

    async def _accept(self) -> None:
        with self._service.metrics.admission():
            chosen = check_subprotocols(self._websocket, SUBPROTOCOL)
        await self.accept_with_headers(chosen)

    async def _until_silent(self) -> None:
        await self._silent.wait()

    def _abandon(self) -> None:
        for response in list(self._responses.values()):
            response.abandon()

    async def _converse(self) -> None:
        with self._service.metrics.admission():
            max_wait_s = max_wait_of(self._websocket, self._service.config)
            caller = self._keyring.find(self._key())
            self._check_dialled()
            self._held.enter_context(self._service.count_session())
        self._outbox.put(event("session.created", session=self._session_json()))
        while True:
            await self._handle(await self._receive(), caller, max_wait_s)
            self._check_reader()

    def _key(self) -> str | None:
        keys = (name.removeprefix(KEY_SUBPROTOCOL) for name in self._offered() if name.startswith(KEY_SUBPROTOCOL))
        return bearer_key(self._websocket) or next(keys, None)

    def _offered(self) -> list[str]:
        """The subprotocols that the client offers."""
        offered: list[str] = self._websocket.scope.get("subprotocols", [])
        return offered

    def _check_dialled(self) -> None:
        """Raises a 400 or 404 for an address whose purpose or model is not served."""
        for name, message in REFUSED_QUERIES.items():
            if name in self._websocket.query_params:
                raise invalid(name, message, NOT_AVAILABLE)
        self._service.find_model(self._output.served_model)

    # ---- events -----------------------------------------------------------------------------------------------

    async def _handle(self, message: str, caller: Caller, max_wait_s: float) -> None:
        event_id = None
        try:
            fields = fields_of(message)
            given = fields.get("event_id")
            # Messages longer than a text's keep halves of characters, which cannot be sent back.
            event_id = given.encode(errors="backslashreplace").decode() if isinstance(given, str) else None
            match parse(fields):
                case SessionUpdate() as update:
                    await self._update(update)
                case ItemCreate() as create:
                    self._create_item(create)
                case ItemDelete(item_id=item_id):
                    self._conversation.delete(item_id)
                    self._put("conversation.item.deleted", item_id=item_id)
                case ItemRetrieve(item_id=item_id):
                    item = self._conversation.find(item_id)
                    self._put("conversation.item.retrieved", item=item.as_json())
                case ItemTruncate() as truncate:
                    self._conversation.truncate(**truncate.model_dump())
                    self._put("conversation.item.truncated", **truncate.model_dump())
                case ResponseCreate(response=settings):
                    self._respond(settings, caller, max_wait_s)
                case ResponseCancel(response_id=response_id):
                    self._cancel(response_id)
                case AudioClear():
                    self._put("input_audio_buffer.cleared")
        except (ApiError, EngineError) as error:
            detail = error_detail(error)[1]
            current_line().tell_error(detail.code, detail.param)
            self._outbox.put(self.error(detail, event_id))

    def _put(self, kind: str, **fields: object) -> None:
        self._outbox.put(event(kind, **fields))

    async def _update(self, update: SessionUpdate) -> None:
        session = update.session
        output = self._output.changed(session, "session")
        if session.model is not None:
            output = replace(output, model=session.model)
        with _named("session"):
            await prepare(self._options(output), self._service).find_voice()
        self._output = output
        self._instructions = self._instructions if session.instructions is None else session.instructions
        self._tool_choice = session.tool_choice or self._tool_choice
        self._put("session.updated", session=self._session_json())

    def _create_item(self, create: ItemCreate) -> None:
        item = item_of(create.item, "item")
        previous_id = self._conversation.add(item, create.previous_item_id)
        for kind in ("conversation.item.added", "conversation.item.done"):
            self._put(kind, previous_item_id=previous_id, item=item.as_json())

    # ---- responses --------------------------------------------------------------------------------------------

    def _respond(self, settings: ResponseSettings, caller: Caller, max_wait_s: float) -> None:
        beside = settings.conversation == "none"
        active = self._active()
        if active is not None and not beside:
            message = f"The conversation has an active response, {active.id}: cancel it, or wait for its response.done"
            raise ApiError(409, message, None, "conversation_already_has_active_response")
        if len(self._responses) >= MAX_RESPONSES:
            message = f"{MAX_RESPONSES} responses run already on this connection"
            raise ApiError(429, message, None, "too_many_responses", "rate_limit_error")
        output = self._output.changed(settings, "response")
        items = self._items_of(settings)
        text = "\n".join(item.text for item in items)
        if not text.strip():
            message = "There is no text to speak: send it as a user's message, in the conversation or in response.input"
            raise invalid("response.input", message, "no_text")
        asked = Asked(
            job=self._job(output, text, max_wait_s),
            text=text,
            conversation=None if beside else self._conversation,
            metadata=settings.metadata,
            output=output.as_json(),
        )
        for item in items:
            item.answered = item.answered or not beside
        lane = Lane(self._outbox)
        response = Response(asked, self._service, caller, lane, self._end, self._forget)
        self._responses[response.id] = response
        self._silent.clear()

    def _job(self, output: Output, text: str, max_wait_s: float) -> SpeechJob:
        request = SpeechRequest.model_validate({**output.options(), "input": text})
        with _named("response"), self._service.metrics.admission():
            return prepare(request, self._service, max_wait_s).with_audio(output.audio()).with_word_times()

    def _items_of(self, settings: ResponseSettings) -> list[Item]:
        """The items that a response speaks."""
        if settings.input is None:
            return self._conversation.unanswered()
        items = [self._given(message, f"response.input.{index}") for index, message in enumerate(settings.input)]
        return [item for item in items if item.role == "user"][-1:]

    def _given(self, message: Message, field: str) -> Item:
        if message.type == "item_reference" and message.id is not None:
            return self._conversation.find(message.id, f"{field}.id")
        return item_of(message, field)

    def _active(self) -> Response | None:
        """The running response of the conversation."""
        return next((response for response in self._responses.values() if response.in_conversation), None)

    def _cancel(self, response_id: str | None) -> None:
        response = self._active() if response_id is None else self._responses.get(response_id)
        if response is None:
            # LiveKit's client knows this error by how its message begins, Pipecat's by its code.
            message = f"Cancellation failed: {response_id or 'no response of the conversation'} is not active"
            raise ApiError(400, message, "response_id" if response_id else None, "response_cancel_not_active")
        response.cancel()

    def _forget(self, response: Response) -> None:
        self._responses.pop(response.id, None)
        if not self._responses:
            self._silent.set()

    # ---- the session ------------------------------------------------------------------------------------------

    def _options(self, output: Output) -> SpeechOptions:
        return SpeechOptions.model_validate(output.options())

    def _session_json(self) -> dict[str, object]:
        output = self._output
        model = output.model or self._service.find_model(None)[0]
        silent = {"format": PCM.as_json(), "transcription": None, "turn_detection": None}
        return {
            "id": self._id,
            "object": "realtime.session",
            "type": "realtime",
            "model": model,
            "output_modalities": ["audio"],
            "instructions": self._instructions,
            "tools": [],
            "tool_choice": self._tool_choice,
            "max_output_tokens": "inf",
            "tracing": None,
            "audio": {"input": {**silent, "noise_reduction": None}, "output": output.as_json()},
        }


@router.websocket("/v1/realtime")
async def realtime(websocket: WebSocket) -> None:
    """Serves OpenAI's Realtime protocol on one connection; see the module."""
    await RealtimeConnection(websocket).run()
