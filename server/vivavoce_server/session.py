"""One listener's live session: text goes in while speech comes out, one utterance after the other.

It knows no messages: `Wire` writes them, and a protocol's module (websocket.py, elevenlabs.py) reads them and calls
`configure`, `append`, `end`, `cancel` and `finish`. These never wait and never raise; what goes wrong is sent.

                 configure               append               end
    UNCONFIGURED ─────────► READY ─────────────────► OPEN ──────────► ENDING ──► READY   (all has been sent)
                              ▲   it was refused or broke │
                              │ end                       ▼
                              └──────────────────────── REFUSED   (the rest of its text is passed over)

`cancel` leads from everywhere but UNCONFIGURED to READY. What arrives while an utterance is ENDING waits its turn.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import partial
from typing import Protocol

from vivavoce_engine import EndlessSpeech, EngineError, NotServing, SpeechEngine, SynthesisRequest
from vivavoce_engine.front.live import LiveUtterance

from vivavoce_server.access import Caller
from vivavoce_server.audio import AudioOptions, SpeechEncoder
from vivavoce_server.errors import INVALID_REQUEST, ApiError, ErrorDetail, error_detail
from vivavoce_server.metrics import Outcome, SpeechMeter, outcome_of
from vivavoce_server.outbox import Outbox, Outgoing, SlowReader
from vivavoce_server.service import Service

log = logging.getLogger(__name__)

MESSAGE_COST_CHARS = 64
"""What a message that waits its turn counts for, its text aside: many empty ones fill memory too."""


class State(Enum):
    UNCONFIGURED = auto()
    READY = auto()
    OPEN = auto()
    ENDING = auto()
    REFUSED = auto()


class Code(int, Enum):
    """Why a connection is closed, as WebSocket's close codes."""

    NORMAL = 1000
    PROTOCOL = 1002
    POLICY = 1008
    TOO_LARGE = 1009
    FAILURE = 1011
    TRY_AGAIN_LATER = 1013


class Closing(Exception):
    """The connection is to be closed; its client is told why. None where it knows."""

    def __init__(self, code: Code, detail: ErrorDetail | None = None) -> None:
        super().__init__(detail.message if detail else code.name)
        self.code = code
        self.detail = detail


def fault(message: str, code: str, param: str | None = None) -> ErrorDetail:
    """A client's fault, in OpenAI's four keys."""
    return ErrorDetail(message=message, type=INVALID_REQUEST, param=param, code=code)


@dataclass(frozen=True, slots=True)
class Plan:
    """How the next utterances are to sound. The request's text is not used."""

    model: str
    engine: SpeechEngine
    request: SynthesisRequest
    audio: AudioOptions

    def with_sample_rate(self, sample_rate: int) -> "Plan":
        """Any rate, where HTTP offers a few."""
        return replace(self, audio=replace(self.audio, sample_rate=sample_rate))


@dataclass(frozen=True, slots=True)
class Heard:
    """An utterance that is over: what of it was sent."""

    index: int
    audio_bytes: int
    audio_s: float
    cancelled: bool


class Wire(Protocol):
    """How a protocol writes. None where it has no word for it."""

    def started(self, index: int, audio: AudioOptions, sample_rate: int) -> str | None: ...

    def audio(self, piece: bytes) -> str | bytes: ...

    def ended(self, heard: Heard) -> str | None: ...

    def error(self, detail: ErrorDetail) -> str: ...


@dataclass(slots=True)
class _Utterance:
    index: int
    live: LiveUtterance
    encoder: SpeechEncoder
    meter: SpeechMeter
    leave: ExitStack
    """Gives back the caller's slot and the engine's row."""
    speed: float
    sample_rate: int
    chars: int = 0
    audio_bytes: int = 0
    audio_s: float = 0.0
    held_s: float = 0.0
    speaking: asyncio.Task[None] | None = None


@dataclass
class LiveSession:
    """See above. `close` ends the connection for the reason given."""

    service: Service
    caller: Caller
    wire: Wire
    outbox: Outbox
    close: Callable[[Closing], None]
    max_wait_s: float
    """Seconds that an utterance may wait for its turn."""

    def __post_init__(self) -> None:
        self.state = State.UNCONFIGURED
        self._plan: Plan | None = None
        self._utterance: _Utterance | None = None
        self._next_index = 0
        self._later: deque[Callable[[], None]] = deque()
        self._later_chars = 0
        self._resuming = False

    # ---- what a client asks for -------------------------------------------------------------------------------

    def configure(self, plan: Plan) -> None:
        """How the utterances from now on are to sound."""
        match self.state:
            case State.UNCONFIGURED | State.READY | State.REFUSED:
                self._plan, self.state = plan, State.READY
            case State.OPEN:
                self.report(fault("An utterance is open: end or cancel it first", "invalid_state"))
            case State.ENDING:
                self._defer(0, partial(self.configure, plan))

    def append(self, text: str) -> None:
        """More text to say; the first opens an utterance."""
        match self.state:
            case State.UNCONFIGURED:
                self.report(fault("The session has not been configured", "invalid_state"))
            case State.READY:
                self._open()
                self._feed(text)
            case State.OPEN:
                self._feed(text)
            case State.ENDING:
                self._defer(len(text), partial(self.append, text))
            case State.REFUSED:
                pass

    def end(self) -> None:
        """No text follows in this utterance."""
        match self.state:
            case State.UNCONFIGURED | State.READY:
                self.report(fault("There is no utterance to end", "invalid_state"))
            case State.OPEN:
                utterance = self._current()
                self.state = State.ENDING
                try:
                    utterance.live.end()
                except EngineError as error:
                    self._break_off(utterance, error)
            case State.ENDING:
                self._defer(0, self.end)
            case State.REFUSED:
                self.state = State.READY

    def cancel(self) -> None:
        """Stops at once: the row is free before the next frame, and no audio that has not left leaves."""
        self._later.clear()
        self._later_chars = 0
        if self._utterance is not None:
            self._leave(self._utterance, "cancelled", State.READY)
        elif self.state is State.REFUSED:
            self.state = State.READY

    def finish(self) -> None:
        """Nothing follows: the connection is closed once all has been said."""
        if self.state is State.OPEN:
            self.end()
        if self.state is State.ENDING:
            self._defer(0, self.finish)
        else:
            self.close(Closing(Code.NORMAL))

    # ---- what a connection asks for ---------------------------------------------------------------------------

    def report(self, detail: ErrorDetail) -> None:
        self.outbox.put(self.wire.error(detail))

    @property
    def progress(self) -> int | None:
        """Changes while an open utterance speaks; None where none waits for text."""
        return self._utterance.audio_bytes if self._utterance is not None and self.state is State.OPEN else None

    def starve(self) -> None:
        """The open utterance has said all it got, and waited too long for more: it holds no row any longer."""
        utterance = self._current()
        self.report(fault("The utterance waited too long for text", "idle_timeout"))
        self._leave(utterance, "cut_off", State.REFUSED)

    def abandon(self) -> None:
        """The listener is gone."""
        self._later.clear()
        if self._utterance is not None:
            self._leave(self._utterance, "disconnected", State.READY)

    # ---- an utterance -----------------------------------------------------------------------------------------

    def _current(self) -> _Utterance:
        assert self._utterance is not None, "OPEN and ENDING have an utterance"
        return self._utterance

    def _open(self) -> None:
        plan = self._plan
        assert plan is not None, "READY has a plan"
        leave = ExitStack()
        try:
            with self.service.metrics.admission(plan.model):
                leave.enter_context(self.caller.speaking())
                leave.enter_context(self.service.count_speech())
                request = replace(plan.request, client=self.caller.name, max_wait_s=self.max_wait_s)
                live = plan.engine.open(request)
        except (ApiError, EngineError) as error:
            leave.close()
            self.state = State.REFUSED
            self._report_error(error)
            return
        leave.callback(live.stream.cancel)
        model_rate = plan.engine.info.sample_rate
        utterance = _Utterance(
            index=self._next_index,
            live=live,
            encoder=SpeechEncoder(plan.audio, model_rate),
            meter=SpeechMeter(self.service.metrics, plan.model, paced_by_text=True),
            leave=leave,
            speed=plan.audio.speed,
            sample_rate=model_rate,
        )
        self._next_index += 1
        self._utterance, self.state = utterance, State.OPEN
        self._put(self.wire.started(utterance.index, plan.audio, plan.audio.rate_for(model_rate)))
        utterance.speaking = asyncio.create_task(self._speak(utterance))

    def _feed(self, text: str) -> None:
        if self.state is not State.OPEN:  # it could not be opened
            return
        utterance = self._current()
        most = self.service.config.live_max_chars
        if utterance.chars + len(text) > most:
            message = f"An utterance has at most {most} characters; this text is passed over"
            self.report(fault(message, "string_above_max_length", "text"))
            return
        utterance.chars += len(text)
        try:
            utterance.live.append(text)
        except EngineError as error:
            self._break_off(utterance, error)

    async def _speak(self, utterance: _Utterance) -> None:
        """Sends the utterance to its end, on a task of its own so that the connection goes on reading."""
        try:
            async for chunk in utterance.live.stream:
                seconds = len(chunk.pcm) / utterance.sample_rate
                utterance.meter.add_audio(seconds)
                await self._send(utterance, utterance.encoder.feed(chunk.pcm), seconds / utterance.speed)
            if finished := utterance.live.stream.finished:
                utterance.meter.add_queue_wait(finished.queue_wait_s)
            await self._send(utterance, utterance.encoder.flush(), 0.0)
            # Until all has left, it can be cancelled, and the next one has to wait.
            await self.outbox.flushed()
        except EngineError as error:
            self._break_off(utterance, error)
        except SlowReader as error:
            self.close(Closing(Code.POLICY, fault(f"The client reads too slowly: {error}", "slow_reader")))
        except Exception:
            log.exception("a bug")
            self.close(BUG)
        else:
            self._leave(utterance, "completed", State.READY)

    async def _send(self, utterance: _Utterance, piece: bytes, seconds: float) -> None:
        utterance.held_s += seconds
        if piece:
            # An encoder may hold samples back: what leaves now is all that was held.
            item = Outgoing(self.wire.audio(piece), len(piece), utterance.held_s)
            await self.outbox.put_audio(item)
            utterance.audio_bytes += item.audio_bytes
            utterance.audio_s += item.audio_s
            utterance.held_s = 0.0

    def _break_off(self, utterance: _Utterance, error: EngineError) -> None:
        """The engine could not go on. Of an utterance that is still open, the rest of the text is passed over."""
        log.warning("live speech broke off: %s", error)
        self._report_error(error)
        if isinstance(error, EndlessSpeech):
            utterance.meter.count_endless()
        outcome = "cut_off" if utterance.meter.heard else outcome_of(error, admitted=True)
        self._leave(utterance, outcome, State.REFUSED if self.state is State.OPEN else State.READY)

    def _leave(self, utterance: _Utterance, outcome: Outcome, next_state: State) -> None:
        """The utterance is over, whatever the reason."""
        if utterance is not self._utterance:
            return
        self._utterance = None
        utterance.leave.close()
        utterance.meter.end(outcome)
        if utterance.speaking is not None and utterance.speaking is not asyncio.current_task():
            utterance.speaking.cancel()
        cancelled = outcome != "completed"
        dropped = self.outbox.drop_audio() if cancelled else []
        heard = Heard(
            utterance.index,
            utterance.audio_bytes - sum(item.audio_bytes for item in dropped),
            max(0.0, utterance.audio_s - sum(item.audio_s for item in dropped)),
            cancelled,
        )
        self._put(self.wire.ended(heard))
        self.state = next_state
        self._resume()

    def _report_error(self, error: ApiError | EngineError) -> None:
        detail = error_detail(error)[1]
        if isinstance(error, NotServing):
            self.close(Closing(Code.TRY_AGAIN_LATER, detail))
        else:
            self.report(detail)

    def _put(self, payload: str | None) -> None:
        if payload is not None:
            self.outbox.put(payload)

    # ---- what waits its turn ----------------------------------------------------------------------------------

    def _defer(self, chars: int, command: Callable[[], None]) -> None:
        self._later_chars += chars + MESSAGE_COST_CHARS
        if self._later_chars > self.service.config.live_max_chars:
            message = "More text waits for its turn than this server takes"
            self.close(Closing(Code.POLICY, fault(message, "too_much_waiting")))
            return
        self._later.append(command)

    def _resume(self) -> None:
        """Takes up what arrived meanwhile, until an utterance is ending again."""
        if self._resuming:  # called by what is being taken up
            return
        self._resuming = True
        try:
            while self._later and self.state is not State.ENDING:
                self._later.popleft()()
        finally:
            self._resuming = False
        if not self._later:
            self._later_chars = 0


BUG = Closing(
    Code.FAILURE,
    ErrorDetail(message="The server has a fault; see its log", type="server_error", param=None, code="bug"),
)
