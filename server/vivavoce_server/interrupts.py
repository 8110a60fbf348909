"""Signals that end the start while the models load."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

TERMINATED = 143
"""Exit status of a shell for SIGTERM."""


class InterruptHandler:
    """Raises KeyboardInterrupt at SIGINT, and within `held` at its end.

    Within Thread.start, the exception would leave a thread behind that its pool does not know and the process waits for
    at its exit. Within a destructor or a callback of the import system, Python would drop it.
    Create it on the main thread, which Python's handlers require.
    """

    def __init__(self) -> None:
        self._is_held = False
        self._reason: BaseException | None = None
        # A shell lets a job in its background ignore the signal.
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._on_signal)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Runs its body without an interrupt. Raises the reason of any earlier interrupt at the end."""
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False
        if self._reason is not None:
            raise self._reason

    @contextmanager
    def also_at_sigterm(self) -> Iterator[None]:
        """Runs its body so that SIGTERM raises SystemExit in it, and what it holds is put away."""
        before = signal.signal(signal.SIGTERM, lambda *_: self.interrupt(SystemExit(TERMINATED)))
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)

    def interrupt(self, reason: BaseException) -> None:
        """Raises the reason now, or at the end of `held`. Call it on the main thread, in a handler of a signal."""
        self._reason = reason
        if not self._is_held:
            raise reason

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        self.interrupt(KeyboardInterrupt())
