"""Commands of a client that arrived while an utterance was ending, and wait for their turn."""

from collections import deque
from collections.abc import Callable

COMMAND_COST_CHARS = 64
"""Characters that a waiting command counts for, its text aside: many empty ones fill memory too."""


class DeferredCommands:
    """Commands in the order in which they arrived, with at most `max_chars` characters."""

    def __init__(self, max_chars: int) -> None:
        self._max_chars = max_chars
        self._commands: deque[Callable[[], None]] = deque()
        self._chars = 0
        self._running = False

    def add(self, command: Callable[[], None], chars: int) -> bool:
        """False if there is no room for a command with that much text."""
        if self._chars + chars + COMMAND_COST_CHARS > self._max_chars:
            return False
        self._chars += chars + COMMAND_COST_CHARS
        self._commands.append(command)
        return True

    def clear(self) -> None:
        self._commands.clear()
        self._chars = 0

    def run_while(self, ready: Callable[[], bool]) -> None:
        """Runs commands in turn while it is their turn. Does nothing when it is called by one of them."""
        if self._running:
            return
        self._running = True
        try:
            while self._commands and ready():
                self._commands.popleft()()
        finally:
            self._running = False
        if not self._commands:
            self._chars = 0
