"""Tags and entities of HTML and SSML, as part of the stage markup."""

import html
import re
from functools import cache

from vivavoce_text.profile import Context
from vivavoce_text.stages import clean
from vivavoce_text.tables import rows_of
from vivavoce_text.traced import Edit, Traced

ATTRIBUTES = r"(?:\s+[\w:@.-]+(?:\s*=\s*(?:\"[^\"]*\"|'[^']*'|[^\s\"'=<>`]+))?)*"
TAG = re.compile(rf"</?(?P<name>[a-zA-Z][\w:-]*)(?P<attributes>{ATTRIBUTES})\s*/?>")
HIDDEN = re.compile(
    r"<!--.*?-->|<(script|style|svg|noscript)\b[^<>]*>.*?</\1\s*>|<!doctype\b[^<>]*>|<\?[a-z][^<>]*\?>|<!\[CDATA\[|\]\]>",
    re.IGNORECASE | re.DOTALL,
)
HIDDEN_END = re.compile(r"-->|</(?:script|style|svg|noscript)\s*>", re.IGNORECASE)
ALIAS = re.compile(r"<sub\s[^<>]*\balias\s*=\s*(?:\"([^\"<>]*)\"|'([^'<>]*)')[^<>]*>[^<>]*</sub\s*>", re.IGNORECASE)
IMAGE = re.compile(r"<img\s[^<>]*\balt\s*=\s*(?:\"([^\"<>]*)\"|'([^'<>]*)')[^<>]*>", re.IGNORECASE)
SUPERSCRIPT = re.compile(r"<sup\b[^<>]*>\s*([^<>]*?)\s*</sup\s*>", re.IGNORECASE)
SWITCHES = frozenset(
    [
        "async",
        "autoplay",
        "checked",
        "controls",
        "defer",
        "disabled",
        "hidden",
        "loop",
        "multiple",
        "muted",
        "open",
        "readonly",
        "required",
        "reversed",
        "selected",
    ]
)
"""Attributes that have no value."""
ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});|&(?:amp|lt|gt|quot|nbsp)\b(?!=)")
MOST_UNESCAPES = 3
ANGLED_WORD = re.compile(r"(?<!\]\()<([^\s<>]+)>")
ANGLED_WORDS = re.compile(r"(?<![\w)\](])<([^\W\d_][^<>\n]{0,60}[^\s<>])>(?!\w)")
MENTION_END = re.compile(r" (?:tag|element|attribute)s?\b")
"""Words behind a tag that the text speaks of: the <p> tag."""
STRENGTH = ("inline", "cell", "line", "block")
"""Effects of tags on what is around them, the strongest last."""


def without_tags(text: Traced) -> Traced:
    """The text without tags. Tags of blocks part sentences, those of cells part phrases."""
    if "<" not in text.text:
        return text
    text = text.replaced(HIDDEN, "").replaced(ALIAS, _value).replaced(IMAGE, _value)
    text = text.replaced(SUPERSCRIPT, _superscript)
    edits = []
    for group in _tags(text.text):
        strongest = max((kind for _, _, kind in group), key=STRENGTH.index)
        if strongest == "inline":
            edits += [Edit(start, end, "") for start, end, _ in group[:-1]]
            edits.append(Edit(*group[-1][:2], " " if _parts_sentences(text.text, group) else ""))
            continue
        if sum(kind == "line" for _, _, kind in group) > 1 and strongest == "line":
            strongest = "block"
        start, end = group[0][0], group[-1][1]
        edits.append(_parting(text.text, start, end, strongest))
    return text.edited(edits)


def without_hidden(text: Traced) -> Traced:
    """The rest of a line after the end of a script, a style sheet or a comment."""
    ends = [match.end() for match in HIDDEN_END.finditer(text.text)]
    return text.edited([Edit(0, ends[-1] if ends else len(text.text.rstrip("\n")), "")])


def unescaped(text: Traced, context: Context) -> Traced:
    """The text with characters in place of HTML's names for them."""
    for _ in range(MOST_UNESCAPES):
        if "&" not in text.text:
            break
        changed = text.replaced(ENTITY, lambda match: html.unescape(match[0]))
        if changed is text or changed.text == text.text:
            break
        text = clean.without_invisible(changed)
        if "clean" in context.profile.stages:
            text = clean.apply(text, context)
    if "<" in text.text:
        text = text.replaced(ANGLED_WORD, _bare_word).replaced(ANGLED_WORDS, lambda match: match[1])
    return text


@cache
def _kinds() -> dict[str, str]:
    return {row[0]: row[1] for row in rows_of("any", "tags")}


def _tags(text: str) -> list[list[tuple[int, int, str]]]:
    """Tags (start, end, kind), in groups of those that only blanks part."""
    found = []
    for match in TAG.finditer(text):
        known = _kinds().get(match["name"].lower())
        is_foreign = match[0].startswith("</") or '="' in match["attributes"] or "='" in match["attributes"]
        kind = known or ("inline" if is_foreign else None)
        if kind is not None and _has_attributes(match["attributes"]) and not _is_spoken_of(match):
            found.append((match.start(), match.end(), "block" if kind == "hidden" else kind))
    groups: list[list[tuple[int, int, str]]] = []
    for tag in found:
        if groups and not text[groups[-1][-1][1] : tag[0]].strip():
            groups[-1].append(tag)
        else:
            groups.append([tag])
    return groups


def _parts_sentences(text: str, group: list[tuple[int, int, str]]) -> bool:
    """True if the end of a sentence and the start of the next would touch."""
    before, behind = text[: group[0][0]], text[group[-1][1] :]
    return before[-1:] in tuple(".!?") and behind[:1].isalpha()


def _has_attributes(attributes: str) -> bool:
    """True if a tag's words are attributes, not a sentence between "less than" and "greater than"."""
    return "=" in attributes or set(attributes.lower().split()) <= SWITCHES


def _is_spoken_of(tag: re.Match[str]) -> bool:
    """True if the text is about a tag, as in "the <p> tag"."""
    is_closed = tag[0].startswith("</") or f"</{tag['name']}" in tag.string
    return not is_closed and MENTION_END.match(tag.string, tag.end()) is not None


def _parting(text: str, start: int, end: int, kind: str) -> Edit:
    """A replacement of tags by what parts the words at both sides."""
    while start and text[start - 1] == " ":
        start -= 1
    while end < len(text) and text[end] == " ":
        end += 1
    before, behind = text[:start], text[end:]
    between = bool(before.strip() and behind.strip())
    ends_a_word = before[-1:].isalnum()
    if kind == "cell":
        return Edit(start, end, ", " if ends_a_word else " ")
    if not between:
        return Edit(start, end, "\n\n" if kind == "block" else "\n")
    return Edit(start, end, ". " if kind == "block" and (ends_a_word or before[-1] in "\"')") else " ")


def _value(match: re.Match[str]) -> str:
    return match[1] or match[2] or ""


def _superscript(match: re.Match[str]) -> str:
    """x<sup>2</sup> → x², 10<sup>6</sup> → 10^6, 1<sup>st</sup> → 1st. The number of a note is not said."""
    raised, before = match[1], match.string[: match.start()]
    if not raised.lstrip("-\u2212+").isdigit():
        return "" if raised.startswith("[") else raised
    power = {"2": "\u00b2", "3": "\u00b3"}.get(raised)
    is_note = re.search(r"[^\W\d_]{3,}[.,;:!?\"')]*\Z|[.,;:!?][\"')]*\Z", before)
    if is_note:
        return ""
    return power or f"^{raised}"


def _bare_word(match: re.Match[str]) -> str:
    before, behind = match.string[: match.start()], match.string[match.end() :]
    return " " * before[-1:].isalnum() + match[1] + " " * behind[:1].isalnum()
