"""The process of one engine: `python -m vivavoce_engine.process.worker SOCKET`, started by process.py.

Its main thread is the engine's loop, which reads the pipe between two steps; a second thread answers questions
(recordings to encode). It ends when it is told to, when the server is gone, or when something breaks that is not the
fault of one utterance: then only a fresh process helps.
"""

import faulthandler
import logging
import logging.handlers
import os
import signal
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np

from vivavoce_engine.batching.admission import Admission
from vivavoce_engine.batching.faults import as_engine_error, reason_of
from vivavoce_engine.batching.listener import Listener
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
from vivavoce_engine.errors import EngineError
from vivavoce_engine.ipc.pipe import Pipe
from vivavoce_engine.model import Parts
from vivavoce_engine.process.collector import leave_out_what_stays
from vivavoce_engine.process.wire import (
    Answer,
    Ask,
    Broken,
    Encode,
    Loaded,
    Logged,
    Order,
    Ping,
    Read,
    RemoteListener,
    Report,
)
from vivavoce_engine.request import ModelInfo, SynthesisRequest, VoiceReference
from vivavoce_engine.voices.registry import step_back

log = logging.getLogger("vivavoce_engine.process.worker")  # not __main__, which it is

ALLOCATOR_VARIABLES = {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}
"""The second is the first's old name."""
WARM_UP_TEXT = "This warms the engine up."
WARM_UP_FRAMES = 24


class Worker:
    """A loop whose commands come out of a pipe, and whose reports go into it."""

    def __init__(self, pipe: Pipe, parts: Parts, config: EngineConfig, admission: Admission) -> None:
        self._pipe = pipe
        self._parts = parts
        self._loop = EngineLoop(parts.runner, config, admission, self._deliver)
        self._listeners: dict[int, Listener] = {}
        self._heard = False
        """Whether something has arrived that no report has followed yet."""
        self._told_left_queue = 0
        self._answering = ThreadPoolExecutor(1, "vivavoce-encoder", initializer=step_back)

    def run(self) -> None:
        self._loop.run(self)

    def take(self) -> Iterator[Command]:
        """For the loop: commands, while all else is seen to here."""
        while self._pipe.has_message(0):
            message = self._pipe.receive()
            self._heard = True
            match message:
                case Read(utterance_id=utterance_id, frames=frames):
                    listener = self._listeners.get(utterance_id)
                    if isinstance(listener, RemoteListener):
                        listener.frames_read = frames
                case Ask():
                    self._answering.submit(self._answer, message)
                case Ping():
                    pass
                case Submit(pending=pending):
                    self._listeners[pending.utterance_id] = pending.stream
                    yield message
                case Cancel(utterance_id=utterance_id):
                    self._listeners.pop(utterance_id, None)
                    yield message
                case AppendText() | Shutdown():
                    yield message

    def wait(self, timeout_s: float | None) -> None:
        """For the loop."""
        if self._heard:
            self._report(())
        self._pipe.has_message(timeout_s)

    def _deliver(self, deliveries: list[Delivery]) -> None:
        for listener, event in deliveries:
            if isinstance(event, AudioChunk):
                listener.count_sent(event.frames)
            else:
                self._listeners.pop(listener.utterance_id, None)
        # Most steps give nobody a piece: the server need not wake for those that change nothing it decides by.
        if deliveries or self._heard or self._loop.state().left_queue != self._told_left_queue:
            self._report(tuple((listener.utterance_id, event) for listener, event in deliveries))

    def _report(self, events: tuple[tuple[int, StreamEvent], ...]) -> None:
        state = self._loop.state()
        self._heard, self._told_left_queue = False, state.left_queue
        self._pipe.send(Report(state, events))

    def _answer(self, ask: Ask) -> None:
        try:
            match ask.question:
                case Encode(audio=audio):
                    assert self._parts.encoder is not None
                    self._pipe.send(Answer(ask.number, self._parts.encoder.encode(audio)))
                case _:
                    self._pipe.send(Answer(ask.number, self._parts.presets))
        except Exception as error:
            log.exception("a question could not be answered")
            self._pipe.send(Answer(ask.number, as_engine_error(error)))


def warm_up(runner: Runner, config: EngineConfig, admission: Admission) -> None:
    """Speaks one short utterance, so that the first listener does not pay for what happens only once.

    Raises:
        EngineError: it failed.
    """
    heard: list[Delivery] = []
    loop = EngineLoop(runner, config, admission, heard.extend)
    request = warm_up_request(runner.info)
    prompt = runner.text.prompt(request)
    trailing = TrailingText(prompt.trailing_ids, complete=True, text_tokens=prompt.text_tokens)
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
    """What any model of this kind can say."""
    # A model without speakers of its own clones: any embedding is a voice to it.
    clones = not info.speakers and info.embedding_size > 0
    return SynthesisRequest(
        WARM_UP_TEXT,
        speaker=info.speakers[0] if info.speakers else "",
        reference=VoiceReference(np.zeros(info.embedding_size, np.float32)) if clones else None,
        instructions="A calm voice." if info.task == "voice_design" else "",
    )


class _PipeHandler(logging.handlers.QueueHandler):
    """Sends log records to the server, which knows how they are to look and where they go."""

    def __init__(self, pipe: Pipe) -> None:
        super().__init__(None)  # type: ignore[arg-type]
        self.setFormatter(logging.Formatter())  # the message alone
        self._pipe = pipe

    def enqueue(self, record: logging.LogRecord) -> None:
        with suppress(OSError):
            self._pipe.send(Logged(record))


def serve(pipe: Pipe) -> int:
    """Loads, warms up, and runs to the end. Returns the exit status."""
    logging.basicConfig(handlers=[_PipeHandler(pipe)], force=True)
    loaded = False
    try:
        order = pipe.receive()
        assert isinstance(order, Order)
        logging.getLogger().setLevel(order.log_level)
        parts = order.load()
        admission = Admission(order.config, parts.runner.info.frame_s)
        warm_up(parts.runner, order.config, admission)
        leave_out_what_stays()
        loaded = True
        pipe.send(Loaded())
        Worker(pipe, parts, order.config, admission).run()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return 1  # the server is gone: nobody is left to tell
    except Exception as error:
        log.exception("the engine broke down")
        pipe.send(Broken(reason_of(error) if loaded else "load", as_engine_error(error)))
        return 1
    return 0


def main() -> int:
    """Entry point of the process."""
    faulthandler.enable()
    # Whoever stops a server may signal its whole group; running speech is for the server to finish.
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.SIG_IGN)
    settle_allocator()
    return serve(Pipe(socket.socket(fileno=int(sys.argv[1]))))


def settle_allocator() -> None:
    """Has PyTorch give a GPU's memory back that loading a model left between what stays, unless the user has set its
    allocator up. To be called before torch is imported."""
    if not ALLOCATOR_VARIABLES & os.environ.keys():
        os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"


if __name__ == "__main__":
    sys.exit(main())
