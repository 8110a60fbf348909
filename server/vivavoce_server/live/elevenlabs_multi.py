"""WS /v1/text-to-speech/{voice_id}/multi-stream-input: ElevenLabs' protocol for several texts side by side.

LiveKit and Pipecat keep such a connection for a whole call, with a context for each turn. The query, the key and the
text are those of elevenlabs.py. The query has also auto_mode, which puts a blank between messages, each of which is
then a sentence, and inactivity_timeout in seconds (20 unless given, at most 180).

Client → server (context_id or contextId; without it, the context "default" is meant)
    {"text": " ", "context_id", "voice_settings"?}   opens a context
    {"text": "Some words ", "context_id"}            more text, spoken as it arrives; it opens the context if need be
    {"context_id", "flush": true}, also with a text  no more text for now: what is there is spoken to its end
    {"text": ""}, also with a context_id             keeps contexts open
    {"context_id", "close_context": true}            right behind a flush, the end of a turn: what was flushed is still
                                                     spoken. Anywhere else, and the second time, an interruption: the
                                                     context's speech stops at once. With auto_mode, a flush with a text
                                                     is no end of a turn. A context that is over may be named
    {"close_socket": true}                           closes all contexts; then the connection closes with 1000

Server → client
    {"audio": base64, "alignment", "normalizedAlignment", "contextId"}
                                                     the next bytes of the context's one file, and characters with
                                                     their times, as in elevenlabs.py
    {"isFinal": true, "contextId"}                   exactly one for each context, behind its last audio. With
                                                     `warnings`, if something was not spoken as it was asked for
    {"message", "error", "code", "contextId"?}       an error. Its context still gets isFinal, unless the connection
                                                     closes

A context that gets no message for inactivity_timeout, and is not speaking, is closed; its text is still spoken. The
connection itself stays open without contexts, for as long as the client likes.
"""

import asyncio
import re

from fastapi import APIRouter, WebSocket
from pydantic import AliasChoices, Field

from vivavoce_server.audio import AudioOptions
from vivavoce_server.errors import ApiError, ErrorDetail, invalid
from vivavoce_server.live.closing import Closing, Code, fault
from vivavoce_server.live.connection import Connection
from vivavoce_server.live.elevenlabs import (
    SILENT_FAULTS,
    Dialled,
    TextFeed,
    TextMessage,
    audio_message,
    dialled,
    error_message,
    final_message,
    first_key,
    last_alignment,
    parse,
)
from vivavoce_server.live.session import LiveSession, State
from vivavoce_server.live.utterance import SpokenWords, UtteranceSummary
from vivavoce_server.request_lines import current_line
from vivavoce_server.schemas import MAX_NAME_CHARS

router = APIRouter()

MAX_CONTEXTS = 32
"""Most contexts of one connection that are open or still speak."""
DEFAULT_CONTEXT = "default"
SECONDS = re.compile(r"[0-9]{1,18}", re.ASCII)
INACTIVITY_S, MAX_INACTIVITY_S = 20.0, 180.0


class ContextMessage(TextMessage):
    """A message of a client, for one context. Options without a meaning here are ignored."""

    context_id: str = Field(
        default=DEFAULT_CONTEXT,
        max_length=MAX_NAME_CHARS,
        validation_alias=AliasChoices("context_id", "contextId"),
        description="The context, as the client names it",
    )
    close_context: bool | None = Field(
        default=None, description="True ends the turn behind a flush, and interrupts it anywhere else"
    )

    def check(self) -> None:
        if not self.close_context:
            super().check()


class Context:
    """One context: a session of its own, whose messages carry its id. It is a MessageWriter."""

    def __init__(self, parent: "MultiStreamInput", base: LiveSession, context_id: str) -> None:
        self._parent = parent
        self._base = base
        self._id = context_id
        self._session = base.open_sibling(self, self._over)
        self._feed = TextFeed(self._session, spaced=parent.auto_mode)
        self._aligner = parent.address.new_aligner()
        self._turn_ended = False
        """True if a flush says that all text of the turn is there."""
        self._closing = False
        self.warnings: tuple[str, ...] = ()
        self._progress: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.keep_alive()

    async def configure(self, message: ContextMessage, address: Dialled) -> None:
        """Sets the plan. Raises the errors of `Dialled.plan`."""
        plan, self.warnings = await address.plan(message.voice_settings)
        self._session.configure(plan)

    def take(self, message: ContextMessage) -> None:
        """Applies a message with text or a flush."""
        if self._closing and (message.text or "").strip():
            self._session.report(fault("The context is closed; open another one", "context_closed", "context_id"))
            return
        if message.text:
            self._feed.add(message.text)
            self._turn_ended = False
        if message.flush:
            self._feed.flush()
            # LiveKit's auto_mode flushes each sentence, and marks the end of the turn by a flush without text.
            self._turn_ended = not (message.text and self._parent.auto_mode)
        self.keep_alive()

    def interrupt_or_end(self) -> None:
        """Applies close_context; see the module."""
        if self._closing or not self._turn_ended:
            self._session.cancel()
        self.end()

    def end(self) -> None:
        """Ends the context once everything has been spoken."""
        if not self._closing or self._session.state is State.READY:
            self._closing = True
            self._session.finish()

    def keep_alive(self) -> None:
        """Lets the time of inactivity begin again."""
        self._stop_timer()
        self._progress = self._session.progress
        self._timer = asyncio.get_running_loop().call_later(self._parent.inactivity_s, self._look)

    def abandon(self) -> None:
        self._stop_timer()
        self._session.abandon()

    def _look(self) -> None:
        """Ends the context unless it speaks, or has spoken since its time began."""
        if self._session.state is State.ENDING or self._session.progress != self._progress:
            self.keep_alive()
        else:
            self.end()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _over(self, closing: Closing) -> None:
        """The session's end: of the context alone, or for another reason than its own of the connection."""
        if closing.code is not Code.NORMAL:
            self._parent.culprit = self._id
            self._base.close(closing)
            return
        self._stop_timer()
        self._session.outbox.put(final_message(self.warnings, contextId=self._id))
        self._parent.forget(self._id, self._base)

    # ---- writing ----------------------------------------------------------------------------------------------

    def started(self, index: int, audio: AudioOptions, sample_rate: int) -> None:
        self._aligner.begin()

    def audio(self, piece: bytes, words: SpokenWords | None) -> str:
        return audio_message(piece, self._aligner, words, contextId=self._id)

    def words(self, words: SpokenWords) -> str | None:
        return last_alignment(self._aligner, words, contextId=self._id)

    def ended(self, summary: UtteranceSummary) -> None:
        self._aligner.end(summary.file_s)
        self.warnings += summary.warnings

    def error(self, detail: ErrorDetail) -> str | None:
        if detail.code in SILENT_FAULTS:
            self.warnings += (detail.message,)
            return None
        return error_message(detail, contextId=self._id)


class MultiStreamInput:
    """The protocol of this module, as a LiveProtocol."""

    def __init__(self, address: Dialled) -> None:
        self.address = address
        self.connection_key = address.connection_key
        self.first_key = first_key
        self.auto_mode = address.query.get("auto_mode", "").lower() == "true"
        self.inactivity_s = INACTIVITY_S
        self._contexts: dict[str, Context] = {}
        self._closing = False
        self.culprit: str | None = None
        """The context whose error closes the connection."""

    # ---- reading ----------------------------------------------------------------------------------------------

    async def handle(self, message: str, session: LiveSession) -> None:
        parsed = parse(ContextMessage, message)
        session.on_abandon = self._abandon
        context = self._contexts.get(parsed.context_id)
        try:
            parsed.check()
        except ApiError as error:
            current_line().tell_error(error.detail.code, error.detail.param)
            session.outbox.put(error_message(error.detail, contextId=parsed.context_id))
            return
        if self._closing:
            return
        if parsed.close_socket:
            self._close_all(session)
        elif parsed.close_context:
            if context is not None:
                context.interrupt_or_end()
        elif parsed.text == "" and not parsed.flush:
            session.count_empty()
            self._keep_alive(parsed)
        elif context is not None:
            context.take(parsed)
        elif parsed.text:
            (await self._open(parsed, session)).take(parsed)

    async def _open(self, first: ContextMessage, session: LiveSession) -> Context:
        self.culprit = first.context_id
        if len(self._contexts) >= MAX_CONTEXTS:
            message = f"{MAX_CONTEXTS} contexts are open, which is the most; close one first"
            raise Closing(Code.POLICY, fault(message, "max_active_conversations", "context_id"))
        try:
            self.inactivity_s = inactivity_of(self.address.query.get("inactivity_timeout"))
            context = Context(self, session, first.context_id)
            self._contexts[first.context_id] = context
            await context.configure(first, self.address)
        except ApiError as error:
            # Pipecat reads no errors, and sees only the close.
            raise Closing(Code.POLICY, error.detail) from error
        self.culprit = None
        return context

    def _keep_alive(self, message: ContextMessage) -> None:
        named = "context_id" in message.model_fields_set
        for context_id, context in self._contexts.items():
            if not named or context_id == message.context_id:
                context.keep_alive()

    def _close_all(self, session: LiveSession) -> None:
        self._closing = True
        for context in tuple(self._contexts.values()):
            context.end()
        self._finish_if_done(session)

    def forget(self, context_id: str, session: LiveSession) -> None:
        """Removes a context that is over."""
        del self._contexts[context_id]
        self._finish_if_done(session)

    def _finish_if_done(self, session: LiveSession) -> None:
        if self._closing and not self._contexts:
            session.finish()

    def _abandon(self) -> None:
        for context in self._contexts.values():
            context.abandon()

    # ---- writing: the connection's own messages ---------------------------------------------------------------

    def started(self, index: int, audio: AudioOptions, sample_rate: int) -> None:
        return None

    def audio(self, piece: bytes, words: SpokenWords | None) -> str:
        raise AssertionError("the contexts speak, not the connection")

    def words(self, words: SpokenWords) -> None:
        return None

    def ended(self, summary: UtteranceSummary) -> None:
        return None

    def error(self, detail: ErrorDetail) -> str:
        return error_message(detail, **({} if self.culprit is None else {"contextId": self.culprit}))

    def farewell(self) -> None:
        return None


def inactivity_of(timeout: str | None) -> float:
    """Seconds without a message after which a context is closed. More than the most counts as the most.

    Raises:
        ApiError: 400, it is no number of seconds.
    """
    if timeout is None:
        return INACTIVITY_S
    if not SECONDS.fullmatch(timeout) or float(timeout) == 0:
        message = f"inactivity_timeout is a whole number of seconds from 1 to {MAX_INACTIVITY_S:g}"
        raise invalid("inactivity_timeout", message)
    return min(float(timeout), MAX_INACTIVITY_S)


@router.websocket("/v1/text-to-speech/{voice_id}/multi-stream-input")
async def multi_stream_input(websocket: WebSocket, voice_id: str) -> None:
    """Serves ElevenLabs' protocol of several contexts on one connection; see the module."""
    await Connection(websocket, MultiStreamInput(dialled(websocket, voice_id))).run()
