"""Stages units and numbers: measures, money, dates, times, codes, abbreviations and signs are said as words.

English is read by tables of rules, Chinese and Japanese by a grammar of numbers. Other languages stay as they are.
"""

import re
from functools import cache

from vivavoce_text.grammar import read_numbers
from vivavoce_text.number_words import cardinal
from vivavoce_text.profile import Context
from vivavoce_text.rules import apply_rules, term_of
from vivavoce_text.traced import Traced

NUMBER = re.compile(r"[\d½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞⅐⅑⅒₀-₉²³¹⁰-⁹]")
DIGITS = re.compile(r"\d+")
MOST_NUMBERS = 60
"""Most runs of digits of a piece that the rules read. In a piece with more of them, each is said alone.

The time of the rules grows with the numbers. Prose has fewer in the 200 characters of a piece.
"""
LETTER = re.compile(r"[^\W\d_]")
GRAMMAR_LANGUAGES = ("zh", "ja")
MEASURE_TABLES = ("measures",)
WORD_TABLES = ("roman", "abbreviations")
NUMBER_TABLES = ("money", "times", "dates", "codes", "numbers")


def apply_units(text: Traced, context: Context) -> Traced:
    """Reads numbers that have a unit. In languages with a grammar, `apply` does it."""
    if context.language != "en" or not NUMBER.search(text.text) or is_crowded(text.text):
        return text
    return apply_rules(text, context, *MEASURE_TABLES)


def apply(text: Traced, context: Context) -> Traced:
    """Reads all other numbers, and the abbreviations and signs beside words and numbers."""
    if context.language in GRAMMAR_LANGUAGES:
        return read_numbers(text, context)
    if context.language != "en":
        return text
    if is_crowded(text.text):
        return text.replaced(DIGITS, _alone)
    if _written_word().search(text.text):
        text = apply_rules(text, context, *WORD_TABLES)
    if NUMBER.search(text.text):
        text = apply_rules(text, context, *NUMBER_TABLES)
    return text


def is_crowded(text: str) -> bool:
    """True if a piece has more numbers than the rules read."""
    return len(DIGITS.findall(text)) > MOST_NUMBERS


def _alone(match: re.Match[str]) -> str:
    """A number, with a blank to a letter beside it."""
    before = LETTER.match(match.string, match.start() - 1) if match.start() else None
    return f"{' ' if before else ''}{cardinal(match[0])}{' ' if LETTER.match(match.string, match.end()) else ''}"


@cache
def _written_word() -> re.Pattern[str]:
    """A sign of texts to which a rule of WORD_TABLES may apply. Most pieces of prose have none."""
    return re.compile(term_of("en", "written_word"))
