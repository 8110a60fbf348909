"""Sources of a job: the kind of file that a name's suffix tells, and the tracks that are in it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vivavoce_client.batch.cues import srt_lines
from vivavoce_client.batch.epub import epub_chapters
from vivavoce_client.batch.lines import Line, Track, tracks_of_chapters, tracks_of_lines
from vivavoce_client.batch.markdown_book import markdown_chapters
from vivavoce_client.batch.prose import pieces_of
from vivavoce_client.batch.table import csv_lines, json_lines
from vivavoce_client.input_files import BadFile, read_file

BOOKS = (".epub", ".md", ".markdown")


@dataclass(frozen=True, slots=True)
class Source:
    """The tracks of a file. `is_book` is true for chapters, which have several pieces each."""

    tracks: tuple[Track, ...]
    is_book: bool
    notes: tuple[str, ...] = ()
    """Remarks for the user."""


def read_source(path: str, depth: int) -> Source:
    """Reads a file of lines, or a book, whose chapters begin at headings of a depth. Raises BadFile."""
    suffix = Path(path).suffix.lower()
    name = Path(path).name
    notes: tuple[str, ...] = ()
    if suffix == ".epub":
        tracks = tracks_of_chapters(pieces_of(epub_chapters(path, depth)))
    elif suffix in BOOKS:
        tracks = tracks_of_chapters(pieces_of(markdown_chapters(read_text(path), Path(path).stem, depth)))
    elif suffix == ".csv":
        lines, unused = csv_lines(read_text(path), name)
        notes = (f"columns that are not used: {', '.join(unused)}",) if unused else ()
        tracks = tracks_of_lines(lines)
    elif reader := READERS.get(suffix):
        tracks = tracks_of_lines(reader(read_text(path), name))
    else:
        known = ", ".join((".csv", *READERS, *BOOKS))
        raise BadFile(f"{path} has none of the suffixes that tell what is in it: {known}")
    if not tracks:
        raise BadFile(f"{path} has nothing to say")
    return Source(tuple(tracks), suffix in BOOKS, notes)


def read_text(path: str) -> str:
    """The text of a UTF-8 file, with line feeds alone. Raises BadFile."""
    try:
        text = read_file(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadFile(f"{path} is not UTF-8: {error.reason} at byte {error.start}") from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def text_lines(text: str, name: str) -> list[Line]:
    """A line for each row that is not blank."""
    rows = enumerate(text.split("\n"), 1)
    return [Line(row.strip(), f"{name}, line {number}") for number, row in rows if row.strip()]


READERS: dict[str, Callable[[str, str], list[Line]]] = {".txt": text_lines, ".srt": srt_lines, ".jsonl": json_lines}
