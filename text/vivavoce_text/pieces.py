"""Cuts written text into pieces that are read one by one, the same pieces for every fragmentation of the text.

A whole text is read as the join of its pieces, so a text that arrives in fragments is read in the same way. A cut
depends on the characters before it and on at most one complete word behind it. It lies where no rule of reading needs
to look across:

- between a word in small letters and a plain word: neither is part of a number, a name or an abbreviation;
- between a capitalised word and a word in small letters;
- after the end of a sentence whose last word is no abbreviation;
- between ideographs or kana that are far from numbers and Latin letters;
- at a line's end, and around a pause tag or a voice tag.

Markup is kept whole: from an opening sign, nothing is cut until its closing sign or the line's end.
"""

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, cast

from vivavoce_text.pauses import BREAK_TAG, PAUSE_TAG
from vivavoce_text.tables import words_of
from vivavoce_text.voices import BEGUN_TAG, VOICE_TAG

LineKind = Literal["text", "item", "heading", "table", "fence", "code", "hidden", "pause", "voice"]

MOST_CHARS = 200
"""Longest piece without markup, in characters. A longer one is cut at its last blank."""
MOST_MARKUP_CHARS = 300
"""Longest hold for a closing sign, in characters. Past it, the opening sign is an ordinary character."""

OPENERS = {"`": "`", "$": "$", "[": "]", "<": ">", "*": "*", "_": "_", "~": "~"}
MARKER = re.compile(
    r"\s*(?:>\s*)*(?:(?P<item>(?:[-*+\u2022]|\d{1,9}[.)])(?=\s))|(?P<heading>#{1,6}(?=\s))|(?P<table>\|))"
)
FENCE = re.compile(r"\s*(```|~~~)")
FENCE_LINE = re.compile(r"\s*(?P<fence>`{3,}|~{3,})(?P<info>[^`\n]*)\n?\Z")
HIDDEN = re.compile(r"\s*<(?:(?P<comment>!--)|(?P<tag>script|style)\b)", re.IGNORECASE)
OPENING, CLOSING = r"[\"'(\u201c\u2018\u00ab]*", r"[\"')\u201d\u2019\u00bb]*"
WORD = r"([^\W\d_]+(?:['\u2019-][^\W\d_]+)*)"
PLAIN = re.compile(rf"{OPENING}{WORD}[,.;:!?\u2026]*{CLOSING}")
UNENDED = re.compile(rf"{OPENING}{WORD}[,;:]?{CLOSING}")
SENTENCE_END = re.compile(rf"{OPENING}([^\W\d_]{{3,}})[.!?]+{CLOSING}")
CLAUSE_END = "\u3002\uff01\uff1f\uff1b\uff0c\uff1a\u3001"
FEWEST_IDEOGRAPHS = 4
"""Shortest piece that ends between two ideographs, in characters. Every piece costs a run of all stages."""
FAR_CHARS = 6
"""Ideographs before a cut between ideographs, which must be free of digits, Latin letters and signs."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of the written text from the character `start` on, and what is known of its line.

    A pause tag is a piece of kind "pause", and a voice tag one of kind "voice". Every other piece has the kind of the
    line that it is in.
    """

    text: str
    start: int
    kind: LineKind = "text"
    starts_line: bool = False
    ends_line: bool = False


class Pieces:
    """The pieces of one text. `append` takes a fragment and returns the pieces that are final."""

    def __init__(self, markup: bool, voice_tags: bool = True) -> None:
        """`markup` tells whether tags are read: <break> is a pause tag, and scripts and comments are not said.

        Without `voice_tags`, these are text like any other.
        """
        self._markup = markup
        self._voice_tags = voice_tags
        self._held = ""
        self._held_at = 0
        self._new_line = True
        self._kind: LineKind = "text"
        self._fence = ""
        """The sign of the code block that the text is in."""
        self._hidden_end = ""
        """End sign of the script, the style sheet or the comment that the text is in."""
        self._reset()

    def append(self, text: str) -> list[Piece]:
        return list(self._read(text))

    def close(self) -> list[Piece]:
        """Ends the text. Returns the pieces that were held back."""
        if not self._held:
            return []
        return [self._take(len(self._held), ends_line=True)]

    def _read(self, text: str) -> Iterator[Piece]:
        for char in text:
            if "a" <= char <= "z" and not self._closing and len(self._held) + 1 < MOST_CHARS:
                self._held += char  # a small letter opens, closes and ends nothing
                continue
            waiting = deque(char)
            while waiting:
                self._held += waiting.popleft()
                cuts = self._cuts_after(self._held[-1])
                if cuts:
                    # What is behind the last cut is read again as the beginning of the next piece.
                    waiting.extendleft(reversed(self._held[cuts[-1] :]))
                    yield from self._taken(cuts)

    def _taken(self, cuts: list[int]) -> Iterator[Piece]:
        """The pieces that end at the cuts in what is held. What is behind the last cut is dropped."""
        done = 0
        for cut in cuts:
            if cut > done:
                yield self._take(cut - done)
            done = cut
        self._held = ""

    def _take(self, chars: int, ends_line: bool = False) -> Piece:
        """Takes the first characters of what is held as a piece."""
        text, self._held = self._held[:chars], self._held[chars:]
        start = self._held_at
        self._held_at += chars
        starts_line = self._new_line
        if PAUSE_TAG.fullmatch(text) or (self._markup and BREAK_TAG.fullmatch(text)):
            self._reset()
            return Piece(text, start, "pause")
        if self._voice_tags and VOICE_TAG.fullmatch(text):
            self._reset()
            return Piece(text, start, "voice")
        if starts_line:
            self._kind = self._kind_of(text)
        kind = self._kind
        if kind == "hidden" and self._hidden_end in text.lower():
            self._hidden_end, self._kind = "", "text"
        ends_line = ends_line or text.endswith("\n")
        self._new_line = text.endswith("\n")
        self._reset()
        return Piece(text, start, kind, starts_line, ends_line)

    def _kind_of(self, line: str) -> LineKind:
        if self._hidden_end:
            return "hidden"
        fence = FENCE_LINE.match(line)
        if fence and not self._fence:
            self._fence = fence["fence"]
            return "fence"
        if fence and fence["fence"].startswith(self._fence) and not fence["info"].strip():
            self._fence = ""
            return "fence"
        if self._fence:
            return "code"
        hidden = HIDDEN.match(line) if self._markup else None
        if hidden:
            end = "-->" if hidden["comment"] else f"</{hidden['tag'].lower()}"
            if end not in line.lower():
                self._hidden_end = end
                return "hidden"
        marker = MARKER.match(line)
        return cast(LineKind, marker.lastgroup) if marker else "text"

    # ---- where to cut -----------------------------------------------------------------------------------------

    def _reset(self) -> None:
        self._word_at = 0
        """Start of the current word in what is held."""
        self._word_before = ""
        self._gap_at = 0
        """The blank between the word before and the current one."""
        self._closing = ""
        self._opened_at = 0
        self._tag_at = -1
        self._break_at = -1

    def _cuts_after(self, char: str) -> list[int]:
        """Cuts in what is held that became certain with its last character, in order."""
        at = len(self._held) - 1
        if char == "\n":
            return [at + 1]
        tag = self._tag_before(char, at)
        if tag >= 0:
            return [tag, at + 1]
        self._follow_markup(char, at)
        in_tag = self._is_in_voice_tag()
        if not self._closing and not in_tag:
            cut = self._cut_at_blank(at) if char.isspace() else self._cut_between_ideographs(at)
            if cut:
                return [cut]
        elif char.isspace():
            self._end_word(at)
        if at + 1 >= MOST_CHARS and at + 1 >= self._most_chars():
            if in_tag:
                return [self._tag_at] if self._tag_at else []
            blank = max(self._held.rfind(sign, 1) for sign in " \t")
            return [blank if blank > 0 else at + 1]
        return []

    def _most_chars(self) -> int:
        """Longest piece of this kind, in characters. An address is kept whole like markup."""
        is_long = self._closing or "://" in self._held[self._word_at :]
        return MOST_CHARS + (MOST_MARKUP_CHARS if is_long else 0)

    def _tag_before(self, char: str, at: int) -> int:
        """Start of the tag that `char` ends, or -1."""
        if char == "[":
            self._tag_at = at
        elif char == "<":
            self._break_at = at
        elif char == "]" and self._tag_at >= 0:
            start, self._tag_at = self._tag_at, -1
            return start if self._is_tag(start) else -1
        elif char == ">" and self._markup and self._break_at >= 0:
            start, self._break_at = self._break_at, -1
            return start if BREAK_TAG.fullmatch(self._held, start) else -1
        return -1

    def _is_tag(self, start: int) -> bool:
        """True if what is held from `start` on is a pause tag or a voice tag."""
        if PAUSE_TAG.fullmatch(self._held, start):
            return True
        return self._voice_tags and VOICE_TAG.fullmatch(self._held, start) is not None

    def _is_in_voice_tag(self) -> bool:
        """True if the end of what is held may be the beginning of a voice tag, which is kept whole."""
        return self._voice_tags and self._tag_at >= 0 and BEGUN_TAG.fullmatch(self._held, self._tag_at) is not None

    def _follow_markup(self, char: str, at: int) -> None:
        """Notes opening and closing signs."""
        held = self._held
        if self._closing == "\n":
            return
        if self._closing:
            self._follow_open_markup(char, at)
            return
        if self._new_line and (FENCE.fullmatch(held) or (char == "|" and not held[:-1].strip(" \t>"))):
            self._closing, self._opened_at = "\n", at
        elif char in "([" and at and held[at - 1] == "\\":
            self._closing, self._opened_at = "\\)" if char == "(" else "\\]", at
        elif char in OPENERS and not (char in "*_~" and at and (held[at - 1].isalnum() or held[at - 1] == char)):
            self._closing, self._opened_at = OPENERS[char], at

    def _follow_open_markup(self, char: str, at: int) -> None:
        """Notes whether the markup that is open goes on, and with which closing sign."""
        held, chars = self._held, at - self._opened_at
        if chars > MOST_MARKUP_CHARS or (chars == 1 and not _opens(held[self._opened_at], char)):
            self._closing = ""
        elif self._closing == "](":  # a link's text has ended; its address may follow
            self._closing = ")" if char == "(" else ""
        elif chars == 1 and char == self._closing == "$":
            self._closing = "$$"
        elif char == "-" and held.endswith("<!--", self._opened_at):
            self._closing = "-->"
        elif held.endswith(self._closing) and chars >= 2 * len(self._closing) - 1:
            is_opening = char in "*_~" and (held[at - 1].isspace() or chars == 1)
            if not is_opening:
                self._closing = "](" if self._closing == "]" else ""

    def _cut_at_blank(self, at: int) -> int:
        """The cut that is certain now that a word has ended before the blank at `at`; 0 if there is none."""
        if self._word_at == at:  # a blank behind a blank
            self._word_at = at + 1
            return 0
        word, before, gap = self._held[self._word_at : at], self._word_before, self._gap_at
        self._end_word(at)
        if gap and before and _is_safe(before, word):
            return gap
        ended = SENTENCE_END.fullmatch(word)
        return at if ended and ended[1].islower() and ended[1] not in words_of("en", "abbreviated") else 0

    def _end_word(self, at: int) -> None:
        if self._word_at < at:
            self._word_before, self._gap_at = self._held[self._word_at : at], at
        self._word_at = at + 1

    def _cut_between_ideographs(self, at: int) -> int:
        held = self._held
        if at < 2 or not _is_ideograph(held[at]) or not _is_ideograph(held[at - 2]):
            return 0
        if held[at - 1] in CLAUSE_END:
            return at
        if at <= FEWEST_IDEOGRAPHS:
            return 0
        near = held[max(0, at - 2 - FAR_CHARS) : at]
        return at - 1 if all(_is_ideograph(char) or char in CLAUSE_END for char in near) else 0


def _opens(sign: str, behind: str) -> bool:
    """True if `behind` may stand behind an opening sign."""
    match sign:
        case "<":
            return behind.isalpha() or behind in "/!?"
        case "$":
            return not behind.isspace() and not behind.isdigit()
        case "*" | "_" | "~":
            return not behind.isspace()
    return True


def _is_safe(before: str, word: str) -> bool:
    """True if no rule of reading looks across the blank between two words."""
    left, right = UNENDED.fullmatch(before), PLAIN.fullmatch(word)
    if left is None or right is None:
        return False
    if len(left[1]) == 1 and left[1] not in "aAI":  # a unit or a name, which the word behind tells apart: 5 g network
        return False
    if right[1] in ("is", "was") and left[1].lower() in words_of("en", "number_names"):  # the code is 4821
        return False
    if left[1] == left[1].lower():
        return right[1] != right[1].upper() or right[1] == right[1].lower()
    return left[1].istitle() and right[1] == right[1].lower()


def _is_ideograph(char: str) -> bool:
    return "\u3040" <= char <= "\u30ff" or "\u3400" <= char <= "\u9fff" or "\uf900" <= char <= "\ufaff"
