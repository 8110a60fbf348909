"""Reads reference audio in a process of its own (reference_process.py is inside it).

FFmpeg is given bytes of strangers. A file that makes it crash or hang (fuzzing found one) costs this process and the
request that brought it, not the server.
"""

import subprocess
import weakref
from collections.abc import Callable

import numpy as np

from vivavoce_engine.errors import Rejected
from vivavoce_engine.ipc.pipe import Pipe
from vivavoce_engine.ipc.spawn import spawn
from vivavoce_engine.voices.reference_audio import Samples, refusal

READ_S = 30.0
"""Longest time for a file, of which at most half a minute is decoded; the process' start is in it."""


class ReferenceReader:
    """The process, started when it is first needed and again after a file that broke it. For one thread."""

    def __init__(self, read_s: float = READ_S) -> None:
        self._read_s = read_s
        self._pipe: Pipe | None = None
        self._end: Callable[[], object] = lambda: None
        self.pid: int | None = None
        """Of the process, while there is one."""

    def read(self, data: bytes) -> Samples:
        """As `read_reference`.

        Raises:
            Rejected: as read_reference does; also if the file breaks the process, or takes too long.
        """
        pipe = self._pipe or self._start()
        try:
            pipe.send(data)
            if not pipe.has_message(self._read_s):
                raise TimeoutError
            answer = pipe.receive()
        except (EOFError, OSError) as error:
            self.close()
            what = "takes too long to read" if isinstance(error, TimeoutError) else "is no audio file that can be read"
            raise refusal(what) from error
        if isinstance(answer, Rejected):
            raise answer
        assert isinstance(answer, np.ndarray)
        return answer

    def _start(self) -> Pipe:
        process, end = spawn("vivavoce_engine.voices.reference_process")
        self._pipe, self.pid = Pipe(end), process.pid
        self._end = weakref.finalize(self, end_process, process, self._pipe)  # with its reader, or with the program
        return self._pipe

    def close(self) -> None:
        """Ends the process, if there is one."""
        self._end()
        self._pipe = self.pid = None


def end_process(process: "subprocess.Popen[bytes]", pipe: Pipe) -> None:
    pipe.close()
    process.kill()
    process.wait()
