"""The frame of a worker process: its log records and its faults go to the server through the pipe. Torch-free."""

import logging
import logging.handlers
from collections.abc import Callable
from contextlib import suppress
from copy import copy

from vivavoce_engine.batching.faults import as_engine_error, reason_of
from vivavoce_engine.errors import EngineError
from vivavoce_engine.ipc.pipe import Pipe
from vivavoce_engine.process.wire import Broken, Logged
from vivavoce_engine.traces import format_trace

log = logging.getLogger(__name__)


class _PipeHandler(logging.handlers.QueueHandler):
    """Sends log records to the server, which formats and writes them."""

    def __init__(self, pipe: Pipe) -> None:
        super().__init__(None)  # type: ignore[arg-type]
        self.setFormatter(logging.Formatter())  # only the message
        self._pipe = pipe

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        # The traceback stays apart from the message, which the server writes as one line.
        error = record.exc_info[1] if record.exc_info else None
        trace = record.exc_text or (format_trace(error) if error is not None else None)
        bare = copy(record)
        bare.exc_info = bare.exc_text = None
        prepared: logging.LogRecord = super().prepare(bare)
        prepared.exc_text = trace
        return prepared

    def enqueue(self, record: logging.LogRecord) -> None:
        with suppress(OSError):
            self._pipe.send(Logged(record))


def serve(pipe: Pipe, start: Callable[[Pipe], Callable[[], None]], what: str) -> int:
    """Starts a worker and runs its loop until it ends. Returns the exit status of the process.

    `start` receives the first message, loads what it names, sends Ready, and returns the loop. Messages call
    the process `what`.
    """
    logging.basicConfig(handlers=[_PipeHandler(pipe)], force=True)
    logging.captureWarnings(True)
    loaded = False
    try:
        run = start(pipe)
        loaded = True
        run()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return 1  # the server has ended
    except Exception as error:
        # The server tells a refusal to load in a sentence, for which a traceback has nothing to add.
        refused = not loaded and isinstance(error, EngineError)
        log.log(logging.DEBUG if refused else logging.ERROR, f"the {what} broke down", exc_info=True)
        pipe.send(Broken(reason_of(error) if loaded else "load", as_engine_error(error)))
        return 1
    return 0
