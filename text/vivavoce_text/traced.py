"""Text that knows which characters of its source each of its characters comes from.

Word times need this: speech is timed against the spoken text, and a caller knows the written one.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import SequenceMatcher

WORDS = re.compile(r"\w+|\s+|[^\w\s]")
MOST_WORDS_TO_COMPARE = 64
"""Longest list of words that is compared word by word. The comparison takes quadratic time."""


@dataclass(frozen=True, slots=True)
class Edit:
    """A replacement of the characters from `start` to `end` (exclusive)."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class Traced:
    """A text. Character k comes from the characters `starts[k]` to `ends[k]` (exclusive) of the source.

    Both lists never decrease. All characters of a replacement come from the whole that they replace.
    """

    text: str
    starts: tuple[int, ...]
    ends: tuple[int, ...]

    @staticmethod
    def source(text: str, offset: int = 0) -> "Traced":
        """A text that is its own source, from the source's character `offset` on."""
        numbers = range(offset, offset + len(text))
        return Traced(text, tuple(numbers), tuple(number + 1 for number in numbers))

    def edited(self, edits: Iterable[Edit]) -> "Traced":
        """The text after replacements, which are in order and do not overlap.

        A replacement's characters come from everything that it replaces. An insertion (start equals end) comes from the
        character before it, or from the one behind it at the text's start.
        """
        text: list[str] = []
        starts: list[int] = []
        ends: list[int] = []
        done = 0
        for edit in edits:
            assert edit.start >= done, "edits are in order and do not overlap"
            text += self.text[done : edit.start], edit.text
            starts += self.starts[done : edit.start]
            ends += self.ends[done : edit.start]
            if edit.text:
                start, end = self._origin(edit.start, edit.end)
                starts += [start] * len(edit.text)
                ends += [end] * len(edit.text)
            done = edit.end
        if not done and not text:
            return self
        text.append(self.text[done:])
        starts += self.starts[done:]
        ends += self.ends[done:]
        return Traced("".join(text), tuple(starts), tuple(ends))

    def _origin(self, start: int, end: int) -> tuple[int, int]:
        if start < end:
            return self.starts[start], self.ends[end - 1]
        if start:
            return self.starts[start - 1], self.ends[start - 1]
        return (self.starts[0], self.ends[0]) if self.text else (0, 0)

    def replaced(self, pattern: re.Pattern[str], replacement: str | Callable[[re.Match[str]], str | None]) -> "Traced":
        """The text with every match replaced. A function that returns None keeps its match."""
        first = pattern.search(self.text)
        if first is None:
            return self
        edits = []
        for match in pattern.finditer(self.text, first.start()):
            new = replacement if isinstance(replacement, str) else replacement(match)
            if new is not None and new != match[0]:
                edits.append(Edit(match.start(), match.end(), new))
        return self.edited(edits)

    def became(self, text: str) -> "Traced":
        """Another form of this text, from a function that tells no positions. Comparison finds the equal words."""
        return self if text == self.text else self.edited(edits_between(self.text, text))

    def slice(self, start: int, end: int) -> "Traced":
        return Traced(self.text[start:end], self.starts[start:end], self.ends[start:end])

    @staticmethod
    def join(parts: "Iterable[Traced]") -> "Traced":
        parts = list(parts)
        return Traced(
            "".join(part.text for part in parts),
            tuple(start for part in parts for start in part.starts),
            tuple(end for part in parts for end in part.ends),
        )

    def span(self, start: int, end: int) -> tuple[int, int]:
        """The source's characters (start, end exclusive) that the characters from `start` to `end` come from."""
        return self.starts[start], self.ends[end - 1]


def edits_between(old: str, new: str) -> list[Edit]:
    """The edits that turn `old` into `new`, whole words at a time."""
    old_words, new_words = WORDS.findall(old), WORDS.findall(new)
    head = 0
    while head < min(len(old_words), len(new_words)) and old_words[head] == new_words[head]:
        head += 1
    tail = 0
    while tail < min(len(old_words), len(new_words)) - head and old_words[-1 - tail] == new_words[-1 - tail]:
        tail += 1
    old_middle, new_middle = old_words[head : len(old_words) - tail], new_words[head : len(new_words) - tail]
    start = sum(map(len, old_words[:head]))
    if max(len(old_middle), len(new_middle)) > MOST_WORDS_TO_COMPARE:
        return [Edit(start, start + sum(map(len, old_middle)), "".join(new_middle))]
    bounds = [start]
    for word in old_middle:
        bounds.append(bounds[-1] + len(word))
    changes = SequenceMatcher(None, old_middle, new_middle, autojunk=False).get_opcodes()
    return [
        Edit(bounds[i1], bounds[i2], "".join(new_middle[j1:j2])) for kind, i1, i2, j1, j2 in changes if kind != "equal"
    ]
