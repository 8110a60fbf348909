"""Stage letters: single letters become their names, for voices that want them so ("eff bee eye")."""

import re

from vivavoce_text.profile import Context
from vivavoce_text.tables import readings_of
from vivavoce_text.traced import Traced

LETTER = re.compile(r"(?<![\w'])([A-Za-z])('s|(?<=[A-Z])s)?(?![\w'])")
LETTER_BEFORE = re.compile(r"(?<![\w'])[A-Za-z] $")
LETTER_BEHIND = re.compile(r" [A-Z](?:'?s)?(?![\w'])")
ITEM_BEFORE = re.compile(r"(?<!\w)\(?(?:\d{1,3}|[a-z]{1,4})\)\Z")
"""The mark of an item, as in "(b) A dog". A sentence begins behind it."""
WORD_BEHIND = re.compile(r" [a-z]{2}|\Z")
"""A word or the end of the piece, which may lie between an article and its word."""
NEAR_CHARS = 8
M_BEHIND = re.compile(r" m(?![\w'])")


def apply(text: Traced, context: Context) -> Traced:
    if context.language != "en" or context.profile.letters != "names":
        return text
    names = readings_of("en", "letter_names")

    def name(match: re.Match[str]) -> str | None:
        return names[match[1].upper()] + (match[2] or "") if _is_letter(match) else None

    return text.replaced(LETTER, name)


def _is_letter(match: re.Match[str]) -> bool:
    """False for the words "a", "I", "As", "Is" and "Us"."""
    text, letter, ending = match.string, match[1], match[2]
    behind_letter = LETTER_BEFORE.search(text, max(0, match.start() - 3), match.start()) is not None
    if ending == "s":
        return behind_letter
    if letter not in "aAiI" or ending:
        return True
    if letter == "a":
        return M_BEHIND.match(text, match.end()) is not None
    if behind_letter or (letter != "i" and LETTER_BEHIND.match(text, match.end())):
        return True
    before = text[: match.start()].rstrip(" \"'(")
    if letter == "A" and WORD_BEHIND.match(text, match.end()) and ITEM_BEFORE.search(before[-NEAR_CHARS:]):
        return False
    return letter == "A" and before != "" and before[-1] not in ".!?"
