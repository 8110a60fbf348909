"""Sources of the training text: collected sentences, documents, names, and templates with their fillers.

Sources of text/en_sentences.tsv.xz: WordNet 3.0 examples (WordNet licence), novels of Jane Austen (public domain),
templates of this project. text/en_documents.txt.xz has passages of the same novels, text/names.tsv its own sources.
"""

# Quotes and dashes that look like others stand here on purpose.
# ruff: noqa: RUF001

from __future__ import annotations

import csv
import lzma
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from vivavoce_voice import held_out_sentences

from voice_recipe.fillers import FILLERS

TEXT_DIR = Path(__file__).resolve().parent.parent / "text"
TEMPLATES = ("templates.txt", "written.txt")
TEST_TEXTS = Path(__file__).resolve().parents[3] / "tests" / "text"
TEST_TABLES = ("written_forms.tsv", "more_forms.tsv", "unseen_forms.tsv", "misses.tsv")
PARAGRAPH = "¶"
"""Begins a sentence of text/en_documents.txt.xz that begins a paragraph."""
SLOT = re.compile(r"\{(\w+)\}")
COMMON_NAME_SHARE = 0.4


@dataclass(frozen=True)
class Name:
    """A first or last name. `phonemes` is how an American says it, or empty if the dictionaries have it."""

    kind: str
    text: str
    phonemes: str


def read_names() -> list[Name]:
    lines = (TEXT_DIR / "names.tsv").read_text().splitlines()
    rows = [line.split("\t") for line in lines if not line.startswith("#")]
    return [Name(row[0], row[1], row[2] if len(row) > 2 else "") for row in rows]


def read_sentences() -> list[tuple[str, str]]:
    """(source, sentence) of the collected sentences; the source is "wordnet", "austen" or "template"."""
    rows = lzma.decompress((TEXT_DIR / "en_sentences.tsv.xz").read_bytes()).decode().splitlines()
    return [(source, text) for source, text in (row.split("\t") for row in rows)]


def read_documents() -> list[list[tuple[str, str]]]:
    """Passages as lists of (what stands before the sentence, sentence)."""
    text = lzma.decompress((TEXT_DIR / "en_documents.txt.xz").read_bytes()).decode()
    passages = []
    for passage in text.split("\n%\n"):
        lines = passage.split("\n")
        glue = ["", *("\n\n" if line.startswith(PARAGRAPH) else " " for line in lines[1:])]
        passages.append([(before, line.removeprefix(PARAGRAPH)) for before, line in zip(glue, lines, strict=True)])
    return passages


def read_templates() -> dict[str, list[str]]:
    """Sections of the template files. `\\n` in a line is a line break. What stands before the first is a comment."""
    sections: dict[str, list[str]] = {}
    for file in TEMPLATES:
        current: list[str] = []
        for line in (TEXT_DIR / file).read_text().splitlines():
            if header := re.fullmatch(r"\[(\w+)\]", line):
                current = sections.setdefault(header[1], [])
            elif line:
                current.append(line.replace("\\n", "\n"))
    return sections


class Writer:
    """Fills templates at random. `words` and `places` take their turns, so that each is used."""

    def __init__(self, words: list[str], places: list[str], seed: int) -> None:
        self.sections, self.random, self.turns = read_templates(), Random(seed), {"word": 0, "place": 0}
        self.lists = {"word": list(words), "place": list(places)}
        for kind in ("first", "last"):
            self.lists[kind] = [name.text for name in read_names() if name.kind == kind]
        for turning in ("word", "place", "first", "last"):
            self.random.shuffle(self.lists[turning])
            self.turns[turning] = 0

    def slot(self, name: str) -> str:
        if name.lower() != name:
            filled = self.slot(name.lower())
            return filled.upper() if name.isupper() else filled[:1].upper() + filled[1:]
        if name in FILLERS:
            return FILLERS[name](self.random)
        if name in self.lists:
            self.turns[name] = (self.turns[name] + 1) % len(self.lists[name])
            return self.lists[name][self.turns[name]]
        if name == "name" and self.random.random() > COMMON_NAME_SHARE:
            return self.slot("first")
        return self.filled(self.random.choice(self.sections[name]))

    def filled(self, template: str) -> str:
        text = SLOT.sub(lambda m: self.slot(m[1]), template)
        return re.sub(r"\b(a) (?=[aeio])|(?:^|(?<=[.!?] ))(A) (?=[aeio])", lambda m: f"{m[1] or m[2]}n ", text)

    def write(self, section: str) -> str:
        text = self.filled(self.random.choice(self.sections[section]))
        return capitalised(text)


def capitalised(text: str) -> str:
    """The text with a capital at its start, unless an address, a file or a version begins it."""
    first = text.split(" ", 1)[0]
    plain = re.fullmatch(r"""["'“‘(]?[^\W\d_][\w'’-]*[.,:;!?"'”’)…]*""", first)
    return text[:1].upper() + text[1:] if plain else text


def comparable(text: str) -> str:
    """Reduce a text to letters and digits, to find held-out sentences."""
    return " ".join(re.sub(r"[^\w ]", "", re.sub(r"[-_\s]+", " ", text.lower().replace("’", "'"))).split())


def held_out() -> list[tuple[str, str]]:
    """(category, sentence) of the sentences that judge voices and are never trained on."""
    return held_out_sentences()


def judged_texts() -> list[str]:
    """Written and spoken forms with which the project's tests judge readings."""
    texts = []
    for table in TEST_TABLES:
        with (TEST_TEXTS / table).open(newline="") as lines:
            for row in csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE):
                texts += [row["written"].replace("\\n", "\n"), *(row.get("spoken") or "").split(" || ")]
    return [text for text in texts if text]


def banned(texts: Iterable[str]) -> frozenset[str]:
    """Comparable forms of texts that must not be in the corpus."""
    return frozenset(comparable(text) for text in texts) - {""}
