"""The meaning of an exception for the engine and for callers. Torch-free."""

from typing import Literal

from vivavoce_engine.errors import EngineError, NotServing, SynthesisFailed, is_device_lost, is_out_of_memory


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
