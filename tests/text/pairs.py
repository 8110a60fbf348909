"""Pairs of written and spoken text, and the judge of what is said of them.

`written_forms.tsv` has a pair a line: language, kind, written, spoken, note. ` || ` separates readings that are all
right; `\\n`, `\\\\` and `\\uXXXX` are escapes. English is compared without case, hyphens and commas, and without the
choices of words that are equally right (`SAME`). Rows of the kind "unchanged" must stay as they are, character by
character.
"""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from vivavoce_eval import pairs as pairs_files

FOLDER = Path(__file__).parent
SPEAKABLE_SIGNS = set(" .,;:!?'\"()-\n")
WRONG_SIGNS = re.compile(r"--|\.{4}|!!!")
CAPITALS = re.compile(r"\b[A-Z]{2,}\b")
MONTHS = "january|february|march|april|may|june|july|august|september|october|november|december"
SAME = (
    (re.compile(r"\b(?:zero)\b"), "oh"),
    (re.compile(r"\bnegative\b"), "minus"),
    (re.compile(rf"\bthe (\w+(?: \w+)?) of ({MONTHS})\b"), r"\2 \1"),
    (re.compile(r"\btwo thousand and\b"), "two thousand"),
    (
        re.compile(r"\b(hundred|thousand|million|billion|dollars?|pounds?|euros?|yen|hours?|minutes?) and (?=\w)"),
        r"\1 ",
    ),
    (re.compile(r"\btwo thousand (ten|eleven|twelve|\w+teen|twenty|thirty)\b"), r"twenty \1"),
)


@dataclass(frozen=True, slots=True)
class Pair(pairs_files.Pair):
    """A pair with its judge."""

    def is_right(self, said: str) -> bool:
        if self.kind == "unchanged":
            return said == self.written
        if self.language == "zh":
            return _bare(said) in {_bare(reading) for reading in self.readings}
        return _has_good_signs(said, self.readings) and _words(said) in {_words(reading) for reading in self.readings}


@cache
def pairs(name: str = "written_forms.tsv") -> tuple[Pair, ...]:
    """The pairs of a file: `written_forms.tsv`, or one of two with further ones of the same kinds.

    The pairs of `unseen_forms.tsv` were written without regard to the rules.
    """
    found = pairs_files.read_pairs(FOLDER / name)
    return tuple(Pair(pair.language, pair.kind, pair.written, pair.readings) for pair in found)


def _has_good_signs(said: str, readings: tuple[str, ...]) -> bool:
    allowed_capitals = {word for reading in readings for word in CAPITALS.findall(reading)}
    return (
        all(char.isalnum() or char in SPEAKABLE_SIGNS for char in said)
        and WRONG_SIGNS.search(said) is None
        and set(CAPITALS.findall(said)) <= allowed_capitals
    )


def _words(text: str) -> str:
    text = text.lower().replace("-", " ").replace(",", " ")
    text = " ".join(re.findall(r"[^\W_]+(?:'[^\W_]+)*|[.!?;:]+", text))
    for pattern, same in SAME:
        text = pattern.sub(same, text)
    return re.sub(r"[.!?;:]+$", "", re.sub(r"\s*[.]+", "", text)).strip()


def _bare(text: str) -> str:
    return "".join(char for char in text if char.isalnum())
