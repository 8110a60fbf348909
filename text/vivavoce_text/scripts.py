"""Scripts of letters, and which of them a language is written in."""

import re
import unicodedata
from collections import Counter
from collections.abc import Collection
from functools import lru_cache

NAMES = {
    "LATIN": "Latin",
    "FULLWIDTH LATIN": "Latin",
    "FEMININE ORDINAL": "Latin",
    "MASCULINE ORDINAL": "Latin",
    "CJK": "Chinese",
    "IDEOGRAPHIC": "Chinese",
    "BOPOMOFO": "Chinese",
    "HIRAGANA": "Japanese",
    "KATAKANA": "Japanese",
    "HALFWIDTH KATAKANA": "Japanese",
    "VERTICAL KANA": "Japanese",
    "HANGUL": "Korean",
    "HALFWIDTH HANGUL": "Korean",
    "CYRILLIC": "Cyrillic",
    "GREEK": "Greek",
    "MICRO": "",
    "MODIFIER": "",
    "OHM": "",
}
"""Beginnings of letters' Unicode names → name of the script for people; "" for letters that all scripts share."""
LETTERLIKE = re.compile(r"(?:MATHEMATICAL|SCRIPT|DOUBLE-STRUCK|BLACK-LETTER|KELVIN|ANGSTROM|TURNED|ROTATED|ITALIC)\b")
"""Beginnings of names of Latin letters in a fixed style, and of Greek ones, which have Greek letters' names."""
GREEK_NAME = re.compile(r"(?:ALPHA|BETA|GAMMA|DELTA|EPSILON|THETA|LAMDA|SIGMA|OMEGA|PHI|PI|RHO|CHI|PSI|XI|TAU)\b")
NAMED = re.compile(r"(.+?)(?: (?:CAPITAL|SMALL|FINAL))? (?:LETTER|SYLLABLE|VOWEL|IDEOGRAPH|HIEROGLYPH|SIGN|LIGATURE)\b")
"""The name of a letter of any other script, which begins with the script's."""
LANGUAGE_SCRIPTS = {
    "zh": ("Chinese",),
    "ja": ("Japanese", "Chinese"),
    "ko": ("Korean", "Chinese"),
    "ru": ("Cyrillic",),
    "uk": ("Cyrillic",),
    "bg": ("Cyrillic",),
    "sr": ("Cyrillic",),
    "el": ("Greek",),
    "ar": ("Arabic",),
    "fa": ("Arabic",),
    "ur": ("Arabic",),
    "he": ("Hebrew",),
    "hi": ("Devanagari",),
    "th": ("Thai",),
}
"""Scripts of a language. All languages that are not here are written in Latin letters, and all have Latin ones too."""


@lru_cache(maxsize=8192)
def script_of(char: str) -> str:
    """The script of a letter: "Latin", "Chinese", "Thai"; "" for other characters and for letters that all share."""
    if not char.isalpha():
        return ""
    name = unicodedata.name(char, "")
    for start, script in NAMES.items():
        if name.startswith(start):
            return script
    if LETTERLIKE.match(name):
        return "Greek" if GREEK_NAME.search(name) else "Latin"
    named = NAMED.match(name)
    return (named[1] if named else name.split(" ")[0]).capitalize()


def scripts_of(language: str) -> frozenset[str]:
    """The scripts that a text in the language (ISO 639-1) may contain."""
    return frozenset({"Latin", *LANGUAGE_SCRIPTS.get(language, ())})


def foreign_letters(text: str, scripts: Collection[str]) -> Counter[str]:
    """Counts by script of the letters of other scripts than `scripts`, without the letters that all scripts share."""
    counts = Counter(map(script_of, text))
    return Counter({script: count for script, count in counts.items() if script and script not in scripts})


def language_of(text: str) -> str:
    """The language that the script of a text shows: "ja", "zh", "ko", or "" if it could be several."""
    scripts = {script_of(char) for char in text}
    for script, language in (("Japanese", "ja"), ("Korean", "ko"), ("Chinese", "zh")):
        if script in scripts:
            return language
    return ""
