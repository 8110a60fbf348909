"""Word errors of a transcript, without its spelling: numbers in digits, letters, abbreviations, blanks between words.

A transcriber writes "twenty-four seven" as 24-7, "three oh five p m" as 3.05 p.m., and "F B I" as FBI. Both the
expected words and the transcript are therefore compared in several spellings, and the nearest two count.
"""

import re
from collections.abc import Callable, Iterable, Sequence

from vivavoce_text import STAGES, Letters, Profile, speakable

MOST_JOINED = 8
"""Most words that may be written as one: the digits of a telephone number, the letters of an abbreviation."""
LETTERS: tuple[Letters, ...] = ("spaced", "names")
WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)?")
Normalise = Callable[[str], str]


def wrong_words(readings: Iterable[str], heard: str, normalise: Normalise) -> tuple[int, int]:
    """Returns the number of wrong words (substituted, missing, inserted), and of words expected.

    Of several readings, the one with the smallest share of wrong words counts, and of equal shares the one with the
    most words. `normalise` unifies spellings.
    """
    transcripts = spellings(heard, normalise)
    counts = [
        (distance(expected, transcript), len(expected))
        for reading in readings
        for expected in spellings(reading, normalise)
        for transcript in transcripts
        if expected
    ]
    return min(counts, key=lambda count: (count[0] / count[1], -count[1]))


def spellings(text: str, normalise: Normalise) -> set[tuple[str, ...]]:
    """The words of a text as it is written, and as it is read aloud with each spelling of single letters.

    `normalise` may write numbers in digits, several as one word. The words that are read aloud count without it too.
    """
    read = [speakable(text, "en", Profile(frozenset(STAGES), letters)).text for letters in LETTERS]
    normalised = (normalise(spelling).split() for spelling in (text, *read))
    return {tuple(words) for words in (*normalised, *(WORD.findall(spelling.lower()) for spelling in read))}


def distance(expected: Sequence[str], heard: Sequence[str]) -> int:
    """Least number of words to substitute, remove or insert. Words that differ in their blanks alone are equal."""
    costs = [[0] * (len(heard) + 1) for _ in range(len(expected) + 1)]
    for i in range(len(expected) + 1):
        for j in range(len(heard) + 1):
            if i and j:
                costs[i][j] = 1 + min(costs[i - 1][j], costs[i][j - 1], costs[i - 1][j - 1])
                joins = _equal_ends(expected[max(0, i - MOST_JOINED) : i], heard[max(0, j - MOST_JOINED) : j])
                costs[i][j] = min([costs[i][j], *(costs[i - left][j - right] for left, right in joins)])
            else:
                costs[i][j] = i + j
    return costs[-1][-1]


def _equal_ends(left: Sequence[str], right: Sequence[str]) -> list[tuple[int, int]]:
    """Numbers of words at both ends that are equal without blanks."""
    rights = {"".join(right[-count:]): count for count in range(1, len(right) + 1)}
    joined = ("".join(left[-count:]) for count in range(1, len(left) + 1))
    return [(count, rights[word]) for count, word in enumerate(joined, start=1) if word in rights]
