"""What an exception means for those who are concerned by it. Knows no torch: exceptions are told by what they say."""

import re
from typing import Literal

from vivavoce_engine.errors import EngineError, NotServing, SynthesisFailed

NO_MEMORY = re.compile(r"out of memory|can't allocate memory|alloc(ation)? fail|_ALLOC_FAILED", re.IGNORECASE)


def is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or bool(NO_MEMORY.search(str(error)))


def is_device_lost(error: BaseException) -> bool:
    """Whether nothing can be computed in this process any more: an error of the CUDA context stays."""
    return "CUDA error" in str(error)


def reason_of(error: BaseException) -> Literal["out_of_memory", "device", "error"]:
    """Why an engine broke down, in a word."""
    if is_out_of_memory(error):
        return "out_of_memory"
    return "device" if is_device_lost(error) else "error"


def as_engine_error(error: Exception) -> EngineError:
    """What those who asked are told of an exception. Where memory is short, there may be some later."""
    if isinstance(error, EngineError):
        return error
    if is_out_of_memory(error):
        return NotServing("there is not enough memory for this now")
    return EngineError(f"{type(error).__name__}: {error}")


def failure_of(error: Exception) -> EngineError:
    """What the listener of one utterance is told of an exception in its work."""
    if is_out_of_memory(error):
        return as_engine_error(error)
    return SynthesisFailed(f"the utterance failed: {error}")
