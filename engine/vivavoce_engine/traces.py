"""Tracebacks for logs. They repeat no message of an exception, because it may quote a listener's text."""

import os
import traceback

from vivavoce_engine.errors import is_device_lost, is_out_of_memory

MAX_MESSAGE_CHARS = 200
"""Most characters of a message about the machine."""
ABOUT_MACHINES = ("torch", "triton")
"""Packages whose own exceptions tell of the machine and of shapes."""


def error_name(error: BaseException) -> str:
    """The class of an exception. A message about the system, memory or a device follows, because it quotes no text."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    if isinstance(error, OSError):
        return name if error.errno is None else f"{name}: [Errno {error.errno}] {os.strerror(error.errno)}"
    machine = kind.__module__.partition(".")[0] in ABOUT_MACHINES
    if machine or (isinstance(error, RuntimeError) and (is_out_of_memory(error) or is_device_lost(error))):
        return f"{name}: {str(error).partition(chr(10))[0][:MAX_MESSAGE_CHARS]}"
    return name


def format_trace(error: BaseException) -> str:
    """The traceback of an exception and of those behind it, as Python prints it, with `error_name` at each end."""
    chain: list[BaseException] = []
    found: BaseException | None = error
    while found is not None and found not in chain:
        chain.append(found)
        found = found.__cause__ or (None if found.__suppress_context__ else found.__context__)
    return "\n\n".join(map(_one, reversed(chain)))


def _one(error: BaseException) -> str:
    frames = "".join(traceback.format_tb(error.__traceback__))
    parts = [f"Traceback (most recent call last):\n{frames}{error_name(error)}"]
    if isinstance(error, BaseExceptionGroup):
        parts += map(format_trace, error.exceptions)
    return "\n\n".join(parts)
