"""The words of a text and their times, and the beginning of it that was said when its speech stopped.

The beginning is known at the ends of the text's parts, and with word times at the ends of its words.
"""

import math
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from vivavoce_engine import AudioChunk, WordTime

from vivavoce_server.speaking_rate import NOTHING_SAID, SpeakingRate
from vivavoce_server.word_times import Word, WordJoiner, WordMap, rounded

TOLERANCE_S = 1e-4
"""Seconds by which sums of the same pieces of audio may differ."""


@dataclass(frozen=True, slots=True)
class SaidPart:
    """A stretch of a text as it was written, with all of its audio. `end_s` is the audio's end in the file, in s."""

    text: str
    end_s: float


@dataclass(frozen=True, slots=True)
class PartTurn:
    """The turn that a spoken part belongs to: its number, and the name of its voice if it has one."""

    index: int
    voice: str | None


@dataclass(frozen=True, slots=True)
class TurnTimes:
    """A turn that was heard: its number, the name of its voice if it has one, and its seconds in the file."""

    index: int
    voice: str | None
    start_s: float
    end_s: float

    def fields(self) -> dict[str, object]:
        """The turn as clients get it."""
        return {
            "index": self.index,
            "voice": self.voice,
            "start": rounded(self.start_s),
            "end": rounded(self.end_s),
        }


@dataclass(frozen=True, slots=True)
class Said:
    """The beginning of a text, with its audio. With word times, its last part may be one that was said up to a word.

    `begun` is the text of the next part or word, if some of its audio belongs to this too: its listener heard some of
    it. `frames` counts the codec frames, the last one even if it is not whole.
    """

    parts: tuple[SaidPart, ...]
    begun: str
    frames: int

    @property
    def text(self) -> str:
        """Text that was said to its end."""
        return "".join(part.text for part in self.parts)

    @property
    def chars(self) -> int:
        """Characters of the text that were said."""
        return sum(len(part.text) for part in self.parts)


@dataclass(slots=True)
class _Times:
    """Seconds of the audio before the file's speed at which a part begins and, once it `is_over`, ends.

    `tempo` is the factor of the part's own speed beside the file's. `given_s` counts the engine's audio of the part,
    also the leading silence that is dropped of it, and `taken_s` what was left.
    """

    is_speech: bool
    start_s: float
    end_s: float
    tempo: float = 1.0
    is_over: bool = False
    given_s: float = 0.0
    taken_s: float = 0.0


class PartTimes:
    """Notes the audio of a text's parts while it is made: `begin`, `add` for each piece, `end`; then the next part.

    With a WordMap, it also makes the words of the text of what the engine says about the words of its parts.
    """

    def __init__(self, speed: float, frame_s: float, words: WordMap | None = None) -> None:
        """`speed` is that of the file. `frame_s` is the length of a codec frame in seconds."""
        self._speed = speed
        self._frame_s = frame_s
        self._parts: list[_Times] = []
        self._made_s = 0.0
        self.rate = NOTHING_SAID
        """The speaking rate of the parts that were said to their end."""
        self._map = words
        self._joiner = None if words is None else WordJoiner(words)
        self._spoken_parts = 0
        self._waiting: list[WordTime] = []
        """Words of the current part whose audio is not there yet."""
        self.words: list[Word] = []
        """The text's words so far, in order, with their times in the file."""
        self._taken = 0

    def begin(self, is_speech: bool, tempo: float = 1.0) -> None:
        """Begins a part. `tempo` is the factor of its own speed beside the file's."""
        self._parts.append(_Times(is_speech, self._made_s, self._made_s, tempo))
        self._spoken_parts += is_speech

    async def noted(self, chunks: AsyncIterator[AudioChunk]) -> AsyncIterator[AudioChunk]:
        """Passes the engine's chunks of the current part on, and notes their words. `add` follows each of them."""
        async for chunk in chunks:
            self._parts[-1].given_s += chunk.frames * self._frame_s
            self._waiting += chunk.words
            yield chunk

    def add(self, seconds: float) -> None:
        """Adds audio of the model to the current part: all of the part's that was noted and is not dropped, or none."""
        part = self._parts[-1]
        part.taken_s += seconds
        self._made_s += seconds / part.tempo
        self._parts[-1].end_s = self._made_s
        if seconds and self._waiting:
            self._place_words()

    def end(self, text: str = "", *, is_cut: bool = False) -> None:
        """Ends the current part, which says `text`.

        One that `is_cut` was not said to its end, nor was a word that goes on behind it.
        """
        self._parts[-1].is_over = not is_cut
        self._waiting = []
        if not is_cut:
            self.rate += SpeakingRate.of(text, self._parts[-1].taken_s)
        if is_cut and self._joiner is not None:
            self.words += self._joiner.cut()

    def _place_words(self) -> None:
        """Gives the words whose audio is there their times in the file."""
        part = self._parts[-1]
        dropped_s = max(0.0, part.given_s - part.taken_s)
        waiting, self._waiting = self._waiting, []
        if self._joiner is None:
            return
        for word in waiting:
            if word.start_s is not None and word.end_s is not None:
                start_s, end_s = (
                    min(part.start_s + max(0.0, at_s - dropped_s) / part.tempo, part.end_s) / self._speed
                    for at_s in (word.start_s, word.end_s)
                )
                word = WordTime(word.start, word.end, start_s, max(start_s, end_s))
            self.words += self._joiner.add(self._spoken_parts - 1, word)

    def take_words(self, sent_s: float = math.inf, held_s: float = 0.0) -> list[Word]:
        """The words that were not taken yet and begin in the file's first `sent_s` seconds, in order.

        `held_s` is the most that an encoder may have kept back of these seconds. After the last piece of audio, without
        a limit, all words are taken.
        """
        if self._joiner is not None:
            self.words += self._joiner.finish() if sent_s == math.inf else self._joiner.settled()
        begin = self._taken
        for word in self.words[begin:]:
            if word.start_s is not None and word.start_s + TOLERANCE_S > sent_s - held_s:
                break
            self._taken += 1
        return self.words[begin : self._taken]

    def said(self, text: str, ends: Sequence[int], sent_s: float = math.inf, held_s: float = 0.0) -> Said:
        """The beginning of a text that the file's first `sent_s` seconds say.

        The text's parts end before its characters `ends`. `held_s` is the most that an encoder may have kept back of
        these seconds.
        """
        sent_s *= self._speed
        whole_s = sent_s - held_s * self._speed + TOLERANCE_S
        parts: list[SaidPart] = []
        begun, start = "", 0
        for times, end in zip(self._parts, ends, strict=False):  # a part may be known before its audio begins
            if not times.is_over or times.end_s > whole_s:
                if times.start_s + TOLERANCE_S < sent_s:
                    last, begun = self._said_of_part(text, (start, end), sent_s / self._speed, whole_s / self._speed)
                    parts += last
                break
            parts.append(SaidPart(text[start:end], times.end_s / self._speed))
            start = end
        return Said(tuple(parts), begun, self._frames(sent_s))

    def _said_of_part(
        self, text: str, span: tuple[int, int], sent_s: float, whole_s: float
    ) -> tuple[list[SaidPart], str]:
        """The beginning of a part that was said up to a word, and what was begun behind it.

        The part has the characters `span` of the text. Seconds are the file's.
        """
        start, end = span
        if self._map is None:
            return [], text[start:end]
        said: Word | None = None
        are_known = has_begun = True
        for word in self.words:
            if not start <= word.start < end:
                continue
            are_known = word.start_s is not None
            if word.start_s is None or word.end_s is None:
                continue
            if word.end_s > whole_s:
                has_begun = word.start_s + TOLERANCE_S < sent_s
                break
            said = word
        spoken_end, word_end = (self._map.begin_of(start), start) if said is None else (said.spoken[-1].end, said.end)
        # Behind words that are told, the next one has begun: its times are certain only once a little more is said.
        cut, reached = self._map.next_word(spoken_end, word_end, end)
        if said is None or said.end_s is None:
            cut, parts = start, list[SaidPart]()
        else:
            parts = [SaidPart(text[start:cut], said.end_s)]
        if not has_begun:
            return parts, ""
        return parts, text[cut : reached if are_known else end]

    def turns(self, parts: Sequence[PartTurn | None], delay_s: float, sent_s: float = math.inf) -> list[TurnTimes]:
        """The turns of which some audio is in the file's first `sent_s` seconds, in order.

        `parts` has the turn of each part, None for a pause. Each turn ends with the last of its audio there. A
        decoded file is `delay_s` late.
        """
        found: dict[int, TurnTimes] = {}
        for times, part in zip(self._parts, parts, strict=False):  # a part may be known before its audio begins
            start_s, end_s = times.start_s / self._speed, min(times.end_s / self._speed, sent_s)
            if part is None or start_s + TOLERANCE_S > sent_s:
                continue
            first = found.get(part.index)
            start_s = start_s + delay_s if first is None else first.start_s
            found[part.index] = TurnTimes(part.index, part.voice, start_s, end_s + delay_s)
        return list(found.values())

    @property
    def made_s(self) -> float:
        """Seconds of the file whose audio was made."""
        return self._made_s / self._speed

    @property
    def made_frames(self) -> int:
        return self._frames(math.inf)

    def _frames(self, sent_s: float) -> int:
        """Codec frames of which some is among the model's first `sent_s` seconds."""
        spoken = [times for times in self._parts if times.is_speech and times.start_s < sent_s]
        seconds = sum((min(times.end_s, sent_s) - times.start_s) * times.tempo for times in spoken)
        return math.ceil(round(seconds / self._frame_s, 3))
