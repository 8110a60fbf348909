"""Words of a client's text, with the times at which the audio says them.

An engine times the words that it speaks: characters of one part's text, seconds since the part's first sample. A client
knows other ones: it wrote "$5.50", of which "five dollars and fifty cents" is spoken. `WordMap` finds the place of a
spoken word in both texts, and `WordJoiner` makes one word of those that were written as one. Both work while the text
arrives, because live text is read in pieces.

Blanks differ between a text and its parts. All other characters are the same ones, in the same order, so places are
counted in signs: characters that are no blanks.
"""

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from vivavoce_engine import WORD_BREAK, WordTime
from vivavoce_text import Traced

from vivavoce_server.text_parts import TAG

SIGNS_OF_WORDS = "%\u2030\u00b0+"
"""Signs at a word's end that belong to it, besides letters, digits, their accents, and currencies."""
BREAK_IN_RUN = re.compile(rf"{WORD_BREAK.pattern}|\[(?:pause|voice):|<[^<>\s][^<>]*>|&#?\w+;", re.IGNORECASE)
"""Signs that part two words without a blank, tags, and a blank that HTML names."""
MARKUP = re.compile(r"[\s.,;:!?*_~|()\[\]{}-]*<[^<>\s][^<>]*>\s*")
"""A tag of HTML, with the signs and blanks that go with it."""
LOOK_AHEAD_CHARS = 64
"""Characters behind a word of live text in which a blank or a letter is looked for."""
DECIMALS = 3
"""Decimals of the seconds that clients get."""


@dataclass(frozen=True, slots=True)
class Word:
    """A written word: the characters from `start` to `end` (exclusive) of the text that the client sent.

    `start_s` and `end_s` are seconds of the delivered audio, both None if they are unknown. `spoken` are the words by
    which it is said; they are characters of WordMap.spoken.
    """

    text: str
    start: int
    end: int
    start_s: float | None
    end_s: float | None
    spoken: tuple[WordTime, ...]

    def later(self, seconds: float) -> "Word":
        """The same word, this much later."""
        spoken = tuple(
            replace(word, start_s=_sum(word.start_s, seconds), end_s=_sum(word.end_s, seconds)) for word in self.spoken
        )
        return replace(self, start_s=_sum(self.start_s, seconds), end_s=_sum(self.end_s, seconds), spoken=spoken)

    def fields(self) -> dict[str, object]:
        """The word as clients get it."""
        return {
            "word": self.text,
            "start": rounded(self.start_s),
            "end": rounded(self.end_s),
            "text_start": self.start,
            "text_end": self.end,
        }


def _sum(seconds: float | None, more: float) -> float | None:
    return None if seconds is None else seconds + more


def rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, DECIMALS)


def milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)


@dataclass(frozen=True, slots=True)
class Place:
    """The characters of a word in what is said, and in what was written. Ends are exclusive."""

    spoken_start: int
    spoken_end: int
    start: int
    end: int


@dataclass(slots=True)
class _PartText:
    """The text of an utterance of the engine."""

    first_sign: int
    signs_before: list[int] = field(default_factory=lambda: [0])
    """Signs before each character, and before the text's end."""


class WordMap:
    """Places of spoken words in the written text, as far as both are known.

    What is said is told by `append`, in pieces. Each of its signs then gets into the engine (`begin_part`, `say`) or is
    left out (`skip`), in order. `close` tells that nothing follows.
    """

    def __init__(self, written: str = "") -> None:
        self.written = written
        """The client's text. Live text grows: its reader adds each piece here before it appends what is said of it."""
        self.spoken = ""
        """The text that is said, with a blank for each tag."""
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._signs: list[int] = []
        """Positions in what is said."""
        self._passed_signs = 0
        self._parts: list[_PartText] = []
        self._is_closed = False

    @staticmethod
    def of(written: str, said: Traced, texts: Iterable[str]) -> "WordMap":
        """The map of a text that is known whole. `texts` are those of its parts, in order."""
        words = WordMap(written)
        begin = 0
        for tag in TAG.finditer(said.text):
            words.append(said.slice(begin, tag.start()))
            words.append(said.slice(*tag.span()))
            begin = tag.end()
        words.append(said.slice(begin, len(said.text)))
        words.close()
        signs, place = _signs_of(words.spoken), 0
        for text in texts:
            # What is between two parts has neither letters nor digits, so that no part is found too early.
            at = signs.index(_signs_of(text), place)
            words.skip(signs[place:at])
            words.begin_part()
            words.say(text)
            place = at + len(_signs_of(text))
        return words

    def append(self, said: Traced) -> None:
        """Takes the next piece of what is said. A tag is a blank there; a blank behind another is left out."""
        if TAG.fullmatch(said.text):
            said = Traced(" ", said.starts[:1], said.ends[-1:])
        if not self.spoken or self.spoken[-1].isspace():
            said = said.slice(len(said.text) - len(said.text.lstrip()), len(said.text))
        offset = len(self.spoken)
        self.spoken += said.text
        self._starts += said.starts
        self._ends += said.ends
        self._signs += (offset + at for at, char in enumerate(said.text) if not char.isspace())

    def close(self) -> None:
        self._is_closed = True

    def begin_part(self) -> None:
        """Begins an utterance of the engine."""
        self._parts.append(_PartText(self._passed_signs))

    def say(self, text: str) -> None:
        """Notes text that the engine gets for the latest part."""
        before = self._parts[-1].signs_before
        for char in text:
            before.append(before[-1] + (not char.isspace()))
        self.skip(text)

    def skip(self, text: str) -> None:
        """Passes over text that no part has."""
        self._passed_signs += len(_signs_of(text))

    def place(self, part: int, word: WordTime) -> Place | None:
        """The place of a word of a part's text. None if it has no letter or digit, or comes from nothing written."""
        text = self._parts[part]
        last = len(text.signs_before) - 1
        first, end = (text.first_sign + text.signs_before[min(at, last)] for at in (word.start, word.end))
        positions = self._signs[first:end]
        if not any(self.spoken[at].isalnum() for at in positions):
            return None
        while not _is_of_word(self.spoken[positions[0]]):
            positions = positions[1:]
        while not _is_of_word(self.spoken[positions[-1]]):
            positions.pop()
        start, end = self._starts[positions[0]], self._ends[positions[-1]]
        written = self.written[start:end]
        start, end = end - len(written.lstrip()), start + len(written.rstrip())
        start, end = self._without_markup(start, end)
        return Place(positions[0], positions[-1] + 1, start, end) if start < end else None

    def _without_markup(self, start: int, end: int) -> tuple[int, int]:
        """A stretch of the written text, without tags of HTML at its ends: blanks that are said may come from them."""
        while (tag := MARKUP.match(self.written, start, end)) and tag.end() < end:
            start = tag.end()
        while (at := self.written.rfind("<", start + 1, end)) > 0 and MARKUP.fullmatch(self.written, at, end):
            end = at
        while end > start + 1 and self.written[end - 1].isspace():
            end -= 1
        return start, end

    def is_one_word(self, end: int, start: int) -> bool:
        """True if nothing parts two words of the written text: one that ends at `end`, another that begins at `start`.

        They may overlap, as the words do by which a number is said.
        """
        if start < end:
            return True
        if any(char.isspace() for char in self.written[end:start]) or self._is_parted(end, start):
            return False
        return not (_has_no_blanks(self.written[end - 1]) or _has_no_blanks(self.written[start]))

    def begin_of(self, start: int) -> int:
        """The first character of what is said that comes from the written one `start` or from a later one."""
        return bisect_left(self._starts, start)

    def next_word(self, spoken_end: int, end: int, most: int) -> tuple[int, int]:
        """Places at which the text of a word ends that is said up to `spoken_end`, and that of the next word.

        The places are characters of the written text. The word itself ends at `end`; signs and markup behind it belong
        to it up to a blank. Both words lie before `most`. Without a next word, both places are there.
        """
        cut, blank, reached = end, None, None
        word_end = end
        for at in range(spoken_end, len(self.spoken)):
            char, start = self.spoken[at], self._starts[at]
            if start >= most:
                break
            if reached is not None and (char.isspace() or char.isalnum()) and not self._goes_on(at, word_end):
                return cut if blank is None else max(cut, blank), max(reached, start if char.isspace() else 0)
            if char.isspace():
                blank = start if blank is None else blank
            elif char.isalnum() or reached is not None:
                reached = self._ends[at]
                word_end = reached if char.isalnum() else word_end
            elif blank is None:
                cut = max(cut, self._ends[at])
        return most if reached is None else cut if blank is None else max(cut, blank), most

    def _goes_on(self, spoken_end: int, end: int) -> bool | None:
        """True if what is said from `spoken_end` on belongs to a written word that ends at `end`; None if not known."""
        for number in range(bisect_left(self._signs, spoken_end), len(self._signs)):
            at = self._signs[number]
            if self.spoken[at].isalnum():
                return self.is_one_word(end, self._starts[at])
        return None

    def may_go_on(self, spoken_end: int, end: int) -> bool:
        """True if what is said behind a word may belong to the same written word. `end` is the written word's."""
        goes_on = self._goes_on(spoken_end, end)
        if goes_on is not None:
            return goes_on
        if self._is_closed:
            return False
        behind = enumerate(self.written[end : end + LOOK_AHEAD_CHARS], end)
        at, char = next((each for each in behind if each[1].isspace() or each[1].isalnum()), (end, ""))
        return not (char.isspace() or self._is_parted(end, at))

    def _is_parted(self, end: int, start: int) -> bool:
        """True if a sign or tag parts words between two characters of the written text."""
        return BREAK_IN_RUN.search(self.written, end, start + 1) is not None


def most_words(text: str) -> int:
    """Largest number of words that a written text can have."""
    return len(text.split()) + sum(map(_has_no_blanks, text)) + len(BREAK_IN_RUN.findall(text))


def _signs_of(text: str) -> str:
    return "".join(text.split())


def _is_of_word(char: str) -> bool:
    kind = unicodedata.category(char)
    return char.isalnum() or kind[0] == "M" or kind == "Sc" or char in SIGNS_OF_WORDS


def _has_no_blanks(char: str) -> bool:
    """True for letters and signs of scripts that put no blanks between words."""
    return "\u2e80" <= char <= "\u9fff" or "\uf900" <= char <= "\ufaff" or "\uff00" <= char <= "\uffef"


class WordJoiner:
    """Makes written words of spoken ones, which come in order. Each leaves as early as it is certain."""

    def __init__(self, places: WordMap) -> None:
        self._map = places
        self._open: Word | None = None
        """A word of which more may be said."""

    def add(self, part: int, word: WordTime) -> list[Word]:
        """Takes a word of a part's text, with its times in the delivered audio. Returns the words that are complete."""
        place = self._map.place(part, word)
        if place is None:
            return []
        spoken = WordTime(place.spoken_start, place.spoken_end, word.start_s, word.end_s)
        opened = self._open
        done: list[Word] = []
        if opened is not None and self._map.is_one_word(opened.end, place.start):
            self._open = self._word(min(opened.start, place.start), max(opened.end, place.end), *opened.spoken, spoken)
        else:
            done = self.finish()
            self._open = self._word(place.start, place.end, spoken)
        return done + self.settled()

    def settled(self) -> list[Word]:
        """The open word, if it is complete by now."""
        opened = self._open
        return [] if opened is None or self._map.may_go_on(opened.spoken[-1].end, opened.end) else self.finish()

    def cut(self) -> list[Word]:
        """The open word, if all of it was said when the speech was cut off behind it. Otherwise it is left out."""
        opened = self._open
        if opened is not None and self._map.may_go_on(opened.spoken[-1].end, opened.end):
            self._open = None
        return self.finish()

    def finish(self) -> list[Word]:
        """The open word, which is complete: no more of it will be said."""
        opened, self._open = self._open, None
        return [] if opened is None else [opened]

    def _word(self, start: int, end: int, *spoken: WordTime) -> Word:
        is_known = all(word.start_s is not None for word in spoken)
        start_s, end_s = (spoken[0].start_s, spoken[-1].end_s) if is_known else (None, None)
        return Word(self._map.written[start:end], start, end, start_s, end_s, spoken)


# ---- characters -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Alignment:
    """Characters of a text in order, with the seconds at which each begins and ends."""

    characters: tuple[str, ...] = ()
    starts_s: tuple[float, ...] = ()
    ends_s: tuple[float, ...] = ()

    def __add__(self, following: "Alignment") -> "Alignment":
        return Alignment(
            self.characters + following.characters, self.starts_s + following.starts_s, self.ends_s + following.ends_s
        )


class CharacterTimes:
    """Divides the time of each word evenly over its characters. The ones between two words share the time between.

    Characters of a word whose times are unknown count as ones between words: no client of these times takes "unknown".
    """

    def __init__(self) -> None:
        self._at = 0
        self._at_s = 0.0
        self._made: list[tuple[str, float, float]] = []

    def take(self, text: str, words: Iterable[WordTime]) -> Alignment:
        """The characters up to the end of the last of these words. `text` is the whole one, or what is known of it."""
        for word in words:
            if word.start_s is not None and word.end_s is not None:
                self._spread(text, word.start, word.start_s)
                self._spread(text, word.end, word.end_s)
        return self._taken()

    def finish(self, text: str, end_s: float) -> Alignment:
        """The rest of the characters. The audio ends at `end_s`."""
        self._spread(text, len(text), end_s)
        return self._taken()

    def _spread(self, text: str, end: int, end_s: float) -> None:
        """Gives the characters up to `end` equal shares of the time up to `end_s`."""
        end, end_s = max(end, self._at), max(end_s, self._at_s)
        chars = text[self._at : end]
        each_s = (end_s - self._at_s) / max(1, len(chars))
        bounds = [round(self._at_s + number * each_s, DECIMALS) for number in range(len(chars) + 1)]
        self._made += zip(chars, bounds[:-1], bounds[1:], strict=True)
        self._at, self._at_s = end, end_s

    def _taken(self) -> Alignment:
        made, self._made = self._made, []
        return Alignment(*zip(*made, strict=True)) if made else Alignment()


def written_times(words: Iterable[Word]) -> list[WordTime]:
    """Words of the written text as CharacterTimes takes them."""
    return [WordTime(word.start, word.end, word.start_s, word.end_s) for word in words]


def spoken_times(words: Iterable[Word]) -> list[WordTime]:
    """The words by which they are said, as CharacterTimes takes them."""
    return [spoken for word in words for spoken in word.spoken]
