"""Stage markup: Markdown, HTML and SSML leave the words that they mark.

A line end that ends a sentence (a heading's, an item's, a block tag's) becomes an empty line. What joins the pieces
gives the line before an empty one its full stop.
"""

import re

from vivavoce_text.profile import Context
from vivavoce_text.stages import tags
from vivavoce_text.stages.inline import without_emphasis
from vivavoce_text.traced import Edit, Traced

MARKED = re.compile(r"[^\w\s.,!?'\"]|_")
QUOTE_MARK = re.compile(r"\A[ \t]*(?:>[ \t]*)+(?!\d)|\A[ \t]*(?:>[ \t]+)+")
HEADING_MARK = re.compile(r"\A[ \t]*#{1,6}[ \t]+")
HEADING_END = re.compile(r"[ \t]+#+[ \t]*(?=\n?\Z)")
ITEM_MARK = re.compile(
    r"\A[ \t]*(?:[-*+\u2022\u25cf\u25aa\u25e6\u2023\u2013][ \t]+)+|\A[ \t]*[\u2022\u25cf\u25aa\u25e6\u2023]"
)
TERM_MARK = re.compile(r"\A[ \t]*:[ \t]+")
ITEM_NUMBER = re.compile(r"(\A[ \t]*\d{1,9})\)(?=[ \t])")
TASK_BOX = re.compile(r"\A[ \t]*\[[ xX]\][ \t]+")
RULE = re.compile(r"\A[ \t]*(?:(?:-[ \t]*){2,}|(?:\*[ \t]*){3,}|(?:_[ \t]*){3,}|(?:=[ \t]*)+)\n?\Z")
TABLE_RULE = re.compile(r"\A[ \t]*[|:+-][ \t|:+-]*-[ \t|:+-]*\n?\Z")
DEFINITION = re.compile(
    r"\A[ \t]*\[[^\]\n]+\]:[ \t]*<?(?:[a-z][a-z0-9+.-]*://|www\.|mailto:|/|\./|#)\S*.*\n?\Z", re.IGNORECASE
)
FOOTNOTE = re.compile(r"\[\^[^\]\s]{1,40}\]:?[ \t]?")
REFERENCE = re.compile(r"\[([^\[\]\n]+)\][ ]?\[[^\[\]\n]*\]")
BAR = re.compile(r"[ \t]*(?<!\\)\|[ \t|]*")
SPACED_BAR = re.compile(r"[ \t]+\|[ \t]+")
LINE_END = re.compile(r"(?<!\s)\s*\Z")
ENDS_A_SENTENCE = ("heading", "item", "table")


def apply(text: Traced, context: Context) -> Traced:
    is_plain = context.kind == "text" and not MARKED.search(text.text)
    if is_plain or context.kind == "code" or not text.text.strip():
        return text
    if context.kind == "fence":
        return _only_line_end(text)
    if context.kind == "hidden":
        return tags.without_hidden(text)
    if context.starts_line:
        text = text.replaced(QUOTE_MARK, "")
        if any(rule.match(text.text) for rule in (RULE, TABLE_RULE, DEFINITION)):
            return _only_line_end(text)
        text = _without_line_marks(text, context)
    text = tags.unescaped(tags.without_tags(text), context)
    if "[" in text.text:
        text = text.replaced(FOOTNOTE, "").replaced(REFERENCE, lambda match: match[1])
    if "|" in text.text:
        text = text.replaced(BAR if context.kind == "table" else SPACED_BAR, _comma_for_bar)
    text = without_emphasis(text, context.language)
    if context.ends_line and context.kind in ENDS_A_SENTENCE:
        text = text.replaced(LINE_END, "\n\n")
    return text


def _only_line_end(text: Traced) -> Traced:
    """Nothing of a line, but that what stands before it has ended."""
    return text.edited([Edit(0, len(text.text), "\n\n")])


def _without_line_marks(text: Traced, context: Context) -> Traced:
    if context.kind == "heading":
        return text.replaced(HEADING_MARK, "").replaced(HEADING_END, "")
    text = text.replaced(ITEM_MARK, "").replaced(TERM_MARK, "").replaced(ITEM_NUMBER, lambda match: f"{match[1]}.")
    return text.replaced(TASK_BOX, "") if context.kind == "item" else text


def _comma_for_bar(match: re.Match[str]) -> str:
    """A comma between two cells. The bars at a row's edges are not said."""
    before, behind = match.string[: match.start()].strip(), match.string[match.end() :].strip()
    if not before or not behind:
        return ""
    return ", " if before[-1].isalnum() or before[-1] in "\"')*_`" else " "
