"""Decoder process of reference_reader.py: `python -m vivavoce_engine.voices.reference_process FD`."""

import sys
from contextlib import suppress

from vivavoce_engine.errors import Rejected
from vivavoce_engine.ipc.spawn import pipe_to_parent
from vivavoce_engine.voices.reference_audio import Samples, read_reference, rejected_audio


def main() -> int:
    """Entry point of the process. It ends when the other end of the socket is closed."""
    pipe = pipe_to_parent()
    with suppress(EOFError, OSError):
        while True:
            data = pipe.receive()
            assert isinstance(data, bytes)
            try:
                answer: Samples | Rejected = read_reference(data)
            except Rejected as error:
                answer = error
            except Exception as error:  # FFmpeg's wrappers raise many types
                answer = rejected_audio(f"cannot be read: {type(error).__name__}")
            pipe.send(answer)
    return 0


if __name__ == "__main__":
    sys.exit(main())
