"""Other ways to write a sentence that are spoken alike: curly quotes, capitals, no punctuation."""

# Quotes and dashes that look like others stand here on purpose.
# ruff: noqa: RUF001

from __future__ import annotations

import re
from random import Random

WORD = re.compile(r"[A-Za-z']{3,}")


def curly(text: str) -> str:
    """Quotes and apostrophes as a word processor writes them."""
    text = re.sub(r'(^|[\s(\[—–-])"', r"\1“", text).replace('"', "”")
    return re.sub(r"(^|[\s(\[—–“-])'(?=\w)", r"\1‘", text).replace("'", "’")


def in_capitals(text: str, r: Random) -> str:
    """A sentence in capitals, or some of its words, or every word with a capital."""
    way = r.random()
    if way < 0.4:
        return text.upper()
    if way < 0.55:
        return re.sub(r"(?<![\w'])[a-z](?=\w)", lambda m: m[0].upper(), text)
    words = [m.span() for m in WORD.finditer(text)]
    for start, end in r.sample(words, min(len(words), r.randint(1, 3))):
        text = text[:start] + text[start:end].upper() + text[end:]
    return text


def careless(text: str, r: Random) -> str:
    """A sentence as people type in a chat: no capitals, no full stop, often no commas."""
    text = text.rstrip(".!")
    if r.random() < 0.7:
        text = text.lower()
    return text.replace(",", "") if r.random() < 0.4 else text


def with_capital_i(text: str) -> str:
    """The word "i" as "I", for the dictionary."""
    return re.sub(r"(?<![\w'])i(?=$|[\s,!?']|\.)", "I", text)


def with_digits_apart(text: str) -> str:
    """The digits of short telephone numbers apart, which a normaliser takes for a range: 555-0142."""
    return re.sub(r"(?<![\d-])(\d{3})-(\d{4})\b", lambda m: f"{' '.join(m[1])}, {' '.join(m[2])}", text)
