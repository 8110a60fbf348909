"""Decodes reference audio in a separate process, which runs reference_process.py.

Reference audio is untrusted, and FFmpeg decodes it. A file that makes FFmpeg crash or hang (fuzzing found one) ends
that process and fails its own request, and the server goes on.
"""

import subprocess
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vivavoce_engine.errors import Rejected
from vivavoce_engine.ipc.pipe import Pipe
from vivavoce_engine.ipc.spawn import spawn_module
from vivavoce_engine.voices.reference_audio import Samples, rejected_audio

READ_TIMEOUT_S = 30.0
"""Time limit for one file, of which at most half a minute is decoded. Includes the start of the process."""
EXIT_S = 0.2
"""Time that a process has to exit by itself once its pipe is closed."""
TOO_LONG = "takes too long to read"
NO_MEMORY_STATUS = 3
"""Exit status of the process after an allocation that has failed. It may hold memory that FFmpeg has not given back."""
NO_TIME_STATUS = -24
"""SIGXCPU, which ends a process that has used up its time."""
REASONS: dict[int | None, str] = {
    NO_MEMORY_STATUS: "takes more memory than a recording needs",
    NO_TIME_STATUS: TOO_LONG,
}


@dataclass(frozen=True, slots=True)
class ReadSound:
    """A sound of a conversation to decode."""

    data: bytes


@dataclass(frozen=True, slots=True)
class ReadPicture:
    """A picture of a conversation to decode."""

    data: bytes


class ReferenceReader:
    """Runs the decoder process: starts it at the first file, and again after a file that broke it. For one thread."""

    def __init__(self, timeout_s: float = READ_TIMEOUT_S) -> None:
        self.timeout_s = timeout_s
        self._pipe: Pipe | None = None
        self._end: Callable[[], int | None] = lambda: None
        self.pid: int | None = None
        """Process id, None while there is no process."""

    def read(self, data: bytes) -> Samples:
        """Decodes a file into mono samples [n] float32 at 24 kHz, as `read_reference`. Raises as `decode`."""
        return self.decode(data)

    def decode(self, question: bytes | ReadSound | ReadPicture) -> NDArray[Any]:
        """Decodes a recording of a voice, a sound or a picture, by the function that its kind is read by.

        A process that breaks is not the file's fault if it has read other files before. A new one then tries again.

        Raises:
            Rejected: as by that function, or the file broke a new process or took too long.
        """
        is_new = self._pipe is None
        try:
            answer = self._ask(question)
        except TimeoutError as error:
            self.close()
            raise rejected_audio(TOO_LONG) from error
        except (EOFError, OSError) as error:
            status = self.close()
            if not is_new and status != NO_TIME_STATUS:  # each file has its own time
                return self.decode(question)
            raise rejected_audio(REASONS.get(status, "is no audio file that can be read")) from error
        if isinstance(answer, Rejected):
            raise answer
        assert isinstance(answer, np.ndarray)
        return answer

    def _ask(self, question: object) -> object:
        pipe = self._pipe or self._start()
        pipe.send(question)
        if not pipe.has_message(self.timeout_s):
            raise TimeoutError
        return pipe.receive()

    def _start(self) -> Pipe:
        process, end = spawn_module("vivavoce_engine.voices.reference_process")
        self._pipe, self.pid = Pipe(end), process.pid
        self._end = weakref.finalize(self, close_and_end, process, self._pipe)  # at the reader's end or the program's
        return self._pipe

    def close(self) -> int | None:
        """Ends the process. Returns its exit status, negative for a signal; None if none runs."""
        status = self._end()
        self._pipe = self.pid = None
        return status


def close_and_end(process: "subprocess.Popen[bytes]", pipe: Pipe) -> int:
    """Ends a process and returns its exit status. One that has closed its end of the pipe is about to exit."""
    pipe.close()
    try:
        return process.wait(EXIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
