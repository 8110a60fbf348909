"""Texts to be spoken, in named classes: bundled English and Chinese sentences, or a file with one text a line.

en.txt and zh.txt were written for this project and are in the public domain (CC0). Each text is a sentence of a few
seconds, as in the usual test sets (Seed-TTS evaluation: Common Voice, DiDiSpeech). Longer texts are sentences in a row.
"""

import math
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

BUNDLED = ("en", "zh")
CHARACTERS_PER_S = {"en": 15.0, "zh": 4.5}
"""Characters of text in a second of speech, blanks and punctuation included. At 12.5 frames a second English has
0.83 frames a character."""
BETWEEN = {"en": " ", "zh": ""}
TOLERANCE = 0.05
"""Share by which a text may be shorter or longer than its class asks."""
CLASS = re.compile(r"(?:(?P<name>[\w-]+)=)?(?P<texts>.+?)(?:@(?P<weight>[1-9]\d*))?")
SECONDS = re.compile(r"(?P<language>\w+):(?P<seconds>\d+(?:\.\d+)?)s")
ROUNDS = 16
"""Rounds of all classes, by their weights, that are shuffled together."""


@dataclass(frozen=True, slots=True)
class TextClass:
    """Texts that are reported together. `weight` of all weights is the share of the requests with these texts."""

    name: str
    texts: tuple[str, ...]
    weight: int = 1


def load_prompts(name: str) -> list[str]:
    """Reads the texts of `en`, `zh`, `en:20s` (about 20 s of speech each), or a file at this path.

    Raises:
        ValueError: there are none.
    """
    long = SECONDS.fullmatch(name)
    if long is not None and long["language"] in BUNDLED:
        return texts_of(long["language"], float(long["seconds"]))
    path = files(__name__) / f"{name}.txt" if name in BUNDLED else Path(name)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ValueError(f"prompts: {name} is neither {', '.join(BUNDLED)} nor a readable file: {error}") from error
    texts = [line.strip() for line in lines if line.strip()]
    if not texts:
        raise ValueError(f"prompts: there is no text in {name}")
    return texts


def load_classes(names: Sequence[str]) -> tuple[TextClass, ...]:
    """Reads classes written as `[NAME=]TEXTS[@WEIGHT]`, such as `short=en@9` and `long=en:20s`.

    Raises:
        ValueError: a class has no texts, or two have the same name.
    """
    classes = []
    for written in names:
        match = CLASS.fullmatch(written)
        if match is None:
            raise ValueError(f"prompts: {written!r} is not [NAME=]TEXTS[@WEIGHT]")
        texts = tuple(load_prompts(match["texts"]))
        classes.append(TextClass(match["name"] or match["texts"], texts, int(match["weight"] or 1)))
    if len({each.name for each in classes}) < len(classes):
        raise ValueError("prompts: two classes of texts have the same name; write NAME=TEXTS")
    return tuple(classes)


def texts_of(language: str, seconds: float) -> list[str]:
    """Makes texts of about `seconds` of speech: bundled sentences in a row, each text with another first sentence."""
    sentences = load_prompts(language)
    wanted = seconds * CHARACTERS_PER_S[language]
    least, most = wanted * (1 - TOLERANCE), wanted * (1 + TOLERANCE)
    texts = [
        _joined(sentences[start:] + sentences[:start], BETWEEN[language], least, most)
        for start in range(len(sentences))
    ]
    fitting = [text for text in dict.fromkeys(texts) if len(text) >= least]
    if not fitting:
        raise ValueError(f"prompts: the sentences of {language} make no texts of {seconds:g} s of speech")
    return fitting


def _joined(sentences: Sequence[str], between: str, least: float, most: float) -> str:
    """Joins sentences, without those that would make the text too long, until it is long enough."""
    text = ""
    rounds = math.ceil(least / sum(map(len, sentences)))
    for sentence in [*sentences] * rounds:
        longer = text + between + sentence if text else sentence
        if len(longer) <= most:
            text = longer
        elif not text:
            break  # another text begins with the sentence that would be next
        if len(text) >= least:
            break
    return text


class PromptOrder:
    """Endless order of texts. Each comes once before any comes again. The same seed gives the same order."""

    def __init__(self, texts: Sequence[str], seed: str) -> None:
        self._texts = list(texts)
        random.Random(seed).shuffle(self._texts)

    def __getitem__(self, index: int) -> str:
        return self._texts[index % len(self._texts)]


class ClassOrder:
    """Endless order of (class, text). Classes come as often as their weights say, and texts as in a PromptOrder each.

    The same seed gives the same order, wherever an index is asked for.
    """

    def __init__(self, classes: Sequence[TextClass], seed: str) -> None:
        self._texts = {each.name: PromptOrder(each.texts, seed) for each in classes}
        self._names = [each.name for each in classes for _ in range(each.weight * ROUNDS)]
        random.Random(seed).shuffle(self._names)
        self._in_period = {each.name: each.weight * ROUNDS for each in classes}
        seen = dict.fromkeys(self._texts, 0)
        self._ranks = []
        for name in self._names:
            self._ranks.append(seen[name])
            seen[name] += 1

    def __getitem__(self, index: int) -> tuple[str, str]:
        period, place = divmod(index, len(self._names))
        name = self._names[place]
        return name, self._texts[name][period * self._in_period[name] + self._ranks[place]]
