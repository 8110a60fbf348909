"""Stage clean: one form for characters that look or mean the same, and one sign for a run of them."""

import re
import unicodedata
from functools import lru_cache

from vivavoce_text.profile import Context
from vivavoce_text.traced import Edit, Traced

# ---- characters that cannot be seen -----------------------------------------------------------------------------

PICTURE = (
    "[\u00a9\u00ae\u203c\u2049\u2122\u2139\u2190-\u21ff\u2300-\u27bf\u2900-\u297f\u2b00-\u2bff"
    "\u3030\u303d\u3297\u3299\U0001f000-\U0001faff]"
)
EMOJI_SEQUENCE = (
    rf"[0-9#*]\ufe0f?\u20e3|\U0001f3f4[\U000e0020-\U000e007e]+\U000e007f"
    rf"|{PICTURE}[\ufe0f\U0001f3fb-\U0001f3ff]*(?:\u200d{PICTURE}[\ufe0f\U0001f3fb-\U0001f3ff]*)*"
)
"""An emoji with what joins and colours it. The stage emoji needs a sequence whole."""
ODD = re.compile(rf"(?P<emoji>{EMOJI_SEQUENCE})|\r\n|[^\n\t\x20-\x7e\xa1-\xac\xae-\u02ff\u0370-\u061b]")
INVISIBLE = frozenset(
    [
        *map(chr, (0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x3164, 0xFFA0, 0xFFFD)),
        *map(chr, range(0x180B, 0x1810)),
        *map(chr, range(0xFE00, 0xFE10)),
        *map(chr, range(0xE0100, 0xE01F0)),
    ]
)
"""Fillers and variation selectors, which Unicode counts as letters or marks, and the mark of undecodable bytes."""


def without_invisible(text: Traced) -> Traced:
    """The text without characters that have no form of their own. Controls that part words become blanks or lines."""
    return text.replaced(ODD, _visible)


def _visible(match: re.Match[str]) -> str | None:
    char = match[0]
    if match["emoji"]:
        return None
    if char in ("\r", "\r\n"):
        return "\n" if len(char) > 1 else " "
    category = unicodedata.category(char)
    if category == "Cc":
        return " " if char.isspace() else ""
    return "" if category in ("Cf", "Cs") or char in INVISIBLE else None


# ---- one form of a character ------------------------------------------------------------------------------------

BLANK = re.compile(r"[^\S \n]|[\u2800\u3000]")
UNUSUAL = re.compile(r"[^\x00-\u00a7\u00a9-\u00ae\u00b0-\u00b3\u00b6-\u00b7\u00b9-\u0131\u0300-\u036f]")
TAKEN = re.compile(r"<(font|wide|compat|square|circle|narrow|vertical|small|noBreak|initial|medial|final|isolated)>")
KEPT = re.compile("[\u2025\u2026\u2033\u2034\u2036\u2037\u2057\u3131-\u318e\uffa1-\uffdc]")
"""Ellipses, primes and Korean letters. Their decompositions mean something else."""
NUMERO = "\u2116"
"""The sign for "number". English says that word, and "No" would be another one."""
EAST_ASIAN_SIGNS = frozenset(
    "\uff0c\uff0e\uff1a\uff1b\uff01\uff1f\uff08\uff09\uff3b\uff3d\uff5b\uff5d\uff5e\uff61\uff62\uff63\uff64"
)
EAST_ASIAN = ("zh", "ja", "ko")
UNCLEAN = re.compile(r"[^A-Za-z0-9 \n,.?!']|(\w)\1{2}|[.!?,]\s*[.!?,]")
"""Text that this stage may change, besides repeated syllables, which have LONG_CHARS at least."""
LONG_CHARS = 16
STRUCK = re.compile("[\u0305\u0332-\u0338\u035f]|[\u0300-\u036f]{2,}")
"""Lines through and around letters, and piles of marks."""
PRIVATE = re.compile("[\ue000-\uf8ff\U000f0000-\U0010fffd]")


def apply(text: Traced, context: Context) -> Traced:
    if len(text.text) < LONG_CHARS and not UNCLEAN.search(text.text):
        return text
    text = text.replaced(BLANK, " ")
    if not text.text.isascii():
        text = composed(_usual(text.replaced(PRIVATE, ""), context)).replaced(STRUCK, "")
    text = _hyphens(text, context)
    if context.language == "en" and context.profile.alphabet == "ascii":
        text = _english_quotes(text)
    return _without_runs(text, context)


def _usual(text: Traced, context: Context) -> Traced:
    """Characters of another width, font or frame, as the ordinary ones."""

    def usual(match: re.Match[str]) -> str | None:
        char, at = match[0], match.start()
        form = _ordinary(char)
        behind = match.string[at + 1 : at + 2]
        if form is None or behind == "\ufe0f" or (char == NUMERO and context.language == "en"):
            return None
        before = match.string[at - 1 : at] if at else ""
        if char in EAST_ASIAN_SIGNS and context.language in EAST_ASIAN and not (before.isdigit() and behind.isdigit()):
            return None
        if form.isdigit() and _is_framed(char):
            form = " " * (before.isalnum() and not _is_framed(before)) + form + " " * behind.isalnum()
        return form

    return text.replaced(UNUSUAL, usual)


def _is_framed(char: str) -> bool:
    return unicodedata.decomposition(char).startswith("<circle>")


@lru_cache(maxsize=8192)
def _ordinary(char: str) -> str | None:
    """The characters in place of one of another width, font or frame. Raised digits stay as they are."""
    decomposition = unicodedata.decomposition(char)
    if not TAKEN.match(decomposition) or KEPT.match(char):
        return None
    form = "".join(_ordinary(part) or part for part in map(_character, decomposition.split()[1:]))
    if decomposition.startswith("<compat>") and any(unicodedata.category(part)[0] == "M" for part in form):
        return None
    return "".join(" " if part.isspace() else part for part in form)


def _character(code: str) -> str:
    return chr(int(code, 16))


def composed(text: Traced) -> Traced:
    """The text in Unicode's form NFC."""
    if unicodedata.is_normalized("NFC", text.text):
        return text
    edits = []
    start = 0
    for end in range(1, len(text.text) + 1):
        if end == len(text.text) or not _joins(text.text[end]):
            cluster = text.text[start:end]
            form = unicodedata.normalize("NFC", cluster)
            if form != cluster:
                edits.append(Edit(start, end, form))
            start = end
    return text.edited(edits)


def _joins(char: str) -> bool:
    """True if the character may become one with that before it: a mark, or a Korean vowel or final consonant."""
    return unicodedata.category(char)[0] == "M" or "\u1160" <= char <= "\u11ff"


# ---- dashes and quotes ------------------------------------------------------------------------------------------

HYPHEN = re.compile("[\u2010\u2011\u2012\ufe63\u00ad]")
DASHES_BETWEEN_WORDS = re.compile(
    r"(?<=[^\W_])(?P<end>[,;:.!?]?[\"')\]\u201d\u2019\u00bb]*)[ ]*"
    r"(?:-{2,}|-(?:[ ]-){2,})[ ]*(?=[\"'(\u201c\u2018\u00ab]*[^\W_])"
)
FLAG = re.compile(r"[ ]--\Z")
LONG_DASH = re.compile(r"[ ]*[\u2014\u2015]+[ ]*|[ ]+\u2013(?:[ ]+|(?=[A-Za-z]))|(?<=[A-Za-z,.])\u2013[ ]+")
SPACED_HYPHEN = re.compile(r"(?<=[A-Za-z]{2}) - (?=[\"'(]*[A-Za-z])|(?<=[.,!?\"')]) - (?=[\"'(]*[A-Za-z])")
SHORT_DASH = re.compile(r"(?<=[A-Za-z])\u2013(?=[A-Za-z])|(?<![^\s(])\u2013(?=\d)|\u2212")
PAUSING = ",;:.!?"


def _hyphens(text: Traced, context: Context) -> Traced:
    text = text.replaced(HYPHEN, "-").replaced(DASHES_BETWEEN_WORDS, _comma_for_hyphens)
    if context.language != "en":
        return text
    text = text.replaced(LONG_DASH, lambda match: _comma_for_dash(match, context))
    return text.replaced(SHORT_DASH, "-").replaced(SPACED_HYPHEN, ", ")


def _comma_for_hyphens(match: re.Match[str]) -> str | None:
    dashes = match[0][len(match["end"]) :]
    if FLAG.search(dashes):  # an option of a command: --all
        return None
    return f"{match['end']} " if match["end"][:1] and match["end"][0] in PAUSING else f"{match['end']}, "


def _comma_for_dash(match: re.Match[str], context: Context) -> str:
    before, behind = match.string[: match.start()], match.string[match.end() :]
    if not before.strip():
        return " " * (before != "" or match[0].startswith(" "))
    if before[-1].isdigit() and behind[:1].isdigit():
        return "-"
    if before.rstrip()[-1] in PAUSING + "([{|":
        return " "
    if not behind.strip() or behind[0] in "\"'\u201d\u2019\u00bb)":
        return "..." if len(match[0].strip()) == 1 and behind[:1] != ")" else ""
    return " " if behind[0] in PAUSING else ", "


QUOTES = {
    "'": "\u2018\u2019\u201a\u201b\u2032\u2035\u02bc\u02b9\u00b4\u2039\u203a",
    '"': "\u201c\u201d\u201e\u201f\u2033\u2036\u300c\u300d\u300e\u300f\u301d\u301e\u301f",
    "...": "\u2026",
    "..": "\u2025",
    "?!": "\u203d",
}
QUOTE_OF = {sign: quote for quote, signs in QUOTES.items() for sign in signs}
QUOTE = re.compile("[" + "".join(QUOTE_OF) + "]")
GUILLEMET = re.compile("\u00ab[ ]?|[ ]?\u00bb")
GRAVE_APOSTROPHE = re.compile(r"(?<=[A-Za-z])`(?=(?:s|t|d|m|re|ve|ll)\b)")
GRAVE_IN_WORD = re.compile(r"(?<=[A-Za-z])`(?=[A-Za-z])")
GRAVE_QUOTES = re.compile(r"(?<![`\w])``(?=\w)([^`']*)''")


def _english_quotes(text: Traced) -> Traced:
    if not text.text.isascii():
        text = text.replaced(QUOTE, lambda match: QUOTE_OF[match[0]]).replaced(GUILLEMET, '"')
    if "`" in text.text:
        text = text.replaced(GRAVE_QUOTES, lambda match: f'"{match[1]}"')
        is_lone = text.text.count("`") == 1
        text = text.replaced(GRAVE_IN_WORD if is_lone else GRAVE_APOSTROPHE, "'")
    return text


# ---- runs of one sign -------------------------------------------------------------------------------------------

EXCLAIMED = re.compile(r"[!?](?:[ ]?[!?])+|[\uff01\uff1f]{2,}")
DOTS = re.compile(r"\.{4,}|\.(?:[ ]\.){2,}[ .]*(?<=\.)|(?<=\w)\.\.(?=\s|$)")
OTHER_RUNS = re.compile(r"([,;\u3002\uff0c\u3001\uff1b\uff1a])\1+|(:)\2{2,}|(\u2026)\3{2,}|(\u2014)\4{2,}")
SIGN_RUN = re.compile(r"([^\w\s.!?,;:\u2026\u2014])\1{3,}|(_)\2{6,}")
RUN_SIGN = re.compile(
    r"[^\w\s.!?,;:\u2026\u2014*=~#`\u3002\uff0c\u3001\uff1b\uff1a\uff01\uff1f-]"
    r"|[\u00b2\u00b3\u00b9\u00bc-\u00be\u2070-\u2079\u2150-\u215e]"
)
"""A sign of which a run is one sign, and which the joint of two pieces does not shorten."""
LETTER_RUN = re.compile(r"([^\W\d_])\1{3,}", re.IGNORECASE)
SYLLABLE_RUN = re.compile(r"([^\W\d_]{2,4}?)\1{7,}", re.IGNORECASE)
MARKUP_SIGNS = "*_=~#-`|"
MOST_SIGNS = 3
MOST_MARKUP_SIGNS = 6
"""Longest run of a sign of Markdown that stays. A heading of the sixth level has six."""


def _without_runs(text: Traced, context: Context) -> Traced:
    text = text.replaced(EXCLAIMED, _exclaimed).replaced(DOTS, "...")
    text = text.replaced(OTHER_RUNS, lambda match: _other_run(match, context)).replaced(SIGN_RUN, _sign_run)
    text = text.replaced(LETTER_RUN, lambda match: match[0][:MOST_SIGNS])
    return text.replaced(SYLLABLE_RUN, lambda match: match[1] * MOST_SIGNS)


def _exclaimed(match: re.Match[str]) -> str:
    """!!!!! → !, ?!?! → ?!"""
    wide = match[0][0] in "\uff01\uff1f"
    asked, called = ("\uff1f", "\uff01") if wide else ("?", "!")
    return asked * (asked in match[0]) + called * (called in match[0])


def _other_run(match: re.Match[str], context: Context) -> str:
    sign = match[0][0]
    pair = sign in "\u2026\u2014" and context.language in EAST_ASIAN
    return sign * (2 if pair else 1)


def _sign_run(match: re.Match[str]) -> str | None:
    sign = match[0][0]
    if sign in MARKUP_SIGNS:
        return sign * MOST_SIGNS if len(match[0]) > MOST_MARKUP_SIGNS else None
    return sign
