"""Replaces written forms by words that can be read aloud, for models that cannot read the forms. The words are English.

Each step is a pure function of text. A request names the steps that it wants, or asks for all.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, get_args

from markdown_it import MarkdownIt
from markdown_it.token import Token

Step = Literal["markdown", "urls", "emails", "phone_numbers", "units", "emoji"]
ALL_STEPS: tuple[Step, ...] = get_args(Step)
"""All steps in the order of their application. A step may leave text that a later one changes."""

MARKDOWN = MarkdownIt("commonmark").enable(["table", "strikethrough"])
URL = re.compile(r"(?:https?://|www\.)[^\s<>\"'()\[\]{}]+", re.IGNORECASE)
EMAIL = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
PHONE = re.compile(
    r"(?<![\w.])(?:\+\d{1,3}[ .-]?(?:\(\d{1,4}\)[ .-]?)?\d{2,4}(?:[ .-]?\d{2,4}){1,4}"
    r"|\(\d{3}\) ?\d{3}-\d{4}|\d{3}([.-])\d{3}\1\d{4})(?![\w-])"
)
EMOJI = re.compile("[\U0001f000-\U0001faff\u231a-\u23ff\u2600-\u27bf\u2b00-\u2bff\u200d\ufe0f\u20e3]")
SYMBOLS = {".": "dot", "/": "slash", "-": "dash", "_": "underscore", "@": "at", ":": "colon", "#": "hash"}
UNITS = {
    "km/h": ("kilometer per hour", "kilometers per hour"),
    "mph": ("mile per hour", "miles per hour"),
    "km": ("kilometer", "kilometers"),
    "cm": ("centimeter", "centimeters"),
    "mm": ("millimeter", "millimeters"),
    "m": ("meter", "meters"),
    "kg": ("kilogram", "kilograms"),
    "mg": ("milligram", "milligrams"),
    "g": ("gram", "grams"),
    "lb": ("pound", "pounds"),
    "lbs": ("pound", "pounds"),
    "oz": ("ounce", "ounces"),
    "ml": ("milliliter", "milliliters"),
    "l": ("liter", "liters"),
    "°C": ("degree Celsius", "degrees Celsius"),
    "°F": ("degree Fahrenheit", "degrees Fahrenheit"),
    "%": ("percent", "percent"),
    "ms": ("millisecond", "milliseconds"),
    "min": ("minute", "minutes"),
    "h": ("hour", "hours"),
    "s": ("second", "seconds"),
    "Hz": ("hertz", "hertz"),
    "kHz": ("kilohertz", "kilohertz"),
    "MHz": ("megahertz", "megahertz"),
    "GHz": ("gigahertz", "gigahertz"),
    "kB": ("kilobyte", "kilobytes"),
    "KB": ("kilobyte", "kilobytes"),
    "MB": ("megabyte", "megabytes"),
    "GB": ("gigabyte", "gigabytes"),
    "TB": ("terabyte", "terabytes"),
    "kW": ("kilowatt", "kilowatts"),
    "W": ("watt", "watts"),
    "V": ("volt", "volts"),
}
_LONGEST_FIRST = "|".join(re.escape(unit) for unit in sorted(UNITS, key=len, reverse=True))
MEASURE = re.compile(rf"(?<![\w.,])(\d+(?:[.,]\d+)*) ?({_LONGEST_FIRST})(?![\w/])")


def normalize(text: str, steps: Iterable[Step]) -> str:
    """The text after the named steps, with single spaces where a step left several."""
    wanted = set(steps)
    for step in ALL_STEPS:
        if step in wanted:
            text = _STEPS[step](text)
    return re.sub(r"[ \t]{2,}", " ", text).strip() if wanted else text


def without_markdown(text: str) -> str:
    """The words of a Markdown text. Headings and list items become sentences."""
    return "\n".join(_blocks(MARKDOWN.parse(text)))


def _blocks(tokens: list[Token]) -> Iterator[str]:
    ends_as_sentence = False
    for token in tokens:
        match token.type:
            case "heading_open" | "list_item_open" | "th_open" | "td_open":
                ends_as_sentence = True
            case "inline":
                words = "".join(_words(token.children or []))
                needs_stop = ends_as_sentence and words and words[-1].isalnum()
                yield f"{words}." if needs_stop else words
                ends_as_sentence = False
            case "fence" | "code_block":
                yield token.content.strip()


def _words(tokens: list[Token]) -> Iterator[str]:
    for token in tokens:
        match token.type:
            case "text" | "code_inline":
                yield token.content
            case "softbreak" | "hardbreak":
                yield "\n"
            case "image":
                yield "".join(_words(token.children or []))


def spelled_urls(text: str) -> str:
    """https://www.example.com/docs?x=1 → example dot com slash docs."""

    def spell(match: re.Match[str]) -> str:
        url = match.group()
        bare = url.rstrip(".,;:!?")
        address = re.sub(r"^(?:https?://)?(?:www\.)?", "", bare, flags=re.IGNORECASE)
        return _spell_symbols(re.split(r"[?#]", address)[0].rstrip("/")) + url[len(bare) :]

    return URL.sub(spell, text)


def spelled_emails(text: str) -> str:
    """jo.doe@example.com → jo dot doe at example dot com."""
    return EMAIL.sub(lambda match: _spell_symbols(match.group()), text)


def _spell_symbols(address: str) -> str:
    words = re.sub(r"[./\-_@:#]", lambda match: f" {SYMBOLS[match.group()]} ", address)
    return " ".join(words.split())


def spelled_phone_numbers(text: str) -> str:
    """+1 555-123-4567 → plus 1, 5 5 5, 1 2 3, 4 5 6 7."""

    def spell(match: re.Match[str]) -> str:
        groups = [" ".join(group) for group in re.findall(r"\d+", match.group())]
        return ("plus " if match.group().startswith("+") else "") + ", ".join(groups)

    return PHONE.sub(spell, text)


def spelled_units(text: str) -> str:
    """5 km → 5 kilometers; 1 kg → 1 kilogram."""

    def spell(match: re.Match[str]) -> str:
        number, unit = match.groups()
        one, many = UNITS[unit]
        return f"{number} {one if number == '1' else many}"

    return MEASURE.sub(spell, text)


def without_emoji(text: str) -> str:
    return EMOJI.sub("", text)


_STEPS: dict[Step, Callable[[str], str]] = {
    "markdown": without_markdown,
    "urls": spelled_urls,
    "emails": spelled_emails,
    "phone_numbers": spelled_phone_numbers,
    "units": spelled_units,
    "emoji": without_emoji,
}
