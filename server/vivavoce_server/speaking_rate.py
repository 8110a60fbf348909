"""The speaking rate of texts: characters and words a minute."""

from dataclasses import dataclass
from typing import Self

from vivavoce_engine import count_words

DECIMALS = 1
RATE_CHARACTERS_ABOUT = (
    "Characters a minute of the speech, of the text as it is said, at the model's own pace: a `speed` does not count,"
    " nor do pause tags; null if no text was said to its end"
)
RATE_WORDS_ABOUT = "Words a minute, likewise; in scripts without blanks each letter is a word"
RATE_CHARACTERS_HEADER, RATE_WORDS_HEADER = "X-Usage-Characters-Per-Minute", "X-Usage-Words-Per-Minute"


@dataclass(frozen=True, slots=True)
class SpeakingRate:
    """The texts that were said to their end, as they are said, and the seconds that the model took to say them.

    The seconds count its own pauses. They count no silence of a tag or between turns, no leading silence that was
    dropped, and no change of speed.
    """

    characters: int = 0
    words: int = 0
    seconds: float = 0.0

    @classmethod
    def of(cls, text: str, seconds: float) -> Self:
        """The rate of one text, which takes a microsecond a character."""
        return cls(len(text), count_words(text), seconds) if text.strip() and seconds > 0 else cls()

    def __add__(self, other: "SpeakingRate") -> "SpeakingRate":
        return SpeakingRate(self.characters + other.characters, self.words + other.words, self.seconds + other.seconds)

    @property
    def characters_per_minute(self) -> float | None:
        return self._per_minute(self.characters)

    @property
    def words_per_minute(self) -> float | None:
        return self._per_minute(self.words)

    def _per_minute(self, count: int) -> float | None:
        return round(60 * count / self.seconds, DECIMALS) if self.seconds else None

    def fields(self) -> dict[str, float | None]:
        """The rate as clients get it, beside the tokens of a usage."""
        return {"characters_per_minute": self.characters_per_minute, "words_per_minute": self.words_per_minute}


NOTHING_SAID = SpeakingRate()


def rate_headers(rate: SpeakingRate) -> dict[str, str]:
    """Header fields of the rate of a whole file. There are none if no text was said to its end."""
    told = {RATE_CHARACTERS_HEADER: rate.characters_per_minute, RATE_WORDS_HEADER: rate.words_per_minute}
    return {name: str(value) for name, value in told.items() if value is not None}
