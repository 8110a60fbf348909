"""Books as chapters, and chapters as pieces that are a request each."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

PIECE_CHARS = 2000
"""Most characters of a piece, two or three minutes of speech, which a crash costs. OpenAI's API takes 4096."""
CUTS = (re.compile(r"(?<=[.!?…。！？])[\"'”’»」』)]*\s*(?=\S)"), re.compile(r"(?<=[,;:，、；：])\s*|\s+"))  # noqa: RUF001
"""Places to cut a long paragraph at: behind a sentence, else behind a clause or a word."""
ENDS = re.compile(r"[.!?…。！？:;,][\"'”’»」』)]*$")  # noqa: RUF001


@dataclass(slots=True)
class Block:
    """A paragraph or a heading. `anchors` are the ids that begin in it or directly before it."""

    text: str
    heading_level: int | None = None
    anchors: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Chapter:
    """A chapter of a book: the blocks behind its beginning, in their order."""

    title: str
    blocks: list[Block] = field(default_factory=list)


def pieces_of(chapters: Iterable[Chapter]) -> list[tuple[str, list[str]]]:
    """Title and pieces of each chapter that has something to say."""
    cut = ((chapter.title, _pieces(chapter.blocks)) for chapter in chapters)
    return [(title, pieces) for title, pieces in cut if pieces]


def chapter_level(levels: Sequence[int], depth: int) -> int:
    """The level of the headings at which chapters begin: that of the highest ones, or with `depth` 2 the next.

    A single highest heading is the book's title, so the headings below it count as the highest.
    """
    known = sorted(set(levels))
    if len(known) > 1 and levels.count(known[0]) == 1:
        known = known[1:]
    return known[min(depth, len(known)) - 1] if known else 0


def _pieces(blocks: Iterable[Block]) -> list[str]:
    """Paragraphs as pieces. A heading is a piece, so that a pause follows it."""
    pieces: list[str] = []
    is_open = False
    for block in blocks:
        text = " ".join(block.text.split())
        if not any(char.isalnum() for char in text):
            continue  # such as the stars between two scenes
        if block.heading_level is not None:
            pieces.append(text if ENDS.search(text) else f"{text}.")
            is_open = False
            continue
        for part in _cut(text):
            if is_open and len(pieces[-1]) + 2 + len(part) <= PIECE_CHARS:
                pieces[-1] += f"\n\n{part}"
            else:
                pieces.append(part)
            is_open = True
    return pieces


def _cut(text: str) -> list[str]:
    """The text in parts of at most PIECE_CHARS characters."""
    parts, begin = [], 0
    while len(text) - begin > PIECE_CHARS:
        window = text[begin : begin + PIECE_CHARS + 1]
        ends = (max((found.end() for found in cut.finditer(window)), default=0) for cut in CUTS)
        end = next((end for end in ends if PIECE_CHARS // 4 <= end <= PIECE_CHARS), PIECE_CHARS)
        parts.append(window[:end].strip())
        begin += end
    return [part for part in (*parts, text[begin:].strip()) if part]
