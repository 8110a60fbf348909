"""Signs of arithmetic and typography in English words, as part of the stage names."""

import re
from functools import cache

from vivavoce_text.tables import rows_of
from vivavoce_text.traced import Traced

RAISED = re.compile(r"(?P<base>[A-Za-z]+|\d|\))(?P<power>[\u00b2\u00b3\u00b9\u2070-\u207f\u207b]+)")
RAISED_DIGITS = str.maketrans(
    "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079\u207b\u207a\u207f", "0123456789-+n"
)
LOWERED = re.compile("[\u2080-\u2089]+")
LOWERED_DIGITS = str.maketrans("\u2080\u2081\u2082\u2083\u2084\u2085\u2086\u2087\u2088\u2089", "0123456789")
UNITS_OF_POWERS = frozenset({"m", "km", "cm", "mm", "dm", "nm", "ft", "in", "mi", "yd", "s", "sec", "ha"})
POWER = re.compile(r"(?<=[\w)])\^(?:\{([^{}]*)\}|(-?\w+(?:\.\d+)?))")
CHARGES = {"+": "plus", "-": "minus"}
POWER_WORDS = {"2": "squared", "3": "cubed"}
DEGREES = re.compile(r"(?P<number>\d[\d.,]*)[ ]?[\u00b0\u00ba](?![ ]?[CFKcf]\b|[^\W\d])")
FACTOR = re.compile(
    r"(?<=\d)(?=[xyzn](?:[\u00b2\u00b3^]|[ ]?[-+=*<>][ ]?[\w(]))|(?<=[-+=*<>] \d)(?=[xyzn]\b)"
    r"|(?<=[\u00bc-\u00be\u2150-\u215e])(?=[A-Za-z])"
)
"""The place between a number and the variable that it multiplies: 2x + 1."""
MENU = re.compile(r"(?<=[a-z]) (?:>|\u2192|\u203a|->) (?=[A-Z][a-z])")
LEFTOVER = re.compile(r"(?<![\w-])-{2,}|-{2,}(?![\w-])|[ ]?[*^~|\\{}<>=_#`]+(?=\s|$)|[*^~|\\{}<>=_#`\u00a6]")
VARIABLE = re.compile(r"(?<![\w$])\$(?=[A-Za-z_])")
"""The sign of a variable's name, as in $HOME."""
AT = re.compile(r"(?<=\s)@(?=\s)|(?<=\w)[ ]?@[ ]?(?=[$\u00a3\u20ac]?\d)")
BULLET = re.compile(r"[ ]*[\u2022\u25cf\u25aa\u25e6\u2023][ ]+|(?<=[A-Za-z.])[ ]+\u00b7[ ]+(?=[A-Za-z])")
VALUE_BEFORE = re.compile(r"(?:[\w)%\u00b0\u00b2\u00b3\u00bc-\u00be\u221e'])\Z")
VALUE_BEHIND = re.compile(r"[-+\u2212\u00b1~]?[$\u00a3\u20ac]?[\w(.\u221a\u221e]")
SHORT_VALUE_BEFORE = re.compile(r"(?:\d[\d.,]*|[)\u00b2\u00b3]|(?<![^\W_])[^\W\d_])\Z")
NUMBER_BEHIND = re.compile(r"[$\u00a3\u20ac]?[.]?\d")
SHORT_SIGNS = frozenset("*/-\u00b7\u00d7^")
"""Signs that stand between numbers and single letters only. Between words they mean something else."""
NEAR_CHARS = 16
WIDE_PAIR = re.compile(r"\d{3,}\Z")


def said(text: Traced) -> Traced:
    """The text with signs in words, and without those that have none."""
    text = text.replaced(FACTOR, " ")
    if not text.text.isascii():
        text = text.replaced(RAISED, _raised).replaced(LOWERED, _lowered).replaced(DEGREES, _degrees)
        text = text.replaced(BULLET, ", ")
    text = text.replaced(MENU, ", ").replaced(POWER, lambda match: _power(match[1] or match[2]))
    text = text.replaced(_pattern(), _sign).replaced(AT, " at ")
    text = text.replaced(VARIABLE, "")
    return text.replaced(LEFTOVER, _blank)


def _near(match: re.Match[str]) -> tuple[str, str]:
    """The characters at both sides of a match, as many as a rule looks at."""
    start, end = match.span()
    return match.string[max(0, start - NEAR_CHARS) : start], match.string[end : end + NEAR_CHARS]


def _raised(match: re.Match[str]) -> str | None:
    """x² → x squared. The power of a unit belongs to the unit."""
    base, before = match["base"], _near(match)[0]
    if base in UNITS_OF_POWERS and (len(base) > 1 or re.search(r"(?:\d|half|of a|per|square) ?\Z", before)):
        return None
    return base + _power(match["power"].translate(RAISED_DIGITS))


def _power(power: str) -> str:
    if power in CHARGES:
        return f" {CHARGES[power]} "
    return " " + (POWER_WORDS.get(power) or f"to the power of {power.replace('-', 'minus ')}") + " "


def _lowered(match: re.Match[str]) -> str:
    """CO₂ → CO2, x₁ → x 1."""
    variable = re.search(r"(?<![^\W_])[a-z]\Z", _near(match)[0])
    return " " * bool(variable) + match[0].translate(LOWERED_DIGITS)


def _degrees(match: re.Match[str]) -> str:
    behind = match.string[match.end() : match.end() + 1]
    return f"{match['number']} degree{'s' * (match['number'] != '1')}{' ' * behind.isdigit()}"


def _sign(match: re.Match[str]) -> str | None:
    sign = match["sign"]
    before, behind = _near(match)
    left, right = before[len(before.rstrip(" ")) :] + match["left"], match["right"]
    before = before.rstrip(" ")  # a sign before this one has taken the blank
    is_bound = bool(left) and not right and not SHORT_VALUE_BEFORE.search(before)
    ways = _table()[sign]
    word = None
    if "letter" in ways:
        return _letter(match, ways["letter"])
    if is_bound and "before" in ways and NUMBER_BEHIND.match(behind):
        word = ways["before"]
    elif VALUE_BEFORE.search(before) and VALUE_BEHIND.match(behind):
        word = _between(sign, before, behind, bool(left) == bool(right), ways, match.string)
    if word is None and "before" in ways and NUMBER_BEHIND.match(behind) and not before.endswith(("<", ">")):
        word = ways["before"]
    if word is None:
        word = ways.get("anywhere")
    if word is None:
        return None
    return f" {word} " if word else left or right


def _between(sign: str, before: str, behind: str, even: bool, ways: dict[str, str], text: str) -> str | None:
    """The word for a sign between two values, or None if it does not stand between values."""
    if sign in SHORT_SIGNS:
        if not SHORT_VALUE_BEFORE.search(before) or not re.match(r"[-(]?(?:\d|\w(?!\w)|\()", behind):
            return None
        if sign == "\u00d7" and WIDE_PAIR.search(before) and re.match(r"\d{3,}", behind):
            return "by"
    if "solved" in ways:
        return ways["solved"] if "=" in text and even else None
    if sign == "+" and not even:
        return None
    return ways.get("between")


def _letter(match: re.Match[str], word: str) -> str | None:
    """A Greek letter that is a symbol: no part of a Greek word, and no unit behind a number."""
    sign = match["sign"]
    before, behind = _near(match)
    is_unit = sign in "\u00b5\u03bc" and re.match(r"[A-Za-z]", behind) and not match["right"]
    is_ohm = sign == "\u03a9" and re.search(r"\d ?[kM]?\Z", before + match["left"])
    near = before[-1:] * (not match["left"]) + behind[:1] * (not match["right"])
    if is_unit or is_ohm or re.search("[\u0370-\u03ff]", near):
        return None
    before_word = match["left"] or " " * before[-1:].isalnum()
    return before_word + word + (match["right"] or " " * behind[:1].isalnum())


def _blank(match: re.Match[str]) -> str:
    before, behind = _near(match)
    return " " * (before[-1:].isalnum() and behind[:1].isalnum())


@cache
def _table() -> dict[str, dict[str, str]]:
    table: dict[str, dict[str, str]] = {}
    for sign, word, where in rows_of("en", "signs"):
        table.setdefault(sign, {})[where] = word
    return table


@cache
def _pattern() -> re.Pattern[str]:
    signs = "|".join(sorted(map(re.escape, _table()), key=len, reverse=True))
    return re.compile(rf"(?P<left>[ ]*)(?P<sign>{signs})(?P<right>[ ]*)")
