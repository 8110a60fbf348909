"""Lines to speak, and the numbered files that hold them."""

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

NAME_CHARS = 40
"""Most characters of a chapter's title in the name of its file."""
LINE_DIGITS = 4
CHAPTER_DIGITS = 2


@dataclass(frozen=True, slots=True)
class Line:
    """A text that is one request. `place` is where its source has it; `fields` are the request's of this line alone."""

    text: str
    place: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    start_s: float | None = None
    """Time of a subtitle's cue: the line begins then in the whole, or behind the line before it."""


@dataclass(frozen=True, slots=True)
class Track:
    """An audio file to make: a line, or a chapter of a book with its pieces."""

    name: str
    """Name of the file, without its suffix."""
    lines: tuple[Line, ...]
    title: str | None = None


def tracks_of_lines(lines: list[Line]) -> list[Track]:
    """A track for each line: 0001, 0002, ..."""
    digits = max(LINE_DIGITS, len(str(len(lines))))
    return [Track(f"{number:0{digits}}", (line,)) for number, line in enumerate(lines, 1)]


def tracks_of_chapters(chapters: list[tuple[str, list[str]]]) -> list[Track]:
    """A track for each chapter, which is a title and the pieces of its text: 01-the-storm, ..."""
    digits = max(CHAPTER_DIGITS, len(str(len(chapters))))
    tracks = []
    for number, (title, pieces) in enumerate(chapters, 1):
        name = "-".join(filter(None, (f"{number:0{digits}}", slug(title))))
        lines = tuple(Line(piece, f"{name}, piece {at}") for at, piece in enumerate(pieces, 1))
        tracks.append(Track(name, lines, title))
    return tracks


def slug(title: str) -> str:
    """The letters and figures of a title, for the name of a file: it has no separator, point or blank."""
    words = re.findall(r"[^\W_]+", unicodedata.normalize("NFKC", title).lower())
    return "-".join(words)[:NAME_CHARS].rstrip("-")
