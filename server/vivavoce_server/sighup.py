"""SIGHUP, from the first moments of a process to its last: a reload, or the end if the terminal has been closed."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType

STATUS = 129
"""Of a process that its terminal took along while it was starting: what a shell says of such a signal."""


class SighupHandler:
    """Made before the models are loaded, which may take minutes; a signal until then is kept for `serve`.

    Main thread only, as Python's handlers are.
    """

    def __init__(self) -> None:
        self._early = False
        self._has_terminal = False
        if sys.platform != "win32":
            # nohup ignores the signal, for a server that is to outlive its terminal.
            self._has_terminal = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN and has_terminal()
            signal.signal(signal.SIGHUP, self._on_early)

    def serve(self, loop: asyncio.AbstractEventLoop, reload: Callable[[], None], leave: Callable[[], None]) -> None:
        """From now on the signal calls one of these, on the loop; at once, if it has come already."""
        if sys.platform != "win32":
            loop.add_signal_handler(signal.SIGHUP, lambda: leave() if self._terminal_is_closed() else reload())
        if self._early:
            reload()

    def _on_early(self, signum: int, frame: FrameType | None) -> None:
        if self._terminal_is_closed():
            raise SystemExit(STATUS)
        self._early = True

    def _terminal_is_closed(self) -> bool:
        return self._has_terminal and not has_terminal()


def has_terminal() -> bool:
    """Whether the process has a terminal that is still open."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
