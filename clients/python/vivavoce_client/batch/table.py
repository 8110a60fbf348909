"""Lines of tables: CSV with a column of voices, and JSON lines."""

import argparse
import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from vivavoce_client.arguments import near_match, number_of, shown
from vivavoce_client.batch.lines import Line
from vivavoce_client.input_files import BadFile
from vivavoce_client.protocol import SpeechOptions

TEXT_COLUMNS = ("text", "input")
DELIMITERS = ",;\t|"
COLUMNS: dict[str, Callable[[str], Any]] = {
    "voice": str,
    "instructions": str,
    "language": str,
    "seed": int,
    "speed": number_of,
}
"""Columns of a CSV file beside the text → type of the request's field of that name."""
OF_THE_JOB = {"response_format": "--format", "word_timestamps": "--words", "model": "--model"}
"""Fields of a request that all lines of a job share → the option that sets them."""
FIELDS = {"voice", *SpeechOptions.__annotations__} - OF_THE_JOB.keys()
MAX_CELL_CHARS = 1 << 20
"""Most characters of a cell, as many as a server may be told to take."""


def csv_lines(text: str, name: str) -> tuple[list[Line], list[str]]:
    """The lines of a CSV file with a row of names, and the columns that are not used. Raises BadFile."""
    heading = text.partition("\n")[0]
    delimiter = max(DELIMITERS, key=heading.count)
    csv.field_size_limit(MAX_CELL_CHARS)
    rows = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    lines = []
    try:
        columns = {column: column.strip().lower() for column in rows.fieldnames or ()}
        _check_once([column.strip().lower() for column in rows.fieldnames or ()], name)
        spoken = _text_column(columns.values(), name)
        unused = _unused(columns.values(), name)
        for row in rows:
            place = f"{name}, line {rows.line_num}"
            cells = {columns[column]: (cell or "").strip() for column, cell in row.items() if column in columns}
            if None in row.values() or None in row:
                raise BadFile(f"{place} has not as many cells as the row of names")
            fields = {column: _value(column, cells[column], place) for column in COLUMNS if cells.get(column)}
            if cells[spoken]:
                lines.append(Line(cells[spoken], place, fields))
    except csv.Error as error:
        raise BadFile(f"{name}, line {rows.reader.line_num}: {error}") from error
    return lines, unused


def json_lines(text: str, name: str) -> list[Line]:
    """The lines of a JSON lines file: objects with a text and fields of a request. Raises BadFile."""
    lines = []
    for number, row in enumerate(text.split("\n"), 1):
        if not row.strip():
            continue
        place = f"{name}, line {number}"
        try:
            given = json.loads(row, parse_constant=_no_number)
            # What Python reads beside JSON cannot be sent: numbers without an end, halves of a character.
            json.dumps(given, allow_nan=False, ensure_ascii=False).encode()
        except (ValueError, RecursionError) as error:
            raise BadFile(f"{place} is not JSON: {error}") from error
        if not isinstance(given, dict):
            raise BadFile(f'{place} is no object such as {{"text": "Hello.", "voice": "heart"}}')
        spoken = _text_column(given, place)
        said = given.pop(spoken)
        if not isinstance(said, str):
            raise BadFile(f"{place}: {spoken} is {shown(said)}, not a text")
        _check_fields(given, place)
        if said.strip():
            lines.append(Line(said, place, {field: value for field, value in given.items() if value is not None}))
    return lines


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _text_column(columns: Iterable[str], place: str) -> str:
    found = [column for column in columns if column in TEXT_COLUMNS]
    if len(found) != 1:
        raise BadFile(f"{place} has {'two texts' if found else 'no text'}: one of `text` and `input` names it")
    return found[0]


def _check_once(columns: list[str], name: str) -> None:
    """Raises BadFile for two columns of one meaning, of which a line would take either."""
    twice = [column for column in COLUMNS if columns.count(column) > 1]
    if twice:
        raise BadFile(f"{name} has the column {shown(twice[0])} twice")


def _unused(columns: Iterable[str], name: str) -> list[str]:
    """Columns that say nothing to a server. Raises BadFile for one that is most likely misspelt."""
    unused = [column for column in columns if column and column not in (*TEXT_COLUMNS, *COLUMNS)]
    for column in unused:
        if hint := near_match(column, COLUMNS):
            raise BadFile(f"{name} has a column {shown(column)}{hint}")
    return unused


def _value(column: str, cell: str, place: str) -> str | int | float:
    try:
        value: str | int | float = COLUMNS[column](cell)
    except (ValueError, argparse.ArgumentTypeError) as error:
        kind = "a whole number" if COLUMNS[column] is int else "a number"
        raise BadFile(f"{place}: {column} is {shown(cell)}, not {kind}") from error
    return value


def _check_fields(given: Mapping[str, Any], place: str) -> None:
    for field in given:
        if field in OF_THE_JOB:
            raise BadFile(f"{place}: {field} is the same for all lines; give {OF_THE_JOB[field]}")
        if field not in FIELDS:
            raise BadFile(f"{place}: a request has no field {shown(field)}{near_match(field, FIELDS)}")
