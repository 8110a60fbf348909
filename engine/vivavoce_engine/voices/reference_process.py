"""The process of reference_reader.py: `python -m vivavoce_engine.voices.reference_process SOCKET`."""

import faulthandler
import signal
import socket
import sys
from contextlib import suppress

from vivavoce_engine.errors import Rejected
from vivavoce_engine.ipc.pipe import Pipe
from vivavoce_engine.voices.reference_audio import Samples, read_reference, refusal


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
