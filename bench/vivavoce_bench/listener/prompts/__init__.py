"""Texts to be spoken: bundled English and Chinese sentences, or a file with one text a line.

en.txt and zh.txt were composed for this project and are given to the public domain (CC0). Each is a sentence of a few
seconds, as in the sets that are usual for this (Seed-TTS evaluation: Common Voice, DiDiSpeech).
"""

import random
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

BUNDLED = ("en", "zh")


def load_prompts(name: str) -> list[str]:
    """`en`, `zh`, or the path of a file. Raises ValueError if there is no text in it."""
    path = files(__name__) / f"{name}.txt" if name in BUNDLED else Path(name)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ValueError(f"prompts: {name} is neither {', '.join(BUNDLED)} nor a readable file: {error}") from error
    texts = [line.strip() for line in lines if line.strip()]
    if not texts:
        raise ValueError(f"prompts: there is no text in {name}")
    return texts


class PromptOrder:
    """An endless order of texts in which each comes once before any comes again; the same for the same seed."""

    def __init__(self, texts: Sequence[str], seed: str) -> None:
        self._texts = list(texts)
        random.Random(seed).shuffle(self._texts)

    def __getitem__(self, index: int) -> str:
        return self._texts[index % len(self._texts)]
