"""An engine process: `python -m vivavoce_engine.process.worker FD`, started by child.py.

The main thread runs the engine's loop, which looks for messages between two steps: those of the server that started it,
and of fronts, if it was given an address for them (fronts.py). A front that ends loses its own utterances alone. A
second thread answers questions, such as recordings to encode. The process ends when it is told to, when the server has
ended, or at an error that concerns more than one utterance, after which only a new process is safe.
"""

import itertools
import logging
import math
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np

from vivavoce_engine.batching.admission import Admission
from vivavoce_engine.batching.faults import as_engine_error
from vivavoce_engine.batching.loop import EngineLoop
from vivavoce_engine.batching.messages import (
    AppendText,
    AudioChunk,
    Cancel,
    Command,
    Delivery,
    Failed,
    Shutdown,
    StreamEvent,
    Submit,
)
from vivavoce_engine.batching.pending import Pending, TrailingText
from vivavoce_engine.batching.runner import Runner
from vivavoce_engine.config import EngineConfig
from vivavoce_engine.errors import EngineError, Overloaded
from vivavoce_engine.ipc.pipe import Pipe
from vivavoce_engine.ipc.spawn import pipe_to_parent
from vivavoce_engine.ipc.unix_socket import listen
from vivavoce_engine.model import Parts
from vivavoce_engine.process.fronts import Front, FrontListener, Fronts, RemoteListener
from vivavoce_engine.process.serving import serve
from vivavoce_engine.process.wire import (
    Answer,
    Ask,
    Encode,
    LoadCommand,
    Loaded,
    ReadProgress,
    RemoteSubmit,
    ToWorker,
)
from vivavoce_engine.request import ModelInfo, SynthesisRequest, VoiceReference
from vivavoce_engine.runtime import freeze_gc, lower_thread_priority, use_expandable_segments
from vivavoce_engine.text.answer import AnswerFrontend

log = logging.getLogger("vivavoce_engine.process.worker")  # __name__ is "__main__" here

WARM_UP_TEXT = "This warms the engine up."
WARM_UP_FRAMES = 24


class Worker:
    """Runs a loop whose commands come from the fronts, and sends its reports back. It is the loop's Inbox."""

    def __init__(self, fronts: Fronts, parts: Parts, config: EngineConfig, admission: Admission) -> None:
        self._fronts = fronts
        self._parts = parts
        self._frame_s = parts.runner.info.frame_s
        self._loop = EngineLoop(parts.runner, config, admission, self._deliver)
        self._ids = itertools.count(1)
        self._listeners: dict[int, FrontListener] = {}
        self._answer_thread = ThreadPoolExecutor(1, "vivavoce-encoder", initializer=lower_thread_priority)

    def run(self) -> None:
        """Runs the loop to its end, of which fronts hear at once, however long the process still takes to end."""
        try:
            self._loop.run(self)
        finally:
            self._fronts.close()

    def take(self) -> Iterator[Command]:
        """Yields the loop's commands that have arrived, and handles all other messages."""
        for front, message in self._fronts.messages():
            if message is None:  # the front has gone, and its listeners with it
                for listener in list(front.listeners.values()):
                    self._forget(listener)
                    yield Cancel(listener.utterance_id)
                continue
            assert isinstance(message, ToWorker), f"no message to a worker: {type(message).__name__}"
            front.report_due = True
            if (command := self._command(front, message)) is not None:
                yield command

    def _command(self, front: Front, message: ToWorker) -> Command | None:
        """The loop's command of a message, None if it has none. One for an utterance that has ended is dropped."""
        match message:
            case RemoteSubmit():
                return self._submit(front, message)
            case Shutdown():
                return message
            case Ask():
                self._answer_thread.submit(self._answer, front, message)
            case ReadProgress(utterance_id=number, frames=frames) if number in front.listeners:
                front.listeners[number].read_to(frames)
            case AppendText(utterance_id=number) if number in front.listeners:
                return replace(message, utterance_id=front.listeners[number].utterance_id)
            case Cancel(utterance_id=number) if number in front.listeners:
                listener = front.listeners[number]
                self._forget(listener)
                return Cancel(listener.utterance_id)
        return None

    def _submit(self, front: Front, message: RemoteSubmit) -> Submit | None:
        """The command that queues an utterance, None if the queue refuses it."""
        number = message.utterance_id
        assert number not in front.listeners
        front.submitted += 1
        utterance_id = next(self._ids)
        listener = FrontListener(utterance_id, front, number)
        pending = message.pending(listener)
        listener.waiting = pending.waiting(self._frame_s)
        try:
            self._loop.check(pending)
        except Overloaded as refusal:
            front.report(self._loop.state(), self._listeners, ((number, Failed(refusal)),))
            return None
        self._listeners[utterance_id] = front.listeners[number] = listener
        return Submit(pending)

    def _forget(self, listener: FrontListener) -> None:
        del self._listeners[listener.utterance_id]
        del listener.front.listeners[listener.number]

    def wait(self, timeout_s: float | None) -> None:
        """Sends the reports that are due, then waits for the next message."""
        self._report({}, math.inf)
        self._fronts.wait(timeout_s)

    def _deliver(self, deliveries: list[Delivery]) -> None:
        events: defaultdict[Front, list[tuple[int, StreamEvent]]] = defaultdict(list)
        for listener, event in deliveries:
            assert isinstance(listener, FrontListener)
            if isinstance(event, AudioChunk):
                listener.count_sent(event.frames)
            else:
                self._forget(listener)
            events[listener.front].append((listener.number, event))
        self._report(events, time.monotonic())

    def _report(self, events: Mapping[Front, list[tuple[int, StreamEvent]]], now_s: float) -> None:
        # Most steps give no listener a piece. A report that changes nothing would wake a front for nothing.
        state = self._loop.state()
        for front in self._fronts:
            if front in events or front.is_due(state, self._listeners, now_s):
                front.report(state, self._listeners, tuple(events.get(front, ())))

    def _answer(self, front: Front, ask: Ask) -> None:
        try:
            match ask.question:
                case Encode(audio=audio):
                    assert self._parts.encoder is not None
                    front.send(Answer(ask.number, self._parts.encoder.encode(audio)))
                case _:
                    front.send(Answer(ask.number, self._parts.presets))
        except Exception as error:
            log.exception("a question could not be answered")
            front.send(Answer(ask.number, as_engine_error(error)))


def warm_up(runner: Runner, config: EngineConfig, admission: Admission) -> None:
    """Speaks one short utterance, so that work which happens only once is done before the first listener waits.

    Raises:
        EngineError: the utterance failed.
    """
    heard: list[Delivery] = []
    loop = EngineLoop(runner, config, admission, heard.extend)
    request = warm_up_request(runner.info)
    if isinstance(runner.text, AnswerFrontend):
        prompt = runner.text.prompt(request, runner.text.shortest())
        ids = (*prompt.trailing_ids, runner.text.end_of_text_id)
    else:
        prompt = runner.text.prompt(request)
        ids = prompt.trailing_ids
    trailing = TrailingText(ids, complete=True, text_tokens=prompt.text_tokens)
    room = config.max_context - prompt.prefill_tokens
    if room < 1:
        raise EngineError(f"with max_context {config.max_context} there is no room for any speech")
    frames = min(WARM_UP_FRAMES, room)
    loop.apply([Submit(Pending(0, request, prompt, 0, frames, RemoteListener(0), trailing))])
    while loop.step():
        pass
    for _, event in heard:
        if isinstance(event, Failed):
            raise event.error


def warm_up_request(info: ModelInfo) -> SynthesisRequest:
    """A short request that every model of this kind can speak."""
    # A model without preset speakers clones, and any embedding is a voice to it.
    clones = not info.speakers and info.embedding_size > 0
    return SynthesisRequest(
        WARM_UP_TEXT,
        speaker=info.speakers[0] if info.speakers else "",
        reference=VoiceReference(np.zeros(info.embedding_size, np.float32)) if clones else None,
        instructions="A calm voice." if info.task == "voice_design" else "",
    )


def start(pipe: Pipe) -> Callable[[], None]:
    """Loads the model that the first message names, and warms it up. Returns the loop, which ends with the process."""
    command = pipe.receive()
    assert isinstance(command, LoadCommand)
    logging.getLogger("vivavoce_engine").setLevel(command.log_level)
    parts = command.load()
    config = parts.config or command.config
    admission = Admission(config, parts.runner.info.frame_s)
    warm_up(parts.runner, config, admission)
    freeze_gc()
    listener = None if command.address is None else listen(command.address)
    loaded = Loaded(config, parts.identity)
    pipe.send(loaded)
    return Worker(Fronts(pipe, listener, loaded), parts, config, admission).run


def main() -> int:
    """Entry point of the process."""
    pipe = pipe_to_parent()
    use_expandable_segments()
    return serve(pipe, start, "engine")


if __name__ == "__main__":
    sys.exit(main())
