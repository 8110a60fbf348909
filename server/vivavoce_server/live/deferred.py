"""Commands that arrive while an utterance is ending. They wait until it has ended."""

from collections import deque
from collections.abc import Callable

COMMAND_COST_CHARS = 64
"""Characters that a waiting command counts in addition to its text, because empty commands need memory too."""


class DeferredCommands:
    """Commands in the order of their arrival, with at most `max_chars` characters."""

    def __init__(self, max_chars: int) -> None:
        self._max_chars = max_chars
        self._commands: deque[Callable[[], None]] = deque()
        self._chars = 0
        self._running = False

    def add(self, command: Callable[[], None], chars: int) -> bool:
        """Adds a command with `chars` characters of text. Returns False if there is no room."""
        if self._chars + chars + COMMAND_COST_CHARS > self._max_chars:
            return False
        self._chars += chars + COMMAND_COST_CHARS
        self._commands.append(command)
        return True

    def clear(self) -> None:
        self._commands.clear()
        self._chars = 0

    def run_while(self, ready: Callable[[], bool]) -> None:
        """Runs commands in order while `ready()` is true. Does nothing when one of the commands calls it."""
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
