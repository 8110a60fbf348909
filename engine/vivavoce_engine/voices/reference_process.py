"""Decoder process of reference_reader.py: `python -m vivavoce_engine.voices.reference_process FD`."""

import os
import sys
from contextlib import suppress
from typing import Any

from numpy.typing import NDArray

from vivavoce_engine.errors import Rejected
from vivavoce_engine.ipc.spawn import pipe_to_parent
from vivavoce_engine.voices.media import read_picture, read_sound
from vivavoce_engine.voices.reference_audio import read_reference, rejected_audio
from vivavoce_engine.voices.reference_limits import is_out_of_memory, limit_process, limit_time
from vivavoce_engine.voices.reference_reader import NO_MEMORY_STATUS, ReadPicture, ReadSound


def main() -> int:
    """Entry point of the process. It ends when the other end of the socket is closed."""
    pipe = pipe_to_parent()
    limit_process()
    with suppress(EOFError, OSError):
        while True:
            question = pipe.receive()
            assert isinstance(question, bytes | ReadSound | ReadPicture)
            limit_time()
            pipe.send(answer_to(question))
    return 0


def answer_to(question: bytes | ReadSound | ReadPicture) -> NDArray[Any] | Rejected:
    """The samples or the pixels of a file, or its refusal. A file that needs too much memory ends the process."""
    try:
        match question:
            case ReadSound(data=data):
                return read_sound(data)
            case ReadPicture(data=data):
                return read_picture(data)
            case _:
                return read_reference(question)
    except Exception as error:  # FFmpeg's wrappers raise many types
        if is_out_of_memory(error) or is_out_of_memory(error.__cause__ or error):
            os._exit(NO_MEMORY_STATUS)
        return error if isinstance(error, Rejected) else rejected_audio(f"cannot be read: {type(error).__name__}")


if __name__ == "__main__":
    sys.exit(main())
