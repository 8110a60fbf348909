"""Blanks and signs where pieces meet: what a stage took out leaves no double blank and no lone comma."""

import re

from vivavoce_text.profile import Profile
from vivavoce_text.scripts import script_of
from vivavoce_text.traced import Traced

CLOSERS = "\"')]}\u201d\u2019\u00bb"
ENDS = ".!?;:"
MARKS = f",{ENDS}"
TOKEN = re.compile(r"\w+|\s+|.")
EMPTY = re.compile(r"[ ]*\([\s,.;:]*\)")
MOST_IN_RUN = dict.fromkeys(".*_=~#-`|", 3)
"""Longest run of a sign across pieces; 1 for all others. Letters have three, and digits no limit."""
LETTERS_IN_RUN = 3
REPEATED = "!?."
EXCLAIMED = "!?\uff01\uff1f"


class Tidy:
    """Joins what was read of pieces. Blanks and commas are held back until it is known that something follows them."""

    def __init__(self, profile: Profile) -> None:
        self._is_on = bool(profile.stages - {"clean"})
        self._joins_runs = "clean" in profile.stages
        self._ends_sentences = "markup" in profile.stages
        self._keeps_lines = profile.alphabet is None
        self._recent = ""
        """The last characters said."""
        self._blank = ""
        self._comma = False
        self._last_word = ""
        """The last character said that closes nothing: no quote and no parenthesis."""
        self._reset()
        self._origin = (0, 0)
        self._blank_origin = (0, 0)
        self._comma_origin = (0, 0)

    def append(self, text: Traced) -> Traced:
        """Takes what was read of the next piece. Returns what is certain to be said of all so far."""
        if self._joins_runs:
            text = self._without_known_run(text)
        if not self._is_on:
            self._recent = (self._recent + text.text)[-LETTERS_IN_RUN:]
            return text
        if "(" in text.text:
            text = text.replaced(EMPTY, "")
        self._reset()
        for match in TOKEN.finditer(text.text):
            at, end = match.span()
            origin = text.starts[at], text.ends[at]
            if match[0].isspace():
                self._blank_origin = self._blank_origin if self._blank else origin
                self._blank += match[0]
            else:
                self._add(text.text[at], text.text[at + 1 : at + 2], origin)
                self._say_rest(text, at + 1, end)
        return self._said()

    def close(self) -> list[Traced]:
        """Ends the text. Returns the signs that were held back."""
        self._reset()
        if self._is_on:
            self._end_sentence()
            self._release_comma()
        said = self._said()
        return [said] if said.text else []

    def pass_tag(self, tag: Traced) -> list[Traced]:
        """Takes a tag. Returns what was held back before it, and the tag, which stays as it is."""
        self._reset()
        if self._is_on:
            self._end_sentence()
            self._release_comma()
            if self._blank and self._last_word:
                self._say(self._form_of_blank(), self._blank_origin)
        self._blank = self._recent = ""
        held = self._said()
        return [held, tag] if held.text else [tag]

    def _reset(self) -> None:
        self._chars: list[str] = []
        self._origins: list[tuple[int, int]] = []

    def _said(self) -> Traced:
        starts, ends = zip(*self._origins, strict=True) if self._origins else ((), ())
        return Traced("".join(self._chars), tuple(starts), tuple(ends))

    def _add(self, char: str, behind: str, origin: tuple[int, int]) -> None:
        """Says a character after the blanks and the comma before it, or takes them back."""
        self._end_sentence()
        if not self._last_word:
            self._blank = ""
        if char in MARKS and not (behind.isalnum() and self._blank):
            if "\n" not in self._blank:
                self._blank = ""
            if char == "," or not self._last_word:
                self._hold_comma(char, origin)
                return
            self._comma = False
        self._release_comma()
        if self._joins_runs and char in REPEATED and self._recent.endswith(char * self._most_of(char)):
            self._blank = ""
            return
        if self._blank and self._last_word and self._last() != "(" and char != ")":
            self._say(self._form_of_blank(), self._blank_origin)
        self._blank = ""
        self._say(char, origin)

    def _hold_comma(self, char: str, origin: tuple[int, int]) -> None:
        """A comma is said if a word is before it and another behind it."""
        if char == "," and "\n" in self._blank:
            return
        if char == "," and self._last_word and self._last() not in ",;:!?(" and not self._comma:
            self._comma, self._comma_origin = True, origin
        elif not self._last_word and char in ".!?":
            self._say(char, origin)

    def _release_comma(self) -> None:
        if self._comma:
            self._comma = False
            self._say(",", self._comma_origin)

    def _end_sentence(self) -> None:
        """A full stop before an empty line, if the line before it ends with a word. A tag has ended its sentence."""
        if not self._ends_sentences or self._blank.count("\n") < 2 or not self._last_word or not self._recent:
            return
        if self._comma or self._last_word.isalnum() or self._last_word in "%\u00b0":
            self._comma = False
            self._say("\u3002" if script_of(self._last_word) in ("Chinese", "Japanese") else ".", self._origin)

    def _form_of_blank(self) -> str:
        """One blank, or the end of a line or of a paragraph where the voice reads these."""
        if not self._keeps_lines or "\n" not in self._blank:
            return " "
        return "\n\n" if self._blank.count("\n") > 1 else "\n"

    def _last(self) -> str:
        return self._recent[-1:]

    def _say(self, text: str, origin: tuple[int, int]) -> None:
        self._chars += text
        self._origins += [origin] * len(text)
        self._origin = origin
        self._recent = (self._recent + text)[-LETTERS_IN_RUN:]
        if text[-1] not in CLOSERS and not text.isspace():
            self._last_word = text[-1]

    def _say_rest(self, text: Traced, start: int, end: int) -> None:
        """Says the characters of a word behind its first."""
        if start < end:
            self._chars += text.text[start:end]
            self._origins += zip(text.starts[start:end], text.ends[start:end], strict=True)
            self._origin = self._origins[-1]
            self._last_word = self._chars[-1]
            self._recent = (self._recent + text.text[start:end])[-LETTERS_IN_RUN:]

    def _without_known_run(self, text: Traced) -> Traced:
        """The text without what only prolongs a run of one sign that the pieces before it end with."""
        if not self._recent or not text.text or text.text[0].isdigit() or self._blank or self._comma:
            return text
        last, first = self._recent[-1], text.text[0]
        if last in EXCLAIMED and first in EXCLAIMED:
            run = EXCLAIMED
        elif first == last and self._recent.endswith(first * self._most_of(first)):
            run = first
        else:
            return text
        kept = len(text.text) - len(text.text.lstrip(run))
        return text.slice(kept, len(text.text))

    def _most_of(self, sign: str) -> int:
        return LETTERS_IN_RUN if sign.isalpha() else MOST_IN_RUN.get(sign, 1)
