"""Texts of the corpus before they have phonemes: how many of each kind, in units of single texts and documents."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from voice_recipe.corpus import KINDS
from voice_recipe.sentences import (
    Writer,
    banned,
    capitalised,
    comparable,
    held_out,
    judged_texts,
    read_documents,
    read_sentences,
)
from voice_recipe.typography import careless, curly, in_capitals, with_capital_i, with_digits_apart

MAX_CHARS, MAX_DOCUMENT_CHARS = 190, 900
CURLY_SHARE = 0.35
SENTENCES = {"wordnet": 11_000, "austen": 4_000, "template": 1_500}
"""Number of collected sentences that stand alone, by source."""
PLAIN = {"sentence": 7_000, "number_sentence": 3_500, "word_sentence": 11_000}
WRITTEN = {
    "number": 1800, "date": 2000, "time": 1600, "money": 2000, "ordinal": 900, "fraction": 900, "units": 2200,
    "year": 1200, "version": 700, "code": 1400, "roman": 1100, "acronym": 2400, "initials": 900,
    "abbreviation": 1600, "address": 2000, "quotes": 1800, "dashes": 1500, "brackets": 900, "signs": 1500,
    "emoji": 1000, "repeated": 1300, "countdown": 700, "list": 1400, "name_sentence": 7000, "question": 3000,
    "exclamation": 1800, "capitals": 900,
}  # fmt: skip
"""Number of texts from each section of written.txt."""
PHONES, CAPITALS, CARELESS = 900, 1600, 2500
FREQUENT_WORDS, RARE_WORDS, WORD_REPEATS = 5000, 2500, 2
DOCUMENTS = 3200
"""Number of documents from the sections doc_…."""
DOCUMENT_GLUE = (" ", " ", " ", " ", "\n", "\n\n")


@dataclass(frozen=True)
class Draft:
    """A text without phonemes. `says` is what a normaliser would not find in `text`: the sentence behind capitals."""

    text: str
    kind: int
    says: str = ""
    glue: str = ""


Unit = tuple[Draft, ...]
"""One text alone, or the sentences of a document."""


def alone(text: str, kind: str, says: str = "") -> Unit:
    return (Draft(text, KINDS.index(kind), says),)


def word_alone(word: str) -> list[str]:
    """Ways to write a one-word text."""
    start = word[:1].upper() + word[1:]
    return [f"{start}.", f"{start}.", word, f"{start}!", f"{start}?", start, word.upper()]


def written(writer: Writer) -> Iterator[Unit]:
    """Texts of the sections of written.txt, and old sentences in new dress."""
    for section, count in WRITTEN.items():
        kind = section if section in KINDS else "plain"
        for _ in range(count):
            yield alone(writer.write(section), kind)
    for _ in range(PHONES):
        text = writer.write("phone")
        yield alone(text, "phone", with_digits_apart(text))
    r = writer.random
    for count, kind in ((CAPITALS, "capitals"), (CARELESS, "plain")):
        for _ in range(count):
            text = writer.write(r.choice(["sentence", "question", "exclamation", "name_sentence"]))
            if kind == "capitals":
                yield alone(in_capitals(text, r), kind, text)
            else:
                typed = careless(text, r)
                yield alone(typed, kind, with_capital_i(typed))


def words(writer: Writer, frequent: list[str]) -> Iterator[Unit]:
    """Words, names, phrases and numbers that stand alone."""
    r = writer.random
    for word in frequent[:FREQUENT_WORDS]:
        for text in r.sample(word_alone(word), WORD_REPEATS):
            yield alone(text, "word", word if text == word.upper() else "")
    for word in [writer.slot("word") for _ in range(RARE_WORDS)]:
        yield alone(r.choice(word_alone(word)[:6]), "word")
    for slot, count in (("first", 1500), ("last", 1500), ("place", 1500), ("city", 300)):
        for _ in range(count):
            yield alone(r.choice(word_alone(writer.slot(slot))[:6]), "name")
    for _ in range(1200):
        yield alone(f"{writer.slot('first')} {writer.slot('last')}{r.choice(['', '.', '?', '!'])}", "name")
    for phrase in writer.sections["phrase"] * 8 + writer.sections["greeting"] * 8:
        yield alone(r.choice([phrase, phrase, phrase.rstrip(".!"), phrase.lower()]), "word", with_capital_i(phrase))


def passages(writer: Writer) -> Iterator[Unit]:
    """Documents: passages of novels, and runs of sentences about one thing."""
    kind = KINDS.index("prose")
    for passage in read_documents():
        yield tuple(Draft(text, kind, "", glue) for glue, text in passage)
    r = writer.random
    sections = [section for section in writer.sections if section.startswith("doc_")]
    for number in range(DOCUMENTS):
        section = sections[number % len(sections)]
        lines = writer.sections[section]
        size = r.randint(2, len(lines))
        start = r.choice([0, r.randint(0, len(lines) - size)])
        chosen = lines[start : start + size] if r.random() < 0.6 else sorted(r.sample(lines, size), key=lines.index)
        breaks = section in ("doc_dialogue", "doc_mail") or r.random() < 0.15
        glue = ["", *(r.choice(DOCUMENT_GLUE[3:] if breaks else " ") for _ in chosen[1:])]
        named = KINDS.index("dialogue" if section in ("doc_dialogue", "doc_support") else "plain")
        texts = [writer.filled(line) for line in chosen]
        yield tuple(Draft(capitalised(text), named, "", before) for before, text in zip(glue, texts, strict=True))


def dressed(unit: Unit, writer: Writer) -> Unit:
    """The same unit with curly quotes, for some."""
    if writer.random.random() > CURLY_SHARE:
        return unit
    return tuple(replace(draft, text=curly(draft.text)) for draft in unit)


def is_allowed(unit: Unit, forbidden: frozenset[str]) -> bool:
    """A unit is left out if it is too long, or if a text of it is one that judges voices."""
    if sum(len(draft.glue) + len(draft.text) for draft in unit) > MAX_DOCUMENT_CHARS:
        return False
    return all(
        len(draft.text) <= MAX_CHARS and not {comparable(draft.text), comparable(draft.says)} & forbidden
        for draft in unit
    )


def forbidden_texts() -> frozenset[str]:
    """Comparable forms of all texts that judge voices or readings."""
    return banned([*(text for _, text in held_out()), *judged_texts()])


def collect(dictionary: list[str], places: list[str], seed: int = 7) -> list[Unit]:
    """All units in random order, without the held-out texts."""
    writer = Writer(dictionary, places, seed)
    collected = read_sentences()
    writer.random.shuffle(collected)
    used = Counter(w for _, text in collected for w in re.findall(r"(?<![\w'])[a-z]+(?:'[a-z]+)?(?!\w)", text))
    frequent = [word for word, _ in used.most_common(FREQUENT_WORDS + 100) if len(word) > 1]
    units: list[Unit] = []
    for source, count in SENTENCES.items():
        texts = [text for origin, text in collected if origin == source][:count]
        units += [alone(text, "plain" if source == "template" else "prose") for text in texts]
    for section, count in PLAIN.items():
        units += [alone(writer.write(section), "plain") for _ in range(count)]
    units += [*written(writer), *words(writer, frequent), *passages(writer)]
    forbidden = forbidden_texts()
    units = [dressed(unit, writer) for unit in dict.fromkeys(units) if is_allowed(unit, forbidden)]
    writer.random.shuffle(units)
    return units
