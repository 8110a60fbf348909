"""Reads reference audio in a process of its own: `python -m vivavoce_engine.reference_reader SOCKET`.

FFmpeg is given bytes of strangers. A file that makes it crash or hang (fuzzing found one) costs this process and the
request that brought it, not the server.
"""

import faulthandler
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Callable
from contextlib import suppress

import numpy as np

from vivavoce_engine.errors import Rejected
from vivavoce_engine.pipe import Pipe
from vivavoce_engine.reference_audio import Samples, read_reference, refusal
from vivavoce_engine.spawn import spawn

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
        process, end = spawn("vivavoce_engine.reference_reader", {})
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


def main() -> int:
    """Entry point of the process; ends when the other end of the socket is closed."""
    faulthandler.enable()
    for signum in (signal.SIGINT, signal.SIGTERM):  # for the server alone, which closes the socket in the end
        signal.signal(signum, signal.SIG_IGN)
    pipe = Pipe(socket.socket(fileno=int(sys.argv[1])))
    with suppress(EOFError, OSError):
        while True:
            data = pipe.receive()
            assert isinstance(data, bytes)
            try:
                answer: Samples | Rejected = read_reference(data)
            except Rejected as error:
                answer = error
            except Exception as error:  # whatever FFmpeg raises that nobody foresaw
                answer = refusal(f"cannot be read: {type(error).__name__}")
            pipe.send(answer)
    return 0


if __name__ == "__main__":
    sys.exit(main())
