"""Decodes reference audio in a separate process, which runs reference_process.py.

Reference audio is untrusted, and FFmpeg decodes it. A file that makes FFmpeg crash or hang (fuzzing found one) ends
that process and fails its own request, and the server goes on.
"""

import subprocess
import weakref
from collections.abc import Callable

import numpy as np

from vivavoce_engine.errors import Rejected
from vivavoce_engine.ipc.pipe import Pipe
from vivavoce_engine.ipc.spawn import spawn_module
from vivavoce_engine.voices.reference_audio import Samples, rejected_audio

READ_TIMEOUT_S = 30.0
"""Time limit for one file, of which at most half a minute is decoded. Includes the start of the process."""


class ReferenceReader:
    """Runs the decoder process: starts it at the first file, and again after a file that broke it. For one thread."""

    def __init__(self, timeout_s: float = READ_TIMEOUT_S) -> None:
        self.timeout_s = timeout_s
        self._pipe: Pipe | None = None
        self._end: Callable[[], object] = lambda: None
        self.pid: int | None = None
        """Process id, None while there is no process."""

    def read(self, data: bytes) -> Samples:
        """Decodes a file into mono samples [n] float32 at 24 kHz, as `read_reference`.

        Raises:
            Rejected: as by `read_reference`, or the file broke the process or took too long.
        """
        pipe = self._pipe or self._start()
        try:
            pipe.send(data)
            if not pipe.has_message(self.timeout_s):
                raise TimeoutError
            answer = pipe.receive()
        except (EOFError, OSError) as error:
            self.close()
            what = "takes too long to read" if isinstance(error, TimeoutError) else "is no audio file that can be read"
            raise rejected_audio(what) from error
        if isinstance(answer, Rejected):
            raise answer
        assert isinstance(answer, np.ndarray)
        return answer

    def _start(self) -> Pipe:
        process, end = spawn_module("vivavoce_engine.voices.reference_process")
        self._pipe, self.pid = Pipe(end), process.pid
        self._end = weakref.finalize(self, close_and_kill, process, self._pipe)  # at the reader's end or the program's
        return self._pipe

    def close(self) -> None:
        """Ends the process, if one runs."""
        self._end()
        self._pipe = self.pid = None


def close_and_kill(process: "subprocess.Popen[bytes]", pipe: Pipe) -> None:
    pipe.close()
    process.kill()
    process.wait()
