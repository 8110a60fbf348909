"""Reads numbers of Chinese and Japanese with the grammars of wetext (Apache-2.0), which are weighted transducers.

wetext is loaded at the first number, which takes 0.6 s and 50 MB. Without the package, numbers stay as they are.
"""

import logging
import re
from collections.abc import Callable
from difflib import SequenceMatcher
from functools import cache, lru_cache

from vivavoce_text.number_words import hanzi
from vivavoce_text.packages import optional
from vivavoce_text.profile import Context
from vivavoce_text.rules import apply_rules
from vivavoce_text.traced import Edit, Traced

log = logging.getLogger(__name__)

MOST_CHARS = 100
"""Longest text of one call, in characters. A call holds the interpreter's lock, and its time grows with the length."""
MOST_DIGITS = 64
"""Most digits of a piece that the grammar reads. In a piece with more of them, each is said alone."""
MOST_NUMBERS = 20
"""Most runs of digits of a piece that the grammar reads, because signs and letters between them take it long."""
DIGIT = re.compile(r"[0-9]")
NUMBER = re.compile(r"[0-9]+")
BESIDE = r"[^\s\"'\\{}\d]"
EXPRESSION = re.compile(rf"[A-Za-z]*{BESIDE}{{0,4}}\d+(?:{BESIDE}{{0,12}}\d+)*{BESIDE}{{0,8}}[A-Za-z]*")
"""Text near a number that the grammar knows what to do with. Quotes and brackets it changes or fails at.

A sign or a word before a number has up to four characters, a unit behind it up to eight.
"""
TOKEN = re.compile(r"[A-Za-z]+|.", re.DOTALL)
SPOKEN = re.compile(r"[^\w\s,;!?()]|\d|[A-Za-z\u00b2\u00b3]")
"""Signs that have a reading. A change of anything else is a fault of the grammar."""


def read_numbers(text: Traced, context: Context) -> Traced:
    """The text with its numbers in words of the context's language, "zh" or "ja"."""
    digits = len(DIGIT.findall(text.text))
    if not digits:
        return text
    if digits > MOST_DIGITS or len(NUMBER.findall(text.text)) > MOST_NUMBERS:
        return text.replaced(DIGIT, lambda match: hanzi(match[0]))
    text = apply_rules(text, context, "numbers")
    edits = []
    for match in EXPRESSION.finditer(text.text):
        for start in range(match.start(), match.end(), MOST_CHARS):
            end = min(start + MOST_CHARS, match.end())
            edits += _edits(text.text[start:end], start, context.language)
    return text.edited(edits)


def _edits(written: str, at: int, language: str) -> list[Edit]:
    """The changes of numbers in an expression that begins at the character `at`."""
    spoken = _read(written, language)
    old, new = TOKEN.findall(written), TOKEN.findall(spoken)
    bounds = [at]
    for token in old:
        bounds.append(bounds[-1] + len(token))
    changes = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    return [
        Edit(bounds[i1], bounds[i2], "".join(new[j1:j2]))
        for kind, i1, i2, j1, j2 in changes
        if kind != "equal" and (i1 == i2 or SPOKEN.search("".join(old[i1:i2])))
    ]


@lru_cache(maxsize=512)
def _read(written: str, language: str) -> str:
    """The text as the grammar says it; the text itself when the grammar fails."""
    normalize = _grammar_of(language)
    if normalize is None or not DIGIT.search(written):
        return written
    try:
        return normalize(written) or written
    except Exception:  # The grammar raises AssertionError and others for texts that it does not know.
        log.debug("the grammar of %s cannot read a text of %d characters", language, len(written))
        return written


@cache
def _grammar_of(language: str) -> Callable[[str], str] | None:
    wetext = optional("wetext")
    if wetext is None:
        return None
    normalize: Callable[[str], str] = wetext.Normalizer(
        lang=language,
        operator="tn",
        fix_contractions=False,
        traditional_to_simple=False,
        full_to_half=False,
        remove_interjections=False,
        remove_puncts=False,
        remove_erhua=False,
    ).normalize
    return normalize
