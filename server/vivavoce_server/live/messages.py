"""Bounds on a client's messages before they are parsed, and on those that say nothing.

A parser of JSON keeps Python's lock, so a thread would not help: four MiB of `[],` keep the event loop for a second.
Its time goes by fields and elements, not by bytes, so those are counted.
"""

import re
import time
from collections.abc import Callable

from vivavoce_server.live.closing import Closing, Code, fault

MAX_SIGNS = 16_384
"""Most fields, lists and objects of a message, by the signs before them. Parsing that many takes 10 to 40 ms."""
SIGNS = ":[{"
MAX_ELEMENTS = 33_000
"""Most elements of lists and fields, counted by commas. A mix of 16 embeddings of 2048 numbers has fewer."""
STRINGS_CHARS = 128 * 2**10
"""Longest message whose strings may have more of those signs."""
STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
"""A string of JSON. One without an end goes to the end of the message, so that the search takes linear time."""
MAX_EMPTY = 10_000
"""Messages without text that a connection may send at once. A language model that thinks streams thousands of empty
pieces before its first word, and some programs pass all of them on."""
EMPTY_PER_S = 200.0


def check_structure(message: str) -> None:
    """Raises Closing if the message has too many fields and elements."""
    if _is_small(message):
        return
    if len(message) <= STRINGS_CHARS and _is_small(STRING.sub("", message)):
        return
    text = f"A message has at most {MAX_SIGNS} fields, lists and objects, and {MAX_ELEMENTS} elements"
    raise Closing(Code.TOO_LARGE, fault(text, "message_too_large"))


def _is_small(text: str) -> bool:
    return text.count(",") <= MAX_ELEMENTS and sum(map(text.count, SIGNS)) <= MAX_SIGNS


class EmptyMessages:
    """Counts messages without text, which keep a connection open and cost the server as much as others."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._left = float(MAX_EMPTY)
        self._filled_s = clock()

    def add(self) -> Closing | None:
        """Counts one. Returns the reason for closing the connection if there are too many."""
        now_s = self._clock()
        self._left = min(MAX_EMPTY, self._left + (now_s - self._filled_s) * EMPTY_PER_S)
        self._filled_s = now_s
        if self._left < 1:
            text = f"There are more than {EMPTY_PER_S:g} messages a second without text"
            return Closing(Code.POLICY, fault(text, "too_many_empty_messages"))
        self._left -= 1
        return None
