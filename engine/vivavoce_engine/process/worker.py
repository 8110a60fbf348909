"""An engine process: `python -m vivavoce_engine.process.worker FD`, started by child.py.

The main thread runs the engine's loop, which reads the pipe between two steps. A second thread answers questions, such
as recordings to encode. The process ends when it is told to, when the server has ended, or at an error that concerns
more than one utterance, after which only a new process is safe.
"""

import logging
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

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
from vivavoce_engine.errors import EngineError, Rejected
from vivavoce_engine.ipc.pipe import Pipe
from vivavoce_engine.ipc.spawn import pipe_to_parent
from vivavoce_engine.model import Parts
from vivavoce_engine.process.serving import serve
from vivavoce_engine.process.wire import (
    Answer,
    Ask,
    Encode,
    FitTranscript,
    LoadCommand,
    Loaded,
    Ping,
    ReadProgress,
    RemoteSubmit,
    Report,
    ToWorker,
)
from vivavoce_engine.request import ModelInfo, SynthesisRequest, VoiceReference
from vivavoce_engine.runtime import freeze_gc, lower_thread_priority, use_expandable_segments
from vivavoce_engine.text.answer import AnswerFrontend

log = logging.getLogger("vivavoce_engine.process.worker")  # __name__ is "__main__" here

WARM_UP_TEXT = "This warms the engine up."
WARM_UP_FRAMES = 24


class RemoteListener:
    """Counts, for the loop, the frames sent to a stream in the server and the frames its reader has taken."""

    def __init__(self, utterance_id: int) -> None:
        self.utterance_id = utterance_id
        self.frames_read = 0
        self._frames_sent = 0

    @property
    def unread_frames(self) -> int:
        return self._frames_sent - self.frames_read

    def count_sent(self, frames: int) -> None:
        self._frames_sent += frames

    def read_to(self, frames: int) -> None:
        """Notes that the reader has taken this many frames since the beginning."""
        assert self.frames_read <= frames <= self._frames_sent
        self.frames_read = frames


class Worker:
    """Runs a loop whose commands come from a pipe, and sends its reports back. It is the loop's Inbox."""

    def __init__(self, pipe: Pipe, parts: Parts, config: EngineConfig, admission: Admission) -> None:
        self._pipe = pipe
        self._parts = parts
        self._loop = EngineLoop(parts.runner, config, admission, self._deliver)
        self._listeners: dict[int, RemoteListener] = {}
        self._report_due = False
        """True if a message has arrived since the last report."""
        self._reported_left_queue = 0
        """`left_queue` in the last report."""
        self._answer_thread = ThreadPoolExecutor(1, "vivavoce-encoder", initializer=lower_thread_priority)

    def run(self) -> None:
        self._loop.run(self)

    def take(self) -> Iterator[Command]:
        """Yields the loop's commands that have arrived, and handles all other messages."""
        while self._pipe.has_message(0):
            message = self._pipe.receive()
            assert isinstance(message, ToWorker), f"no message to a worker: {type(message).__name__}"
            self._report_due = True
            match message:
                case ReadProgress(utterance_id=utterance_id, frames=frames):
                    if utterance_id in self._listeners:  # its utterance may have ended
                        self._listeners[utterance_id].read_to(frames)
                case Ask():
                    self._answer_thread.submit(self._answer, message)
                case Ping():
                    pass
                case RemoteSubmit(utterance_id=utterance_id):
                    assert utterance_id not in self._listeners
                    listener = self._listeners[utterance_id] = RemoteListener(utterance_id)
                    yield Submit(message.pending(listener))
                case Cancel(utterance_id=utterance_id):
                    self._listeners.pop(utterance_id, None)
                    yield message
                case AppendText() | Shutdown():
                    yield message

    def wait(self, timeout_s: float | None) -> None:
        """Reports if a report is due, then waits for the next message."""
        if self._report_due:
            self._report(())
        self._pipe.has_message(timeout_s)

    def _deliver(self, deliveries: list[Delivery]) -> None:
        for listener, event in deliveries:
            if isinstance(event, AudioChunk):
                listener.count_sent(event.frames)
            else:
                self._listeners.pop(listener.utterance_id, None)
        # Most steps give no listener a piece. A report that changes nothing would wake the server for nothing.
        if deliveries or self._report_due or self._loop.state().left_queue != self._reported_left_queue:
            self._report(tuple((listener.utterance_id, event) for listener, event in deliveries))

    def _report(self, events: tuple[tuple[int, StreamEvent], ...]) -> None:
        state = self._loop.state()
        self._report_due, self._reported_left_queue = False, state.left_queue
        self._pipe.send(Report(state, events))

    def _answer(self, ask: Ask) -> None:
        try:
            match ask.question:
                case Encode(audio=audio):
                    assert self._parts.encoder is not None
                    self._pipe.send(Answer(ask.number, self._parts.encoder.encode(audio)))
                case FitTranscript(reference=reference):
                    assert self._parts.encoder is not None
                    self._pipe.send(Answer(ask.number, self._parts.encoder.fit(reference)))
                case _:
                    self._pipe.send(Answer(ask.number, self._parts.presets))
        except Rejected as error:
            self._pipe.send(Answer(ask.number, error))
        except Exception as error:
            log.exception("a question could not be answered")
            self._pipe.send(Answer(ask.number, as_engine_error(error)))


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
    pipe.send(Loaded(config, parts.identity))
    return Worker(pipe, parts, config, admission).run


def main() -> int:
    """Entry point of the process."""
    pipe = pipe_to_parent()
    use_expandable_segments()
    return serve(pipe, start, "engine")


if __name__ == "__main__":
    sys.exit(main())
