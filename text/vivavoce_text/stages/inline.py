"""Markdown within a line, as part of the stage markup: emphasis, code, links, images and escapes."""

import re
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING

from vivavoce_text.packages import optional
from vivavoce_text.stages import formulas
from vivavoce_text.tables import readings_of
from vivavoce_text.traced import Edit, Traced

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

SIGN = re.compile(r"[*_`~\[\]\\=]")
MOST_CODE_SIGNS = 3
"""Longest code of signs alone that is said sign by sign."""
MASK = "\ue000"
"""Stands for a character that Markdown must not see."""
MOST_BRACKETS = 32
"""Most opening brackets of a line that Markdown sees. It looks for the end of each up to the line's end."""
PROTECTED = re.compile(
    r"(?<=\d )\*\*(?= \d)|(?<=\d)\*{1,2}(?=\d)|(?<![\w*])(?:[A-Za-z]|\d+)\*(?:[A-Za-z]|\d+)(?![\w*])|[a-z][a-z0-9+.-]*://[^\s<>)\]*]+"
)
COMMAND = r"\\[A-Za-z]+(?:\[[^\]\n]*\])?(?:\{[^{}\n]*\})*"
STRAY = re.compile(
    rf"(?P<kept>{COMMAND}|\ue000+)"
    r"|(?<![^\W_])\*+(?=[^\W\d])|(?<=[^\s*])\*+(?![\w*])|(?<![^\W_])\*{2,}|\*{3,}"
    r"|(?<!\w)_{2,}(?=\w)|(?<=[^\W_])_{2,}(?!\w)|_{3,}|~~|`+|(?<!\S)={2,}(?=\w)|(?<=\w)={2,}(?![\w=])"
)
BRACKETED = re.compile(rf"(?P<kept>{COMMAND}|\ue000+)|\[([^\[\]\n]*)\]|[\[\]]")
RAISED_OR_LOWERED = re.compile(r"(?<=\w)~(\w{1,3})~|(?<=\w)(\^)(\w{1,3})\^(?!\w)")
LINK_END = re.compile(r"\s*(?:\"[^\"]*\"|'[^']*'|\([^()]*\))?\s*\)")
LINE_BREAK = re.compile(r"\\(?=\n?\Z)")


def without_emphasis(text: Traced, language: str) -> Traced:
    """The words of a line. Signs of Markdown that mark nothing vanish at the edges of words.

    In English, code that is a sign or two, as in "the file `/`", becomes the name of the sign.
    """
    if not SIGN.search(text.text):
        return text
    text = text.replaced(LINE_BREAK, "").replaced(RAISED_OR_LOWERED, lambda match: match[1] or f"{match[2]}{match[3]}")
    if optional("markdown_it"):
        text = _read(text, language)
    text = _unmasked(text, STRAY, lambda match: "")
    return _unmasked(text, BRACKETED, _without_brackets)


def _read(text: Traced, language: str) -> Traced:
    """The text without the signs that Markdown reads."""
    body = text.text.strip()
    first = text.text.find(body)
    kept, end = _parts(_masked(body), language), 0
    edits = []
    for start, stop, said in kept:
        if start > end:
            is_padding = " " in body[end:start] and not body[end:start].strip("` ")  # a code's blanks at its edges
            edits.append(Edit(first + end, first + start, " " * is_padding))
        if said is not None:
            before, behind = body[:start].rstrip("`")[-1:], body[stop:].lstrip("`")[:1]
            parted = (
                " " * (said[0].isalpha() and before.isalnum()) + said + " " * (said[-1].isalpha() and behind.isalnum())
            )
            edits.append(Edit(first + start, first + stop, parted))
        end = stop
    if end < len(body):
        edits.append(Edit(first + end, first + len(body), ""))
    return text.edited(edits)


def _masked(text: str) -> str:
    """The text, of the same length, without what Markdown must not see: formulas, addresses, products."""
    for start, end, _ in list(formulas.spans(text)):
        text = text[:start] + MASK * (end - start) + text[end:]
    if text.count("[") > MOST_BRACKETS:
        text = text.replace("[", MASK)
    return PROTECTED.sub(lambda match: MASK * len(match[0]), text)


def _unmasked(text: Traced, pattern: re.Pattern[str], replace: "formulas.Replacement") -> Traced:
    """The text with replacements where the masked text has matches."""
    masked = _masked(text.text)
    return text.edited(
        Edit(match.start(), match.end(), replace(match)) for match in pattern.finditer(masked) if match["kept"] is None
    )


@cache
def _markdown() -> "MarkdownIt":
    package = optional("markdown_it")
    assert package is not None, "nothing is parsed without the package"
    parser: MarkdownIt = package.MarkdownIt("commonmark", {"html": False})
    return parser.enable("strikethrough").disable(["reference", "text_join"])


Part = tuple[int, int, str | None]
"""Characters of the source that are said (start, end exclusive), and what is said in place of them, if it differs."""


def _parts(source: str, language: str) -> list[Part]:
    inline = _markdown().parseInline(source)
    tokens = inline[0].children or []
    for token in tokens:
        if token.type == "code_inline" and language == "en":
            token.meta["said"] = _named(token.content)
    parts: list[Part] = []
    _collect(tokens, source, 0, parts)
    return parts


def _named(code: str) -> str | None:
    """The names of a code's signs, or None for code with words."""
    names = readings_of("en", "sign_names")
    if code in names:
        return names[code]
    if len(code) > MOST_CODE_SIGNS or not all(sign in names for sign in code):
        return None
    return " ".join(names[sign] for sign in code)


def _collect(tokens: "Iterable[Token]", source: str, at: int, parts: list[Part]) -> int:
    """Finds the tokens' texts in the source from `at` on. Returns the position behind them."""
    for token in tokens:
        match token.type:
            case "text" if token.content:
                at = _keep(token.content, None, source, at, parts)
            case "text_special":
                at = _keep(token.markup, token.content, source, at, parts)
            case "code_inline":
                at = _after(token.markup, source, at)
                at = _after(token.markup, source, _keep(token.content, token.meta.get("said"), source, at, parts))
            case "image":
                at = _collect(token.children or [], source, _after("![", source, at), parts)
                at = _after_link(source, at)
            case "link_open":
                at = _after("<" if token.markup == "autolink" else "[", source, at)
            case "link_close":
                at = _after(">", source, at) if token.markup == "autolink" else _after_link(source, at)
            case _:
                at = _after(token.markup, source, at)
    return at


def _keep(written: str, said: str | None, source: str, at: int, parts: list[Part]) -> int:
    start = source.index(written, at)
    parts.append((start, start + len(written), None if said == written else said))
    return start + len(written)


def _after(sign: str, source: str, at: int) -> int:
    return source.index(sign, at) + len(sign)


def _after_link(source: str, at: int) -> int:
    """The position behind a link's or an image's address."""
    start = _after("](", source, at)
    while start < len(source) and source[start].isspace():
        start += 1
    address = _markdown().helpers.parseLinkDestination(source, start, len(source))
    end = LINK_END.match(source, address.pos if address.ok else start)
    return end.end() if end else start


def _without_brackets(match: re.Match[str]) -> str:
    """The words in brackets. An index, as in list[0], stays a word of its own."""
    before = match.string[match.start() - 1 : match.start()] if match.start() else ""
    words = (match[2] or "").strip()
    return " " * (before.isalnum() and words != "") + words
