"""Characters that a client's fragments cut in half.

JavaScript counts UTF-16 units, so a fragment may end within an emoji. JSON.stringify then writes each half as an escape
of a surrogate, which is no character and has no bytes in UTF-8.
"""

import json
import re

SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
REPLACEMENT = "\ufffd"
MAX_CHARS = 128 * 2**10
"""Longest message that has a fragment of text."""
MAX_CONTEXTS = 64
"""Contexts of a connection whose last fragment ended within a character."""
NO_MORE_THAN_TEXT = frozenset({"type", "text", "context_id", "contextId", "try_trigger_generation"})
"""Fields of a message that says nothing besides its text."""


class SurrogateHalves:
    """Joins the halves in one connection's messages: JSON objects whose `text` is a fragment, each of its context."""

    def __init__(self) -> None:
        self._held: dict[object, str] = {}

    def mend(self, message: str) -> str | None:
        """The message with whole characters. None if it is part of a character alone, which the next one completes.

        A half without its other half becomes U+FFFD. What is no JSON object, or is longer
        than any fragment, stays as it is.
        """
        if len(message) > MAX_CHARS or (not self._held and SURROGATE_ESCAPE.search(message) is None):
            return message
        try:
            fields = json.loads(message)
        except (ValueError, RecursionError):
            return message
        if not isinstance(fields, dict):
            return message
        context = str(fields.get("context_id") or fields.get("contextId"))
        text = fields.get("text")
        # An empty text completes nothing, and to some protocols it is an end.
        before = "" if text == "" else self._held.pop(context, "")
        if isinstance(text, str) and text:
            text = before + text
            if "\ud800" <= text[-1:] <= "\udbff":
                if text[:-1] or fields.keys() <= NO_MORE_THAN_TEXT:
                    self._hold(context, text[-1])
                    text = text[:-1]
                if not text:
                    return None
            fields["text"] = text
        return _whole(json.dumps(fields, ensure_ascii=False))

    def _hold(self, context: str, half: str) -> None:
        if len(self._held) < MAX_CONTEXTS:
            self._held[context] = half


def _whole(text: str) -> str:
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
