"""Decoder process of reference_reader.py: `python -m vivavoce_engine.voices.reference_process FD`."""

import os
import sys
from contextlib import suppress

from vivavoce_engine.errors import Rejected
from vivavoce_engine.ipc.spawn import pipe_to_parent
from vivavoce_engine.voices.reference_audio import Samples, read_reference, rejected_audio
from vivavoce_engine.voices.reference_limits import is_out_of_memory, limit_process, limit_time
from vivavoce_engine.voices.reference_reader import NO_MEMORY_STATUS


def main() -> int:
    """Entry point of the process. It ends when the other end of the socket is closed."""
    pipe = pipe_to_parent()
    limit_process()
    with suppress(EOFError, OSError):
        while True:
            data = pipe.receive()
            assert isinstance(data, bytes)
            limit_time()
            pipe.send(answer_to(data))
    return 0


def answer_to(data: bytes) -> Samples | Rejected:
    """The samples of a file, or its refusal. A file that needs too much memory ends the process."""
    try:
        return read_reference(data)
    except Exception as error:  # FFmpeg's wrappers raise many types
        if is_out_of_memory(error) or is_out_of_memory(error.__cause__ or error):
            os._exit(NO_MEMORY_STATUS)
        return error if isinstance(error, Rejected) else rejected_audio(f"cannot be read: {type(error).__name__}")


if __name__ == "__main__":
    sys.exit(main())
