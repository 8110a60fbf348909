"""Stage formulas: LaTeX between its signs, and commands that stand alone, in words."""

import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING

from vivavoce_text.packages import optional
from vivavoce_text.profile import Context
from vivavoce_text.traced import Edit, Traced

if TYPE_CHECKING:
    from normt2s.latex import LatexSpeaker

Replacement = Callable[[re.Match[str]], str]

DELIMITED = re.compile(
    r"\$\$(?P<display>[^$\n]+)\$\$"
    r"|(?<![\\$\w])\$(?P<dollar>[^\s$](?:[^$\n]*[^\s\\$])?)\$(?![\w$])"
    r"|\\\((?P<round>[^\n]+?)\\\)"
    r"|\\\[(?P<square>[^\n]+?)\\\]"
)
STARTS_AS_MONEY = re.compile(r"[\d.,]+(?!\d)(?!\Z)(?![a-z]\b)[^\\^_=+*<>{}]*\Z")
LONE_SIGN = re.compile(r"\A\s*(?:\$\$|\\\[|\\\]|\\begin\{[a-z]+\*?\}|\\end\{[a-z]+\*?\})\s*\Z")
BARE = re.compile(r"(?<![\w\\:/])\\[A-Za-z]{2,}")
NOT_ASCII = re.compile(r"[^\x00-\x7f]")
COMMAND = re.compile(r"\\[A-Za-z]")
OPENING = re.compile(r"\\left\s*(?:\\[a-z]+|\\?.)|\\l(?:floor|ceil|angle)\b|\\langle\b|\\\{")
CLOSING = re.compile(r"\\right\s*(?:\\[a-z]+|\\?.)|\\r(?:floor|ceil|angle)\b|\\\}")
BRACKET = re.compile(r"[][(){}]")
MOST_LONE_BRACKETS = 4


def apply(text: Traced, context: Context) -> Traced:
    if "$" not in text.text and "\\" not in text.text:
        return text
    if LONE_SIGN.match(text.text):
        return text.edited([Edit(0, len(text.text), "\n" * text.text.count("\n"))])
    speaker = _speaker(context.language)
    text = text.edited(
        Edit(start, end, _apart(text.text, start, end, _said(formula, speaker)))
        for start, end, formula in spans(text.text)
    )
    return _without_bare_commands(text, speaker) if BARE.search(text.text) else text


def spans(text: str) -> Iterator[tuple[int, int, str]]:
    """The formulas with their signs: start, end (exclusive), and what is between the signs."""
    for match in DELIMITED.finditer(text):
        formula = match[match.lastgroup or 0]
        if match.lastgroup != "dollar" or not STARTS_AS_MONEY.match(formula):
            yield match.start(), match.end(), formula


def _said(formula: str, speaker: "LatexSpeaker | None") -> str:
    """A formula in words. Without a reader a plain formula keeps its signs, and one with commands is not said."""
    words = speaker.speak(formula) if speaker and _is_nested(formula) else None
    if words is not None:
        return " ".join(words.split())
    return "" if COMMAND.search(formula) else formula.strip()


def _is_nested(formula: str) -> bool:
    """True if the brackets of a formula close each other. The reader takes exponential time for those that do not."""
    formula = OPENING.sub("{", CLOSING.sub("}", formula))
    if formula.count("(") + formula.count("[") <= MOST_LONE_BRACKETS:
        return True
    opened: list[str] = []
    for bracket in BRACKET.findall(formula):
        if bracket in "([{":
            opened.append("{" if bracket == "{" else "(")
        elif not opened or opened.pop() != ("{" if bracket == "}" else "("):
            return False
    return not opened and "\\begin" not in formula


def _apart(text: str, start: int, end: int, words: str) -> str:
    """The words with blanks where they would touch others."""
    before, behind = text[start - 1 : start] if start else "", text[end : end + 1]
    return " " * (words != "" and before.isalnum()) + words + " " * (words != "" and behind.isalnum())


def _without_bare_commands(text: Traced, speaker: "LatexSpeaker | None") -> Traced:
    latex = optional("normt2s.latex")
    if speaker is None or latex is None:
        return text
    edits = []
    # The finder takes a raised digit for a digit, and fails.
    for start, end, can_be_said in latex.find_bare(NOT_ASCII.sub("\u00b7", text.text), speaker.lex):
        if can_be_said and BARE.match(text.text, start):
            edits.append(Edit(start, end, _apart(text.text, start, end, _said(text.text[start:end], speaker))))
    return text.edited(edits)


@cache
def _speaker(language: str) -> "LatexSpeaker | None":
    """The reader of LaTeX for a language; None for a language or a machine that has none."""
    if language not in ("en", "de"):
        return None
    normt2s, latex = optional("normt2s"), optional("normt2s.latex")
    if normt2s is None or latex is None:
        return None
    speaker: LatexSpeaker = latex.LatexSpeaker(normt2s.Normalizer(language))
    return speaker
