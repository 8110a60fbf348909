"""Cuts live text into sentences, the same ones for any fragments of the text.

A cut is decided once, when a complete word has followed a sign that may end a sentence, and from the text up to that
word alone. The text before it is not looked at again.
"""

import re

from sentencex import segment  # type: ignore[import-untyped]

from vivavoce_server.text_parts import LANGUAGE_CODES

MAX_SENTENCE_CHARS = 1000
"""A text without the end of a sentence is cut here."""
LOOK_BACK_CHARS = 200
"""Characters of the sentence from which its end is judged."""
ENDS = ".!?\u2026\u3002\uff01\uff1f"
CLOSING = "\"')\\]\u201d\u2019\u00bb\u300d\u300f"
POSSIBLE_END = re.compile(rf"[.!?\u2026][{ENDS}{CLOSING}]*\s+|[\u3002\uff01\uff1f][{ENDS}{CLOSING}]*\s*|\n\s*")
"""A possible end of a sentence, with the blanks behind it. Full-width signs need no blank."""
NEXT_WORD = re.compile(r"\S+(?=\s)|[^\s\x00-\u2e7f]")
"""The complete word behind it. In a script without blanks, one character is enough."""


class Sentences:
    """Takes text in fragments, and gives its sentences."""

    def __init__(self, language: str | None) -> None:
        self._language = LANGUAGE_CODES.get((language or "").lower(), "en")
        self._held = ""
        self._looked = 0
        """Length of the held text in which no sentence ends."""

    def append(self, text: str) -> list[str]:
        """Adds text. Returns the complete sentences, stripped: those after which another has begun."""
        self._held += text
        start, sentences = 0, []
        while (end := self._end_of_sentence(start)) is not None:
            sentences.append(self._held[start:end])
            start = self._looked = end
        self._held, self._looked = self._held[start:], self._looked - start
        return [stripped for sentence in sentences if (stripped := sentence.strip())]

    def take(self) -> str:
        """Returns the unfinished sentence and forgets it."""
        held, self._held, self._looked = self._held, "", 0
        return held.strip()

    def _end_of_sentence(self, start: int) -> int | None:
        """The end of the sentence that starts there, None if it is not known yet."""
        longest = start + MAX_SENTENCE_CHARS
        # No further than the longest sentence, so that every word looked at is complete before that is cut.
        while (possible := POSSIBLE_END.search(self._held, self._looked, longest)) is not None:
            word = NEXT_WORD.match(self._held, possible.end(), longest)
            if word is None:
                break
            self._looked = possible.end()
            if self._ends(start, possible.end(), word.end()):
                return possible.end()
        if len(self._held) <= longest:
            return None
        return self._held.rfind(" ", start, longest) + 1 or longest

    def _ends(self, start: int, end: int, word_end: int) -> bool:
        before = self._held[max(start, end - LOOK_BACK_CHARS) : end]
        *_, last = segment(self._language, before + self._held[end:word_end])
        return len(last.strip()) <= word_end - end
