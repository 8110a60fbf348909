"""Times of the words of running speech, and of the turns of a dialogue."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class SpokenWord:
    """A word that is heard: `word` is `text[text_start:text_end]` of the text that was sent.

    `start_s` and `end_s` are seconds of the audio as it was delivered. Both are None if the times are unknown.
    """

    word: str
    start_s: float | None
    end_s: float | None
    text_start: int
    text_end: int

    def fields(self) -> dict[str, Any]:
        """The word as the server writes it."""
        return {
            "word": self.word,
            "start": _rounded(self.start_s),
            "end": _rounded(self.end_s),
            "text_start": self.text_start,
            "text_end": self.text_end,
        }

    def moved(self, seconds: float, chars: int) -> "SpokenWord":
        """The word, if its audio and its text stand behind others."""
        start_s, end_s = (None if time is None else time + seconds for time in (self.start_s, self.end_s))
        return SpokenWord(self.word, start_s, end_s, self.text_start + chars, self.text_end + chars)


@dataclass(frozen=True, slots=True)
class SpokenTurn:
    """A turn of a dialogue, from `start_s` to `end_s` of the audio."""

    index: int
    voice: str | None
    start_s: float
    end_s: float

    def moved(self, seconds: float, turns: int) -> "SpokenTurn":
        """The turn, if its audio stands behind other audio, and `turns` turns."""
        return SpokenTurn(self.index + turns, self.voice, self.start_s + seconds, self.end_s + seconds)


def _rounded(seconds: float | None) -> float | None:
    """A sum of times as exact as they are: to a millisecond."""
    return None if seconds is None else round(seconds, 3)


def parse_words(words: Iterable[dict[str, Any]]) -> tuple[SpokenWord, ...]:
    return tuple(
        SpokenWord(word["word"], word["start"], word["end"], word["text_start"], word["text_end"]) for word in words
    )


def parse_turns(turns: Iterable[dict[str, Any]]) -> tuple[SpokenTurn, ...]:
    return tuple(SpokenTurn(turn["index"], turn.get("voice"), turn["start"], turn["end"]) for turn in turns)
