"""The English sentences that voices are judged by: plain ones, questions, numbers, dates, names, single words.

The shipped voice was never trained on them. Other sentences: a file of lines `category TAB text`.
"""

from dataclasses import dataclass
from pathlib import Path

from vivavoce_voice import HELD_OUT

from vivavoce_eval.errors import Unusable

ENGLISH = HELD_OUT
STRIDE = 37
"""Steps through the list in such a way that any few sentences have all categories and speakers among them."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """`number` is its place in the file: it names sound files, and is the seed and the speaker's number."""

    number: int
    category: str
    text: str


def read_sentences(path: Path = ENGLISH) -> list[Sentence]:
    """All sentences of a file.

    Raises:
        Unusable: a line has no category; names it.
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
    """`count` of the sentences, the same ones every time, in their order."""
    total = len(sentences)
    chosen = {number * STRIDE % total for number in range(min(count, total))}
    rest = (number for number in range(total) if number not in chosen)  # a total that STRIDE divides into repeats
    while len(chosen) < min(count, total):
        chosen.add(next(rest))
    return [sentences[number] for number in sorted(chosen)]
