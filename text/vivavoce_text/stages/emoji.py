"""Stage emoji: emoji, emoticons and emoji's short names (:smile:) are not said. A keycap leaves its digit."""

import re
from functools import cache

from vivavoce_text.packages import optional
from vivavoce_text.profile import Context
from vivavoce_text.tables import words_of
from vivavoce_text.traced import Edit, Traced

SIGNS = frozenset("\u00a9\u00ae\u2122\u2194\u2195\u203c\u2049")
"""Emoji that are signs of written text too. They stay, to be said or left out as signs."""
JOINERS = re.compile("[\u200d\ufe0e\ufe0f\u20e3\U0001f3fb-\U0001f3ff\U0001f1e6-\U0001f1ff\U000e0020-\U000e007f]")
FACE_SIGN = re.compile(r"[^\w\s.,!?'\"]|_|[xX]D|T\.T")
"""One of these is in every emoticon."""
TEN = "\U0001f51f"
SHORT_NAME = re.compile(r"(?<![\w:]):[a-z+-][a-z0-9_+-]{0,40}:(?![\w:])")
SMILE = re.compile(r"(?<=[A-Za-z.!?,]):-?\)+(?=\s|$)")
"""A smile at a word's end, as in "thanks:)"."""


def apply(text: Traced, context: Context) -> Traced:
    if not text.text.isascii():
        text = text.edited(_pictures(text.text)).replaced(JOINERS, "")
    if ":" in text.text:
        text = text.replaced(SHORT_NAME, _without_short_name).replaced(SMILE, _without_smile)
    return text.replaced(_emoticons(), "") if FACE_SIGN.search(text.text) else text


def _pictures(text: str) -> list[Edit]:
    """The edits that take emoji out, with the blank before each."""
    edits: list[Edit] = []
    emoji = optional("emoji")
    if emoji is None:
        return edits
    for found in emoji.emoji_list(text):
        start, end, sign = found["match_start"], found["match_end"], found["emoji"]
        if sign[0] in SIGNS:
            continue
        before, behind = text[:start], text[end : end + 1]
        if sign[0].isdigit() or sign == TEN:
            digits = "10" if sign == TEN else sign[0]
            said = " " * (before != "") + digits + " " * (behind not in ".,;:!?")
        else:
            said = " " if before[-1:].isalnum() and behind.isalnum() else ""
        done = edits[-1].end if edits else 0
        blanks = min(len(before) - len(before.rstrip(" ")), start - done)
        edits.append(Edit(start - blanks, end, said))
    return edits


def _without_short_name(match: re.Match[str]) -> str | None:
    """A name such as :smile: or :+1:. A word between colons stays."""
    emoji = optional("emoji")
    return None if emoji is None or emoji.emojize(match[0], language="alias") == match[0] else ""


def _without_smile(match: re.Match[str]) -> str | None:
    """A smile, unless its sign closes a parenthesis."""
    before = match.string[: match.start()]
    return None if before.rfind("(") > before.rfind(")") else ""


@cache
def _emoticons() -> re.Pattern[str]:
    faces = sorted(map(re.escape, words_of("any", "emoticons")), key=len, reverse=True)
    return re.compile(rf"(?<!\S)(?:{'|'.join(faces)})(?=[\s.,!?]|$)")
