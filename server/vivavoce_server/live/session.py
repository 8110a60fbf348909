"""A live session of one listener: text goes in while speech comes out, one utterance after the other.

It is independent of protocols. A protocol's module (websocket.py, elevenlabs.py) reads messages and calls `configure`,
`append`, `end`, `cancel` and `finish`. These neither wait nor raise; errors are sent. A `MessageWriter` writes the
messages.

                 configure               append               end
    UNCONFIGURED ─────────► READY ─────────────────► OPEN ──────────► ENDING ──► READY   (everything has been sent)
                              ▲    refused or broken off  │
                              │ end                       ▼
                              └──────────────────────── REFUSED   (the rest of its text is ignored)

`cancel` leads from every state but UNCONFIGURED to READY. Commands that arrive in ENDING wait for the next state.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import partial
from typing import Any

from vivavoce_engine import EndlessSpeech, EngineError, LiveUtterance, NotServing, draw_seed

from vivavoce_server.access import Caller
from vivavoce_server.audio import SpeechEncoder
from vivavoce_server.errors import ApiError, ErrorDetail, error_detail
from vivavoce_server.leading_silence import LeadingSilence
from vivavoce_server.live.closing import BUG, Closing, Code, fault
from vivavoce_server.live.deferred import DeferredCommands
from vivavoce_server.live.messages import EmptyMessages
from vivavoce_server.live.outbox import Lane, SlowReader
from vivavoce_server.live.plan import LivePlan
from vivavoce_server.live.text import LiveText
from vivavoce_server.live.utterance import MessageWriter, Utterance
from vivavoce_server.metrics import RequestOutcome, SpeechMeter, outcome_of
from vivavoce_server.request_lines import RequestLine, current_line
from vivavoce_server.said import PartTimes
from vivavoce_server.service import Service

log = logging.getLogger(__name__)


class State(Enum):
    UNCONFIGURED = auto()
    READY = auto()
    OPEN = auto()
    ENDING = auto()
    REFUSED = auto()


class OpenUtterances:
    """Counts the open utterances of a connection. `none` is set while there are none."""

    def __init__(self) -> None:
        self._number = 0
        self.none = asyncio.Event()
        self.none.set()

    @contextmanager
    def count(self) -> Iterator[None]:
        self._number += 1
        self.none.clear()
        try:
            yield
        finally:
            self._number -= 1
            if not self._number:
                self.none.set()


@dataclass
class LiveSession:
    """The state machine of this module. `close` closes the connection for a given reason."""

    service: Service
    caller: Caller
    writer: MessageWriter
    outbox: Lane
    close: Callable[[Closing], None]
    max_wait_s: float
    """Seconds that an utterance may wait for its turn."""
    open_utterances: OpenUtterances = field(default_factory=OpenUtterances)
    empty_messages: EmptyMessages = field(default_factory=EmptyMessages)

    def __post_init__(self) -> None:
        self.state = State.UNCONFIGURED
        self._plan: LivePlan | None = None
        self._utterance: Utterance | None = None
        self._next_index = 0
        self._deferred = DeferredCommands(self.service.config.live_max_chars)
        self.on_abandon: Callable[[], None] | None = None
        """Called when the listener is gone. It abandons the siblings."""

    def open_sibling(self, writer: MessageWriter, close: Callable[[Closing], None]) -> "LiveSession":
        """A session of the same listener on the same connection, whose utterances are spoken beside this one's."""
        return replace(self, writer=writer, outbox=self.outbox.beside(), close=close)

    # ---- what a client asks for -------------------------------------------------------------------------------

    def configure(self, plan: LivePlan) -> None:
        """Sets the plan of later utterances."""
        match self.state:
            case State.UNCONFIGURED | State.READY | State.REFUSED:
                self._plan, self.state = plan, State.READY
            case State.OPEN:
                self.report(fault("An utterance is open: end or cancel it first", "invalid_state"))
            case State.ENDING:
                self._defer(partial(self.configure, plan))

    def append(self, text: str) -> None:
        """Adds text. The first text opens an utterance."""
        if not text:
            self.count_empty()
        match self.state:
            case State.UNCONFIGURED:
                self.report(fault("The session has not been configured", "invalid_state"))
            case State.READY:
                self._open()
                self._feed(text)
            case State.OPEN:
                self._feed(text)
            case State.ENDING:
                self._defer(partial(self.append, text), len(text))
            case State.REFUSED:
                pass

    def count_empty(self) -> None:
        """Counts a message without text. Too many close the connection."""
        if (closing := self.empty_messages.add()) is not None:
            self.close(closing)

    def end(self) -> None:
        """Ends the text of the open utterance."""
        match self.state:
            case State.UNCONFIGURED | State.READY:
                self.report(fault("There is no utterance to end", "invalid_state"))
            case State.OPEN:
                self.state = State.ENDING
                self._current().text.end()
            case State.ENDING:
                self._defer(self.end)
            case State.REFUSED:
                self.state = State.READY

    def cancel(self) -> None:
        """Stops at once. The row is free before the next frame, and no more audio is sent."""
        self._deferred.clear()
        if self._utterance is not None:
            self._leave(self._utterance, "cancelled", State.READY)
        elif self.state is State.REFUSED:
            self.state = State.READY

    def finish(self) -> None:
        """Ends the session. The connection is closed once everything has been spoken."""
        if self.state is State.OPEN:
            self.end()
        if self.state is State.ENDING:
            self._defer(self.finish)
        else:
            self.close(Closing(Code.NORMAL))

    # ---- what a connection asks for ---------------------------------------------------------------------------

    def report(self, detail: ErrorDetail) -> None:
        current_line().tell_error(detail.code, detail.param)
        self._put(self.writer.error(detail))

    @property
    def progress(self) -> int | None:
        """A number that changes while an open utterance speaks. None if no utterance waits for text."""
        return self._utterance.audio_bytes if self._utterance is not None and self.state is State.OPEN else None

    def time_out(self) -> None:
        """Frees the row of an open utterance that has spoken all its text and waited too long for more."""
        utterance = self._current()
        detail = fault("The utterance waited too long for text", "idle_timeout")
        utterance.line.note_error(detail.code, None)
        self._put(self.writer.error(detail))
        self._leave(utterance, "cut_off", State.REFUSED)

    def abandon(self) -> None:
        """Ends everything because the listener is gone."""
        if self.on_abandon is not None:
            self.on_abandon()
        self._deferred.clear()
        if self._utterance is not None:
            self._leave(self._utterance, "disconnected", State.READY)

    # ---- an utterance -----------------------------------------------------------------------------------------

    def _current(self) -> Utterance:
        assert self._utterance is not None, "OPEN and ENDING have an utterance"
        return self._utterance

    def _open(self) -> None:
        assert self._plan is not None, "READY has a plan"
        with current_line().begin("utterance").current() as line:
            self._begin(self._plan, line)

    def _begin(self, plan: LivePlan, line: RequestLine) -> None:
        """Opens an utterance, whose tasks have its line as the current one."""
        held = ExitStack()
        line.note(model=plan.model, voice=plan.voice, format=plan.audio.format)
        try:
            with self.service.metrics.admission(plan.model):
                held.enter_context(self.caller.speaking())
                held.enter_context(self.service.count_speech())
                # All parts of the utterance share one seed, so that they sound like one recording.
                seed = draw_seed() if plan.options.seed is None else plan.options.seed
                options = replace(
                    plan.options,
                    client=self.caller.client,
                    max_wait_s=self.max_wait_s,
                    seed=seed,
                    # An interruption tells what was said up to a word, whether or not the client asks for words.
                    word_times=plan.engine.info.word_times,
                )
                live = plan.engine.open(options)
        except (ApiError, EngineError) as error:
            held.close()
            self.state = State.REFUSED
            self._report_error(error, line)
            line.end()
            return
        held.enter_context(self.open_utterances.count())
        held.callback(live.stream.cancel)

        def follow() -> LiveUtterance:
            next_part = plan.engine.open(replace(options, max_wait_s=None, follows=True))
            held.callback(next_part.stream.cancel)
            return next_part

        info = plan.engine.info
        model_rate = info.sample_rate
        text = LiveText(plan, live, follow, self.report)
        utterance = Utterance(
            index=self._next_index,
            text=text,
            beginning=LeadingSilence(model_rate, plan.leading_silence),
            encoder=SpeechEncoder(plan.audio, model_rate, plan.file),
            meter=SpeechMeter(self.service.metrics, plan.model, paced_by_text=True),
            line=line,
            held=held,
            times=PartTimes(plan.audio.speed, info.frame_s, text.places if info.word_times else None),
            sample_rate=model_rate,
            held_s=plan.audio.held_s(model_rate),
            gap_s=0.0 if plan.file is None else plan.file.held_samples / plan.audio.rate_for(model_rate),
            has_words=info.word_times,
            words_are_asked_for=plan.words,
            max_frames=plan.options.max_frames,
        )
        self._next_index += 1
        self._utterance, self.state = utterance, State.OPEN
        self._put(self.writer.started(utterance.index, plan.audio, plan.audio.rate_for(model_rate)))
        steps = (utterance.text.feed, partial(self._speak, utterance))
        utterance.tasks = [asyncio.create_task(self._guarded(utterance, step)) for step in steps]

    def _feed(self, text: str) -> None:
        if self.state is not State.OPEN:  # it was refused
            return
        utterance = self._current()
        most = self.service.config.live_max_chars
        if utterance.text.chars + len(text) > most:
            message = f"An utterance has at most {most} characters; this text is passed over"
            self.report(fault(message, "string_above_max_length", "text"))
            utterance.text.passed_over = True
            return
        utterance.text.append(text)

    async def _speak(self, utterance: Utterance) -> None:
        await utterance.send(self.writer, self.outbox)
        self._leave(utterance, "completed", State.READY)

    async def _guarded(self, utterance: Utterance, step: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Runs a task of an utterance, while the connection continues to read. An error ends the utterance."""
        try:
            await step()
        except (ApiError, EngineError) as error:
            self._break_off(utterance, error)
        except SlowReader as error:
            self.close(Closing(Code.POLICY, fault(f"The client reads too slowly: {error}", "slow_reader")))
        except Exception:
            log.exception("a bug")
            self.close(BUG)

    def _break_off(self, utterance: Utterance, error: ApiError | EngineError) -> None:
        """Ends an utterance that cannot be spoken to its end. The rest of its text is ignored if it is still open."""
        if utterance is not self._utterance:
            return
        self._report_error(error, utterance.line)
        if isinstance(error, EndlessSpeech):
            utterance.meter.count_endless()
        outcome = "cut_off" if utterance.meter.heard else outcome_of(error, admitted=True)
        self._leave(utterance, outcome, State.REFUSED if self.state is State.OPEN else State.READY)

    def _leave(self, utterance: Utterance, outcome: RequestOutcome, next_state: State) -> None:
        """Closes the utterance, for any reason, and runs the commands that waited for its end."""
        if utterance is not self._utterance:
            return
        self._utterance = None
        self._put(self.writer.ended(utterance.close(outcome, self.outbox)))
        self.state = next_state
        self._deferred.run_while(lambda: self.state is not State.ENDING)

    def _report_error(self, error: ApiError | EngineError, line: RequestLine) -> None:
        detail = error_detail(error)[1]
        line.note_error(detail.code, detail.param)
        if isinstance(error, NotServing):
            self.close(Closing(Code.TRY_AGAIN_LATER, detail))
        else:
            self._put(self.writer.error(detail))

    def _put(self, payload: str | None) -> None:
        if payload is not None:
            self.outbox.put(payload)

    def _defer(self, command: Callable[[], None], chars: int = 0) -> None:
        """Keeps a command, with its text, until the ending utterance is over."""
        if not self._deferred.add(command, chars):
            message = "More text waits for its turn than this server takes"
            self.close(Closing(Code.POLICY, fault(message, "too_much_waiting")))
