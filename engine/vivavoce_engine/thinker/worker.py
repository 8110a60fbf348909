"""A thinker's process: `python -m vivavoce_engine.thinker.worker FD`, started by process/child.py.

Answers are written side by side: each round reads one conversation that waits, and writes one token of every answer.
"""

import logging
import sys
from collections import deque
from collections.abc import Callable

from vivavoce_engine.batching.faults import as_engine_error
from vivavoce_engine.batching.messages import Shutdown
from vivavoce_engine.errors import EngineError, is_device_lost
from vivavoce_engine.ipc.pipe import Pipe
from vivavoce_engine.ipc.spawn import pipe_to_parent
from vivavoce_engine.process.serving import serve
from vivavoce_engine.process.wire import Ping
from vivavoce_engine.request import ThinkerPrompt
from vivavoce_engine.runtime import freeze_gc, use_expandable_segments
from vivavoce_engine.thinker.interface import ThinkerEnd, ThinkerToken, Thought
from vivavoce_engine.thinker.model import Conversation, ThinkerModel
from vivavoce_engine.thinker.wire import Forget, LoadThinker, Think, ThinkerConfig, ThinkerReady, Thoughts

log = logging.getLogger("vivavoce_engine.thinker.worker")  # __name__ is "__main__" here


class ThinkerLoop:
    """Reads conversations and writes their answers, until the process is told to end."""

    def __init__(self, pipe: Pipe, model: ThinkerModel, config: ThinkerConfig) -> None:
        self._pipe = pipe
        self._model = model
        self._config = config
        self._waiting: deque[Think] = deque()
        self._running: dict[int, Conversation] = {}
        self._parts: list[tuple[int, Thought | EngineError]] = []
        """Parts of this round, which leave at its end."""
        self._report_due = False
        self._ended = False

    def run(self) -> None:
        while not self._ended:
            busy = bool(self._waiting or self._running)
            while not self._ended and self._pipe.has_message(0 if busy or self._report_due else None):
                self._take(self._pipe.receive())
                busy = bool(self._waiting or self._running)
            self._read_next()
            for number in list(self._running):
                self._guarded(number, self._write)
            if self._parts or self._report_due:
                self._pipe.send(Thoughts(tuple(self._parts)))
                self._parts, self._report_due = [], False

    def _take(self, message: object) -> None:
        match message:
            case Think():
                self._waiting.append(message)
            case Forget(number=number):
                self._running.pop(number, None)
                self._waiting = deque(each for each in self._waiting if each.number != number)
            case Ping():
                self._report_due = True
            case Shutdown():
                self._ended = True
            case _:
                raise AssertionError(f"no message to a thinker: {type(message).__name__}")

    def _read_next(self) -> None:
        """Reads the conversation that has waited longest, if there is room for one more answer."""
        if self._waiting and len(self._running) < self._config.conversations:
            think = self._waiting.popleft()
            self._guarded(think.number, lambda number: self._begin(think))

    def _begin(self, think: Think) -> None:
        read = self._model.prompt(think.messages)
        if not read.has_media:  # the talker reads the prompt while the thinker does
            self._pipe.send(Thoughts(((think.number, ThinkerPrompt(tuple(read.ids))),)))
        self._running[think.number], prompt = self._model.begin(read, think.options)
        if read.has_media:
            self._parts.append((think.number, prompt))

    def _write(self, number: int) -> None:
        """Writes the next token of an answer, or its end. The token is read by the model in the next round."""
        conversation = self._running[number]
        if conversation.written is not None:
            self._model.go_on(conversation, conversation.written)
        token = conversation.draw()
        if token == self._model.text.control.im_end:
            self._end(number, ThinkerEnd("stop"))
            return
        self._parts.append((number, ThinkerToken(token)))
        conversation.written = token
        conversation.left -= 1
        if not conversation.left:
            self._end(number, ThinkerEnd("length"))

    def _end(self, number: int, end: ThinkerEnd | EngineError) -> None:
        self._running.pop(number, None)
        self._parts.append((number, end))

    def _guarded(self, number: int, work: Callable[[int], None]) -> None:
        """Works on one answer. A fault ends that answer alone, unless the device is lost."""
        try:
            work(number)
        except Exception as error:
            if is_device_lost(error):
                raise
            if not isinstance(error, EngineError):
                log.exception("an answer failed")
            self._end(number, as_engine_error(error))


def start(pipe: Pipe) -> Callable[[], None]:
    """Loads the thinker that the first message names. Returns the loop, which ends with the process."""
    command = pipe.receive()
    assert isinstance(command, LoadThinker)
    logging.getLogger("vivavoce_engine").setLevel(command.log_level)
    model = ThinkerModel(command.path, command.config)
    freeze_gc()
    pipe.send(ThinkerReady())
    return ThinkerLoop(pipe, model, command.config).run


def main() -> int:
    """Entry point of the process."""
    pipe = pipe_to_parent()
    use_expandable_segments()
    return serve(pipe, start, "thinker")


if __name__ == "__main__":
    sys.exit(main())
