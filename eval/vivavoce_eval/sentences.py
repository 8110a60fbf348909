"""The English sentences that voices are judged by: plain ones, questions, numbers, dates, names, single words.

The shipped voice was never trained on them. Files of other sentences have lines of the form `category TAB text`.
"""

from dataclasses import dataclass
from pathlib import Path

from vivavoce_voice import HELD_OUT

from vivavoce_eval.errors import Unusable

ENGLISH = HELD_OUT
STRIDE = 37
"""Step through the list. With it, even a few sentences cover all categories and speakers."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence. `number` is its place in the file. It names sound files, is the seed, and selects the speaker."""

    number: int
    category: str
    text: str


def read_sentences(path: Path = ENGLISH) -> list[Sentence]:
    """Reads the sentences of a file.

    Raises:
        Unusable: a line has no category. The message names the line.
    """
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    sentences = []
    for number, line in enumerate(lines):
        category, tab, text = line.partition("\t")
        if not tab or not text.strip():
            raise Unusable(f"{path}: sentence {number + 1} is not `category TAB text`: {line!r}")
        sentences.append(Sentence(number, category, text.strip()))
    return sentences


def pick(sentences: list[Sentence], count: int) -> list[Sentence]:
    """Picks `count` sentences, always the same ones, in their order."""
    total = len(sentences)
    chosen = {number * STRIDE % total for number in range(min(count, total))}
    rest = (
        number for number in range(total) if number not in chosen
    )  # needed if STRIDE divides the total, so that steps repeat
    while len(chosen) < min(count, total):
        chosen.add(next(rest))
    return [sentences[number] for number in sorted(chosen)]
