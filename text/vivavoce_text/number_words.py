"""English words for digits: each function takes a written number and returns how it is said.

Every function raises ValueError for a text that it cannot read, for example "0th" or "IVI".
"""

import re
from collections.abc import Callable
from typing import Final

UNITS = [
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
]
TENS = ["zero", "ten", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
SCALES = ["", "thousand", "million", "billion", "trillion", "quadrillion"]
ORDINALS = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
}
ROMAN = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}
ROMAN_FORM = re.compile(r"M{0,3}(?:CM|CD|D?C{0,3})(?:XC|XL|L?X{0,3})(?:IX|IV|V?I{0,3})")
SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻₀₁₂₃₄₅₆₇₈₉", "0123456789-0123456789")
SEPARATORS = re.compile(r"[,\s'_]")
RUNS = re.compile(r"\d+|[^\W\d_]+")
MOST_CARDINAL_DIGITS = 18
"""Longest whole number that is said as one. Nobody follows a longer one, so its digits are said."""


def cardinal(written: str) -> str:
    """A whole number: "1,204" is "one thousand two hundred four"."""
    text = SEPARATORS.sub("", written)
    if len(text) > MOST_CARDINAL_DIGITS or (len(text) > 1 and text[0] == "0"):
        return digits(text)
    number = int(text)
    if number == 0:
        return "zero"
    groups = []
    for scale in SCALES:
        number, group = divmod(number, 1000)
        if group:
            groups.append(f"{_below_thousand(group)} {scale}".rstrip())
        if not number:
            break
    return " ".join(reversed(groups))


def whole(written: str) -> str:
    """A whole number without regard to leading zeros and to dots between thousands: "05" is "five"."""
    return cardinal(written.replace(".", "").lstrip("0") or "0")


def _below_thousand(number: int) -> str:
    hundreds, rest = divmod(number, 100)
    words = [f"{UNITS[hundreds]} hundred"] if hundreds else []
    if rest:
        words.append(_below_hundred(rest))
    return " ".join(words)


def _below_hundred(number: int) -> str:
    if number < 20:
        return UNITS[number]
    tens, units = divmod(number, 10)
    return f"{TENS[tens]}-{UNITS[units]}" if units else TENS[tens]


def number(written: str) -> str:
    """A number with or without a decimal point: "1,000.50" is "one thousand point five zero"."""
    whole, point, decimals = written.partition(".")
    said = [cardinal(whole)] if whole else []
    return " ".join([*said, "point", digits(decimals)]) if point else " ".join(said)


def ordinal(written: str) -> str:
    """The ordinal of a whole number: "22" is "twenty-second"."""
    words = whole(written)
    before, last = re.fullmatch(r"(.*?)([a-z]+)", words).groups()  # type: ignore[union-attr]
    if last == "zero":
        raise ValueError("there is no ordinal of zero")
    return before + (ORDINALS.get(last) or (last[:-1] + "ieth" if last.endswith("y") else last + "th"))


def digits(written: str) -> str:
    """Digits one by one; all other characters are left out."""
    said = " ".join(UNITS[int(char)] for char in written if char.isdecimal())
    if not said:
        raise ValueError(f"{written!r} has no digit")
    return said


def phone(written: str) -> str:
    """A telephone number: its digits one by one, its groups between commas."""
    groups = ", ".join(digits(group) for group in re.findall(r"\d+", written))
    return f"plus {groups}" if written.lstrip().startswith("+") else groups


def spelled_phone(written: str) -> str:
    """A telephone number that has words among its digits: "1-800-FLOWERS"."""
    groups = re.findall(r"\d+|[^\W\d_]+", written)
    return ", ".join(digits(group) if group.isdecimal() else group for group in groups)


def year(written: str) -> str:
    """A year: "1999" is "nineteen ninety-nine", "2008" "two thousand eight", "'05" "oh five"."""
    text = written.lstrip("'")
    if len(text) != 4:
        return two_digits(text) if len(text) == 2 else pairs(text)
    if text[0] != "0" and text[1:3] == "00":
        return cardinal(text)
    return pairs(text)


def two_digits(written: str) -> str:
    """Two digits as in a time or a year: "05" is "oh five", "00" "oh oh"."""
    if len(written) == 2 and written[0] == "0":
        return "oh oh" if written == "00" else f"oh {UNITS[int(written[1])]}"
    return cardinal(written)


def pairs(written: str) -> str:
    """A number as a name: "747" is "seven forty-seven", "1204" "twelve oh four", "500" "five hundred"."""
    text = SEPARATORS.sub("", written)
    if not 3 <= len(text) <= 4 or text[0] == "0":
        return cardinal(text) if len(text) < 3 else digits(text)
    if text.endswith("000"):
        return cardinal(text)
    before, last = text[:-2], text[-2:]
    return f"{cardinal(before)} hundred" if last == "00" else f"{cardinal(before)} {two_digits(last)}"


def decade(written: str) -> str:
    """A decade or a century: "1990" is "nineteen nineties", "80" "eighties", "1800" "eighteen hundreds"."""
    words = "two thousand" if written == "00" else year(written) if len(written) == 4 else cardinal(written)
    return words[:-1] + "ies" if words.endswith("y") else words + "s"


def dotted(written: str) -> str:
    """A version: its parts between "point"."""
    return " point ".join(cardinal(part) for part in written.split("."))


def address(written: str) -> str:
    """An address of a network: its parts between "dot"."""
    return " dot ".join(pairs(part) for part in written.split("."))


def listed(written: str) -> str:
    """Several numbers, whatever stands between them: "4-4-2" is "four four two"."""
    return " ".join(cardinal(part) for part in re.findall(r"\d+", written))


def denominator(written: str) -> str:
    """The denominator of one part: "2" is "half", "4" "quarter"."""
    return {"2": "half", "4": "quarter"}.get(written) or ordinal(written)


def denominators(written: str) -> str:
    """The denominator of several parts: "2" is "halves", "3" "thirds"."""
    return "halves" if written == "2" else denominator(written) + "s"


def roman(written: str) -> str:
    """A roman numeral as a number: "IV" is "four"."""
    return cardinal(str(roman_value(written.upper())))


def roman_title(written: str) -> str:
    """A roman numeral as part of a name: "IV" is "Four"."""
    return roman(written).title()


def roman_year(written: str) -> str:
    """A roman numeral as a year: "MCMXCIV" is "nineteen ninety-four"."""
    return year(str(roman_value(written)))


def roman_ordinal(written: str) -> str:
    """A roman numeral as an ordinal: "IV" is "Fourth"."""
    return ordinal(str(roman_value(written))).title()


def roman_value(written: str) -> int:
    if not written or ROMAN_FORM.fullmatch(written) is None:
        raise ValueError(f"{written!r} is no roman numeral")
    values = [ROMAN[letter] for letter in written]
    following = [*values[1:], 0]
    return sum(-value if value < after else value for value, after in zip(values, following, strict=True))


def power(written: str) -> str:
    """An exponent or an index in small digits above or below the line."""
    text = written.translate(SUPERSCRIPTS)
    return ("minus " if text[0] == "-" else "") + cardinal(text.lstrip("-"))


def code(written: str) -> str:
    """A code of letters and digits: "SW1A" is "SW one A". Up to two digits are a number, more are said one by one."""
    return " ".join(
        run if not run.isdecimal() else cardinal(run) if len(run) < 3 else digits(run) for run in RUNS.findall(written)
    )


def letters(written: str) -> str:
    """Letters with blanks between them."""
    return " ".join(char for char in written if char.isalnum())


HANZI = str.maketrans("0123456789.", "零一二三四五六七八九点")


def hanzi(written: str) -> str:
    """Chinese and Japanese: digits one by one, with 点 for a dot."""
    return written.translate(HANZI)


def chinese(written: str) -> str:
    """A whole number of up to four digits in Chinese: "35" is 三十五, "2005" is 两千零五."""
    if not 1 <= len(written) <= 4 or written[0] == "0":
        raise ValueError(f"{written!r} is no Chinese number of up to four digits")
    said = ""
    for place, digit in zip("千百十"[4 - len(written) :] + " ", written, strict=True):
        if digit != "0":
            said += hanzi(digit) + place.strip()
        elif not said.endswith("零"):
            said += "零"
    said = said.rstrip("零").removeprefix("一" if said.startswith("一十") else "")
    return said.replace("二", "两", 1) if said[:2] in ("二百", "二千") else said


def plain(written: str) -> str:
    """A number without the signs between its thousands, for a grammar that reads it."""
    return SEPARATORS.sub("", written)


READERS: Final[dict[str, Callable[[str], str]]] = {
    reader.__name__: reader
    for reader in (
        *(cardinal, whole, number, ordinal, digits, phone, spelled_phone, year, two_digits, pairs, decade),
        *(dotted, address, listed, denominator, denominators, power, code, letters),
        *(roman, roman_title, roman_year, roman_ordinal, hanzi, chinese, plain),
    )
}
"""Readers of a rule's slot, by name."""
