"""Texts to be spoken: bundled English and Chinese sentences, or a file with one text a line.

en.txt and zh.txt were written for this project and are in the public domain (CC0). Each text is a sentence of a few
seconds, as in the usual test sets (Seed-TTS evaluation: Common Voice, DiDiSpeech).
"""

import random
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

BUNDLED = ("en", "zh")


def load_prompts(name: str) -> list[str]:
    """Reads the texts of `en`, `zh`, or a file at this path. Raises ValueError if there are none."""
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
    """Endless order of texts. Each comes once before any comes again. The same seed gives the same order."""

    def __init__(self, texts: Sequence[str], seed: str) -> None:
        self._texts = list(texts)
        random.Random(seed).shuffle(self._texts)

    def __getitem__(self, index: int) -> str:
        return self._texts[index % len(self._texts)]
