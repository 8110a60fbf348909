"""The times of an utterance's words, from its path through the text and from the silences in its samples.

A word begins where its first token does, and ends where the token behind its last one begins. Where a sign or a hole
is between two words, the longest silence there becomes the gap. Elsewhere a long silence does. Two adjoining words have
a short gap, because the attention's edge lies between the end of one and the start of the other. Times depend on frames
and samples alone, not on the pieces in which they come: each word waits until nothing that is still to come can change
it.
"""

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vivavoce_engine.batching.messages import WordTime
from vivavoce_engine.batching.text_paths import TextPath
from vivavoce_engine.text.words import TextWord

SpeechEnd = Literal["open", "ended", "cut"]
"""State of speech: it goes on, has ended by itself, or was cut off by the limit of its frames."""
BINS = 8
"""Parts of a frame that count as silence or sound; of 10 ms where a frame has 80."""
SILENCE_DB = 30.0
"""A part sounds if its level is within this of the loudest one so far."""
LOUDEST_DB = -20.0
"""Level of the loudest part, relative to full scale, before any is louder."""
SHORTEST_S = 0.02
"""Least length of a word."""
HOLE_S = 0.06
"""Least hole between two words without a sign in which a silence is looked for."""
BEFORE_S, AFTER_S = 0.08, 0.16
"""Time before a word's end and after the next one's start in which the silence may lie."""
KEEP_S = 0.04
"""Time after a word's start that stays its own."""
GAP_S, TAIL_S = 0.05, 0.12
"""Least silence between two words with a sign or a hole, and behind the last one."""
PAUSE_S = 0.12
"""Least silence between two words without either. The closure of a plosive is shorter."""
EDGE_S = 0.01
"""Half of the gap between two words that adjoin. It was measured against an acoustic aligner."""
SCORE_FRAMES = 6
"""Frames before a word whose attention counts for its score."""
LEAST_SCORE = -1.0
"""Mean log weight along the path below which a word's times count as unknown. The lowest of 144 words that the shipped
voice speaks well is -0.65; where it loses a text that is too long for it, the mean of an utterance falls below -1.3."""


class Sound:
    """The parts of an utterance's samples that are not silent."""

    def __init__(self) -> None:
        self.on = bytearray()
        """1 for each part that sounds, 0 for each that does not."""
        self.first = -1
        """The first part that sounds; -1 if none does."""
        self._loudest_db = LOUDEST_DB

    def add(self, pcm: NDArray[np.float32], frames: int) -> None:
        parts = pcm.reshape(frames, -1)
        size = parts.shape[1] // BINS
        parts = parts[:, : size * BINS].reshape(frames * BINS, size)
        level_db: NDArray[np.float32] = np.einsum("ij,ij->i", parts, parts)
        level_db /= size
        level_db += 1e-9
        np.log10(level_db, level_db)
        level_db *= 10
        loudest_db = np.maximum.accumulate(level_db)
        np.maximum(loudest_db, self._loudest_db, loudest_db)
        self._loudest_db = loudest_db.item(-1)
        loudest_db -= SILENCE_DB
        self.on += (level_db > loudest_db).tobytes()
        if self.first < 0:
            self.first = self.on.find(1)

    def silences(self, start: int, end: int) -> list[tuple[int, int]]:
        """The silent stretches between two parts."""
        on, found = self.on, list[tuple[int, int]]()
        end = min(end, len(on))
        since = on.find(0, max(0, start), end)
        while since >= 0:
            until = on.find(1, since, end)
            if until < 0:
                return [*found, (since, end)]
            found.append((since, until))
            since = on.find(0, until, end)
        return found

    @property
    def end(self) -> int:
        """The end of the last part that sounds, 0 if none does."""
        return self.on.rfind(1) + 1


class SpokenWords:
    """The words of one utterance. `path` is fed with every frame, and `add` with the samples that are sent.

    `offset_s` is the constant error of the path's times.
    """

    def __init__(self, path: TextPath, frame_s: float, offset_s: float) -> None:
        self.path = path
        self._frame_s, self._bin_s = frame_s, frame_s / BINS
        self._offset_s = offset_s
        self._sound = Sound()
        self._given = 0
        self._start_s: float | None = None
        """Start of the next word, where the silence in front of it has settled it."""
        self._floor_s = 0.0
        """End of the last word."""

    def add(self, pcm: NDArray[np.float32], frames: int, words: list[TextWord], end: SpeechEnd) -> tuple[WordTime, ...]:
        """Takes the next samples. Returns the words whose times are certain now.

        `words` are those of the text so far. Before an `end`, the path has been finished. Of speech that was cut, only
        the words that were said to their end are told.
        """
        self._sound.add(pcm, frames)
        complete = end != "open"
        found = []
        while self._given < len(words):
            word = words[self._given]
            if end == "cut" and self._is_cut(word):
                break
            following = words[self._given + 1] if self._given + 1 < len(words) else None
            times = self._times(word, following, complete)
            if times is None:
                break
            self._given += 1
            found.append(WordTime(word.start, word.end, *times) if self._is_sure(word) else unknown(word))
        return tuple(found)

    def _is_cut(self, word: TextWord) -> bool:
        """True if the samples end before the word does. Tokens that the path has not reached begin behind them."""
        return (self._begin_s(word.end_token) or math.inf) > len(self._sound.on) * self._bin_s

    def _begin_s(self, token: int) -> float | None:
        """The time at which a token begins, if the path has settled it."""
        starts = self.path.starts
        return max(0.0, starts[token] * self._frame_s - self._offset_s) if token < len(starts) else None

    def _times(self, word: TextWord, following: TextWord | None, complete: bool) -> tuple[float, float] | None:
        """Start and end of the next word; None while they may change. Settles the start of the following one."""
        heard_s = len(self._sound.on) * self._bin_s
        next_s = self._begin_s(following.first_token) if following is not None else None
        if not complete and (next_s is None or heard_s < next_s + AFTER_S):
            return None  # most pieces end here
        start_s, end_s = self._begin_s(word.first_token), self._begin_s(word.end_token)
        if start_s is None or end_s is None or (heard_s < end_s and not complete):
            return None
        end_s = max(end_s, start_s + SHORTEST_S)
        if self._start_s is not None:
            start_s = self._sounding_from(self._start_s, end_s - SHORTEST_S)
        elif self._given == 0 and self._sound.first >= 0:
            start_s = min(self._sound.first * self._bin_s, end_s - SHORTEST_S)
        start_s = max(start_s, self._floor_s)
        end_s = max(end_s, start_s + SHORTEST_S)
        gap = self._tail(start_s, end_s) if following is None and complete else None
        if gap is None:
            if following is None or next_s is None:
                return None
            adjoins = not word.sign and next_s - end_s <= HOLE_S
            if not complete and not self._is_known(next_s + AFTER_S, heard_s, adjoins=adjoins):
                return None
            if adjoins:
                edges = end_s - EDGE_S, next_s + EDGE_S
                gap = self._silence(start_s, end_s, next_s + AFTER_S, PAUSE_S) or edges
            else:
                gap = self._silence(start_s, end_s, self._latest_s(next_s, following), GAP_S) or (end_s, next_s)
        end_s, self._start_s = gap
        last_s = heard_s if complete else max(heard_s, end_s)
        self._floor_s = min(end_s, last_s)
        return min(start_s, self._floor_s), self._floor_s

    def _is_known(self, until_s: float, heard_s: float, *, adjoins: bool) -> bool:
        """True if the samples have come so far, and no token begins before this time any more.

        A word that `adjoins` the one before it may end before this time.
        """
        until_s += 0.0 if adjoins else SHORTEST_S
        frontier_s = (self.path.frames - 3) * self._frame_s - self._offset_s
        return heard_s >= until_s and (adjoins or frontier_s >= until_s)

    def _latest_s(self, next_s: float, following: TextWord) -> float:
        """The end of the time in which the silence in front of a word may lie."""
        next_end_s = self._begin_s(following.end_token)
        latest_s = next_s + AFTER_S
        return latest_s if next_end_s is None else min(latest_s, max(next_end_s, next_s + SHORTEST_S) - SHORTEST_S)

    def _silence(self, start_s: float, end_s: float, latest_s: float, least_s: float) -> tuple[float, float] | None:
        """The longest silence about the end of a word that has a least length."""
        first, last = self._bin(max(start_s + KEEP_S, end_s - BEFORE_S)), self._bin(latest_s)
        longest, since = 0, 0
        for start, end in self._sound.silences(first, last):
            if end - start > longest:
                longest, since = end - start, start
        if self._length_s((since, since + longest)) < least_s:
            return None
        return since * self._bin_s, (since + longest) * self._bin_s

    def _sounding_from(self, start_s: float, latest_s: float) -> float:
        """The first time from `start_s` on at which there is sound, at most `latest_s`."""
        at = self._bin(start_s)
        while at < len(self._sound.on) and not self._sound.on[at] and (at + 1) * self._bin_s <= latest_s:
            at += 1
        return max(start_s, at * self._bin_s)

    def _tail(self, start_s: float, end_s: float) -> tuple[float, float]:
        """The end of the last word, twice: where the silence behind it begins."""
        first = self._bin(max(start_s + KEEP_S, end_s - BEFORE_S))
        silences = self._sound.silences(first, len(self._sound.on))
        tail = next((start for start, end in silences if self._length_s((start, end)) >= TAIL_S), self._sound.end)
        end_s = max(tail * self._bin_s, start_s + SHORTEST_S) if self._sound.first >= 0 else end_s
        return end_s, end_s

    def _bin(self, time_s: float) -> int:
        return int(time_s / self._bin_s + 1e-6)

    def _length_s(self, silence: tuple[int, int]) -> float:
        return (silence[1] - silence[0]) * self._bin_s + 1e-9

    def _is_sure(self, word: TextWord) -> bool:
        """True if the path has followed the attention around the word."""
        path = self.path
        first, last = path.steps[word.first_token], path.steps[word.end_token]
        if first > path.frames:
            return False  # the speech ended before the word
        weights = path.log_weights[max(1, first - SCORE_FRAMES) : last + 1]
        return not weights or sum(weights) / len(weights) >= LEAST_SCORE


def unknown(word: TextWord) -> WordTime:
    return WordTime(word.start, word.end, None, None)
