"""Cuts the text of a live utterance into parts that the model speaks reliably.

A cut depends on the text before it and on the word behind it. It is therefore the same for every fragmentation, and no
word waits for more than itself. The words before a cut are spoken before the cut is known, so a part need not end
where split_long, which knows the whole text, would end it.
"""

import re

from vivavoce_text.tables import words_of

from vivavoce_server.text_parts import without_tag

CLOSING = r"[\"')\]\u201d\u2019\u00bb\u300d\u300f]*"
SENTENCE_END = re.compile(rf"(?:([^\W\d_]{{2,}}|\d)[.!?\u2026]+|[\u3002\uff01\uff1f]+){CLOSING}\Z")
CLAUSE_END = re.compile(rf"[,;:\uff0c\uff1b\uff1a\u3001]{CLOSING}\Z")
WIDE_END = re.compile(rf"[\u3002\uff01\uff1f\uff0c\uff1b\uff1a\u3001]{CLOSING}\Z")
"""The end of a clause or sentence that no blank follows."""
UNIT = re.compile(
    r"\s*[^\s\u3002\uff01\uff1f\uff0c\uff1b\uff1a\u3001]*[\u3002\uff01\uff1f\uff0c\uff1b\uff1a\u3001]+[\u201d\u2019\u300d\u300f]*"
    r"|\s*[^\s\u3002\uff01\uff1f\uff0c\uff1b\uff1a\u3001]+"
)
"""A word with the blanks before it, or a clause of a script without blanks."""
TAIL_CHARS = 40
"""Characters at a part's end in which the end of a sentence is looked for."""


class PartCutter:
    """Cuts a text that comes in steps. The steps' ends are possible places of a cut within a word."""

    def __init__(self, max_chars: int | None) -> None:
        """`max_chars` is the longest part, in characters without blanks at its ends; None for any length."""
        self._max_chars = max_chars
        self._chars = 0
        """Characters of the current part so far, from its first word on."""
        self._tail = ""
        self._blanks = ""
        """Blanks that belong to the current part only if another word of it follows."""
        self._follows = False
        self._passed_over = False

    def append(self, text: str) -> list[str]:
        """Takes more text. Returns what goes on with the current part, and the beginning of each part that follows."""
        if self._passed_over:
            text = without_tag(self._tail + self._blanks, text)
        self._passed_over = False
        if not text or text.isspace():  # thousands of empty lines are not searched again at each one
            self._blanks += text
            return [""]
        text, self._blanks = self._blanks + text, ""
        words_end = len(text.rstrip())
        self._blanks = text[words_end:]
        if self._max_chars is None:
            return [self._taken(text[:words_end])]
        parts = [""]
        for match in UNIT.finditer(text, 0, words_end):
            for unit in self._short_enough(match[0]):
                if self._ends_before(unit):
                    self._begin_part()
                    parts.append("")
                parts[-1] += self._taken(unit)
        return parts

    def pass_over(self) -> None:
        """Tells of a tag that is left out here, see `without_tag`."""
        self._passed_over = True

    def end_part(self) -> str:
        """Ends the current part. Returns the blanks at its end."""
        blanks, self._blanks = self._blanks, ""
        self._begin_part()
        return blanks

    def _begin_part(self) -> None:
        self._chars, self._tail, self._follows = 0, "", True

    def _taken(self, unit: str) -> str:
        """A unit as the current part has it. A part that follows another begins without a blank."""
        if not self._chars and self._follows:
            unit = unit.lstrip()
        self._chars += len(unit if self._chars else unit.lstrip())
        self._tail = (self._tail + unit)[-TAIL_CHARS:]
        return unit

    def _short_enough(self, unit: str) -> list[str]:
        assert self._max_chars is not None
        return [unit[start : start + self._max_chars] for start in range(0, len(unit), self._max_chars)]

    def _ends_before(self, unit: str) -> bool:
        assert self._max_chars is not None
        if not self._chars:
            return False
        if self._chars + len(unit) > self._max_chars:
            return True
        if not unit[0].isspace() and not WIDE_END.search(self._tail):
            return False
        if 2 * self._chars >= self._max_chars and self._at_sentence_end():
            return True
        return 4 * self._chars >= 3 * self._max_chars and CLAUSE_END.search(self._tail) is not None

    def _at_sentence_end(self) -> bool:
        end = SENTENCE_END.search(self._tail)
        if end is None:
            return False
        word = re.search(r"[^\W\d_]*\Z", self._tail[: end.start() + len(end[1] or "")])
        return word is None or word[0].lower() not in words_of("en", "abbreviated")
