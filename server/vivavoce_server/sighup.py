"""SIGHUP during the whole life of a process: it reloads, or ends the process if the terminal has been closed."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType

from vivavoce_server.interrupts import InterruptHandler

STATUS = 129
"""Exit status if the terminal is closed during the start; the status that a shell reports for this signal."""


class SighupHandler:
    """Handles SIGHUP, and keeps an early signal for `serve`.

    Create it before the models load, which may take minutes, and on the main thread, which Python's handlers require.
    """

    def __init__(self, interrupts: InterruptHandler) -> None:
        self._interrupts = interrupts
        self._early = False
        self._has_terminal = False
        if sys.platform != "win32":
            # nohup ignores the signal, so that a server can outlive its terminal.
            self._has_terminal = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN and has_terminal()
            signal.signal(signal.SIGHUP, self._on_early)

    def serve(self, loop: asyncio.AbstractEventLoop, reload: Callable[[], None], leave: Callable[[], None]) -> None:
        """Makes the signal call `reload` or `leave` on the loop from now on. An earlier signal calls at once."""
        if sys.platform != "win32":
            loop.add_signal_handler(signal.SIGHUP, lambda: leave() if self._terminal_is_closed() else reload())
        if self._early:
            reload()

    def _on_early(self, signum: int, frame: FrameType | None) -> None:
        if self._terminal_is_closed():
            self._interrupts.interrupt(SystemExit(STATUS))
        self._early = True

    def _terminal_is_closed(self) -> bool:
        return self._has_terminal and not has_terminal()


def has_terminal() -> bool:
    """True if the process has a terminal that is still open."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
