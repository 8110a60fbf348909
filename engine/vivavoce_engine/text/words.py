"""The words of a text, and the tokens that each of them is made of."""

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, replace

Span = tuple[int, int]
"""Characters of a token: the first, and the one behind the last."""
WITHOUT_SPACES = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Myanmar
    (0x1780, 0x17FF),  # Khmer
    (0x2E80, 0x2FDF),  # radicals
    (0x3005, 0x3007),
    (0x3021, 0x30FF),  # Hiragana, Katakana
    (0x31F0, 0x31FF),
    (0x3400, 0x9FFF),  # ideographs
    (0xF900, 0xFAFF),
    (0xFF66, 0xFF9F),
    (0x20000, 0x323AF),
)
"""Ranges of letters of scripts that put no spaces between words."""
WORD_BREAK = re.compile(
    r"[!?;|\u2014\u2015\u2022\u2026\u00ab\u00bb\u201c-\u201f\u2300-\u2bff\U0001f000-\U0001faff\"]|--|\.\."
    r"|(?<=[^\W\d_]),(?=[^\W\d_])"
)
"""Signs that part two words without white space: ends of sentences, dashes but not hyphens, bullets, double quotes,
pictures, and a comma between two letters."""
UNSPACED = "".join(f"{chr(first)}-{chr(last)}" for first, last in WITHOUT_SPACES)
RUN = re.compile(rf"[{UNSPACED}]|(?:(?![{UNSPACED}]|{WORD_BREAK.pattern})\S)+")
"""A letter of a script without spaces, or a run of other characters in which nothing parts two words."""


@dataclass(frozen=True, slots=True)
class TextWord:
    """The characters from `start` to `end` (exclusive), and the tokens from `first_token` to `end_token` (exclusive).

    `sign` is true if the last of its characters is neither a letter nor a digit, so that a pause may follow.
    """

    start: int
    end: int
    first_token: int
    end_token: int
    sign: bool

    def moved(self, characters: int) -> "TextWord":
        """The same word in a text that has this many more characters in front."""
        return replace(self, start=self.start + characters, end=self.end + characters)


class WordSplitter:
    """Finds the words of a text that arrives in fragments. Any fragmentation gives the words of the whole text.

    White space and WORD_BREAK split words. A token belongs to the word of its last letter or digit; a token without one
    belongs to none, unless it stands inside a word ("6:40", "I'm"). In scripts without spaces each token with a letter
    is a word. The signs around a word are part of its characters. A word is certain once a token of the next one is
    known.
    """

    def __init__(self) -> None:
        self._text = ""
        self._tokens = 0
        self._end = 0
        """The end of the last word that is certain."""
        self._start = self._first_token = self._end_token = 0
        self._last = -1
        """The last letter or digit of the open word; -1 if there is none."""

    def add(self, text: str, spans: Iterable[Span]) -> list[TextWord]:
        """Takes further text, and the spans in the whole text of the tokens that are certain now. Returns the words
        that are."""
        self._text += text
        words = []
        for start, end in spans:
            last = self._last_letter(start, end)
            if last is not None:
                words += self._letter(start, last)
                self._end_token = self._tokens + 1
            self._tokens += 1
        return words

    def close(self) -> list[TextWord]:
        """Returns the last word, if there is one, at the end of the text."""
        return [] if self._last < 0 else [self._word(self._behind(self._last))]

    def _letter(self, start: int, last: int) -> list[TextWord]:
        """Takes a token from `start` on whose last letter is `last`. Returns the word that it ends."""
        text, words = self._text, []
        begins = start
        if self._last >= 0:
            between = text[self._last + 1 : last]
            if not any(map(str.isspace, between)):
                *_, parted = [None, *WORD_BREAK.finditer(text, self._last + 1, last + 1)]
                unspaced = _is_unspaced(text[last]) or _is_unspaced(text[self._last])
                if last <= self._last or not (parted or unspaced):
                    self._last = max(last, self._last)
                    return []
                begins = max(start, self._last + 1) if parted is None else parted.end()
                words.append(self._word(begins))
            else:
                words.append(self._word(self._behind(self._last)))
                begins = self._begin(last)
        else:
            begins = self._begin(last)
        self._start, self._first_token, self._last = begins, self._tokens, last
        return words

    def _begin(self, last: int) -> int:
        """The first character of the run without white space that holds the character `last`."""
        while last > self._end and not self._text[last - 1].isspace():
            last -= 1
        return last

    def _behind(self, last: int) -> int:
        """The end of the run without white space that holds the character `last`."""
        while last < len(self._text) and not self._text[last].isspace():
            last += 1
        return last

    def _word(self, end: int) -> TextWord:
        self._end = end
        sign = not _is_letter(self._text[end - 1])
        return TextWord(self._start, end, self._first_token, self._end_token, sign)

    def _last_letter(self, start: int, end: int) -> int | None:
        return next((at for at in range(end - 1, max(start, 0) - 1, -1) if _is_letter(self._text[at])), None)


def words_of(text: str, spans: Iterable[Span]) -> tuple[TextWord, ...]:
    """The words of a complete text whose tokens have these spans. A span before the text begins below 0."""
    splitter = WordSplitter()
    return (*splitter.add(text, spans), *splitter.close())


def count_words(text: str) -> int:
    """Number of words: runs with a letter or digit, between white space and WORD_BREAK.

    In scripts without spaces each letter counts as one.
    """
    return sum(any(map(str.isalnum, run)) for run in RUN.findall(text))


def _is_letter(character: str) -> bool:
    """True for a letter, a digit, or a mark that belongs to one."""
    return character.isalnum() or unicodedata.category(character)[0] == "M"


def _is_unspaced(character: str) -> bool:
    return any(first <= ord(character) <= last for first, last in WITHOUT_SPACES)
