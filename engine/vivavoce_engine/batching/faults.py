"""The meaning of an exception for the engine and for callers. Torch-free: exceptions are recognised by their text."""

import re
from typing import Literal

from vivavoce_engine.errors import EngineError, NotServing, SynthesisFailed

NO_MEMORY = re.compile(r"out of memory|can't allocate memory|alloc(ation)? fail|_ALLOC_FAILED", re.IGNORECASE)


def is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or bool(NO_MEMORY.search(str(error)))


def is_device_lost(error: BaseException) -> bool:
    """True if this process can compute nothing any more, because an error of a CUDA context is permanent."""
    return "CUDA error" in str(error)


def reason_of(error: BaseException) -> Literal["out_of_memory", "device", "error"]:
    """The cause of an engine's breakdown in one word."""
    if is_out_of_memory(error):
        return "out_of_memory"
    return "device" if is_device_lost(error) else "error"


def as_engine_error(error: Exception) -> EngineError:
    """The error that callers get for an exception. Lack of memory may pass, so it becomes NotServing."""
    if isinstance(error, EngineError):
        return error
    if is_out_of_memory(error):
        return NotServing("there is not enough memory for this now")
    return EngineError(f"{type(error).__name__}: {error}")


def failure_of(error: Exception) -> EngineError:
    """The error that the listener of one utterance gets for an exception in its work."""
    if is_out_of_memory(error):
        return as_engine_error(error)
    return SynthesisFailed(f"the utterance failed: {error}")
