"""Stage names: names of files, paths, people, topics and programs, and signs between words, in English."""

import re
from functools import cache

from vivavoce_text.profile import Context
from vivavoce_text.stages import signs
from vivavoce_text.stages.addresses import is_extension, parted, said_extension, said_path
from vivavoce_text.tables import rows_of, words_of
from vivavoce_text.traced import Traced

PLAIN = re.compile(
    r"(?:[^\W\d_\u00b2\u00b3\u00b9\u0370-\u03ff\u2070-\u209c]|[ ,;!?'\"\n]|:(?!:)|[.)](?!\w)|(?<=\w)-(?=\w)"
    r"|(?<!\w)\((?!\)))*"
)
"""Text without a name or a sign that is said otherwise."""
WINDOWS_PATH = re.compile(r"(?<!\w)[A-Za-z]:\\[^\s\"'<>|?*,;]*[\w\\]|(?<![\w\\])\\\\\w[^\s\"'<>|?*,;]*\w")
PATH = re.compile(r"(?<![^\s\"'(\[=,:])(?:~|\.{1,2})?/[\w.@-](?<!\d)[\w.@+-]*(?:/[\w.@+-]+)*(?<![.,])/?")
SHORT_PATH = re.compile(r"(?<![^\s\"'(\[=,:])(?:~|\.{1,2})/(?![\w.])")
RELATIVE_PATH = re.compile(
    r"(?<![\w/.@:-])[A-Za-z_.][\w.-]*(?:/[\w.@+-]+)*/[\w.@+-]*\.(?P<end>[A-Za-z][A-Za-z0-9]{0,10})(?![\w/])"
    r"|(?<![\w/.@:-])[a-z_.][a-z0-9_.-]+(?:/[\w-]+){2,}(?![\w/])"
    r"|(?<![\w/.@:-])[a-z][\w.-]+/(?![^\s,.;:!?)])"
)
FILE = re.compile(r"(?<![\w./@-])(?P<name>\w[\w-]*(?:\.[\w-]+)*)\.(?P<end>[A-Za-z][A-Za-z0-9]{0,10})(?![\w/@]|\.\w)")
HIDDEN_FILE = re.compile(r"(?<!\S)\.([A-Za-z][\w-]*(?:\.\w+)*)")
DOTTED = re.compile(r"(?<![\w.@/])[a-z_][a-z0-9_]+(?:\.[a-z_][A-Za-z0-9_]+)+(?![\w@])")
MENTION = re.compile(r"(?<![\w.@])@([^\W\d]\w*(?:[.-]\w+)*)")
TOPIC = re.compile(r"(?<![\w&#])#(\d*[^\W\d]\w*)")
NUMBER_SIGN = re.compile(r"(?<![\w&#])#[ ]?(?=\d+\b)")
SNAKE = re.compile(r"\w*_\w*")
CALL = re.compile(r"(?<=\w)\(\)")
SCOPE = re.compile(r"(?<=\w)::(?=\w)")
OPTION = re.compile(r"(?<![^\s\"'(\[])(--?)(?=[A-Za-z][\w-]*(?:[\s=.,;:!?)\"']|$))")
CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|(?<=[A-Za-z])(?=\d)|(?<=\d)(?=[A-Za-z])")
PER = re.compile(r"(?<=[A-Za-z])/(?=(?:hour|day|week|month|year|second|minute|person|night|mile|student|user)\b)")
CAPITALS_SLASH = re.compile(r"\b([A-Z]+)/(?=[A-Z]+\b)")
SLASH = re.compile(r"(?<=[A-Za-z][a-z]{2})/(?=[A-Za-z][a-z]{2})")
CAPITALS_AND = re.compile(r"(?<![\w&])([A-Z]{1,3})&([A-Z]{1,3})(?![\w&])")
WITH_PLUS = re.compile(r"(?<![\w+])([A-F]|\d[\d.,]*[kKMB]?)\+(?![\w+(]| ?=)")
GRADE_MINUS = re.compile(r"(?<![\w+-])([A-F])-(?=[\s.,;:!?)]|$)")
PLURAL = re.compile(r"(?<=[a-z])\((e?s)\)(?!\w)")
TELEPHONE = re.compile(r"(?<!\w)tel:(?=[+\d])")


def apply(text: Traced, context: Context) -> Traced:
    if context.language != "en" or PLAIN.fullmatch(text.text):
        return text
    text = text.replaced(_spoken_names(), lambda match: _said_names()[match[0]])
    for pattern in (WINDOWS_PATH, PATH, SHORT_PATH, RELATIVE_PATH):
        text = text.replaced(pattern, _path)
    text = text.replaced(FILE, _file).replaced(HIDDEN_FILE, lambda match: f"dot {match[1]}")
    text = text.replaced(DOTTED, _dotted).replaced(
        MENTION, lambda match: f"at {_words(match[1].replace('.', ' dot '))}"
    )
    text = text.replaced(TOPIC, lambda match: f"hashtag {_words(CAMEL.sub(' ', match[1]))}")
    text = text.replaced(PLURAL, lambda match: match[1])
    text = text.replaced(NUMBER_SIGN, "number ").replaced(CALL, "").replaced(SCOPE, " ")
    text = text.replaced(SNAKE, lambda match: _words(match[0])).replaced(OPTION, lambda match: "dash " * len(match[1]))
    if "/" in text.text:
        text = text.replaced(PER, " per ").replaced(CAPITALS_SLASH, lambda match: f"{match[1]} ")
        text = text.replaced(SLASH, " slash ")
    text = text.replaced(TELEPHONE, "").replaced(
        CAPITALS_AND, lambda match: f"{' '.join(match[1])} and {' '.join(match[2])}"
    )
    text = text.replaced(WITH_PLUS, lambda match: f"{match[1]} plus")
    return signs.said(text.replaced(GRADE_MINUS, lambda match: f"{match[1]} minus"))


def _words(name: str) -> str:
    """get_user_name → get user name."""
    return " ".join(name.replace("_", " ").split())


def _path(match: re.Match[str]) -> str | None:
    end = match.groupdict().get("end")
    if end and not is_extension(end):
        return None
    said = said_path(match[0].replace("_", " "))
    return said if match.end() == len(match.string) or not match.string[match.end()].isalnum() else f"{said} "


def _file(match: re.Match[str]) -> str | None:
    """report.pdf → report dot PDF. A name that is one letter is an initial."""
    name, end = match["name"], match["end"]
    is_short = len(name) < 2 or (len(end) == 1 and not end.islower())
    if is_short or not is_extension(end) or not (end.islower() or end.isupper()):
        return None
    return f"{_words(parted(name).replace('.', ' dot '))} dot {said_extension(end)}"


def _dotted(match: re.Match[str]) -> str | None:
    """os.path → os dot path."""
    parts = match[0].split(".")
    return None if parts[0] in words_of("en", "abbreviated") else " dot ".join(map(_words, parts))


@cache
def _said_names() -> dict[str, str]:
    return {row[0]: row[1] for row in rows_of("en", "spoken_names")}


@cache
def _spoken_names() -> re.Pattern[str]:
    names = sorted(map(re.escape, _said_names()), key=len, reverse=True)
    return re.compile(rf"(?<![\w/.])(?:{'|'.join(names)})(?![\w+#/])")
