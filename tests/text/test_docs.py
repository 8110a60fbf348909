"""The examples of docs/text.md are read as the page says."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from vivavoce_text import STAGES, Profile, speakable

PAGE = Path(__file__).parents[2] / "docs" / "text.md"
SHIPPED_VOICE = Profile(frozenset(STAGES), "names", "ascii")
CODE = re.compile(r"`([^`]+)`")


def tables() -> Iterator[tuple[list[str], list[dict[str, str]]]]:
    """The tables of the page: names of the columns, and rows by name."""
    for block in re.findall(r"(?:^\|.*\n)+", PAGE.read_text(encoding="utf-8"), re.MULTILINE):
        header, _, *rows = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in block.splitlines()]
        yield header, [dict(zip(header, row, strict=True)) for row in rows]


def examples() -> list[tuple[str, str]]:
    """Written and spoken text of each example."""
    return [
        (CODE.fullmatch(row["written"])[1], CODE.fullmatch(row["spoken"])[1])  # type: ignore[index]
        for header, rows in tables()
        if {"written", "spoken"} <= set(header)
        for row in rows
    ]


@pytest.mark.parametrize(("written", "spoken"), examples())
def test_an_example_is_read_as_the_page_says(written: str, spoken: str) -> None:
    assert speakable(written, "en", SHIPPED_VOICE).text == spoken


def test_the_page_has_an_example_of_every_stage() -> None:
    (rows,) = [rows for header, rows in tables() if header[0] == "stage"]
    named = [match[1] for row in rows if (match := CODE.fullmatch(row["stage"]))]
    assert named == list(STAGES)
    for row in rows:
        written, spoken = (CODE.fullmatch(row[name]) for name in ("written", "spoken"))
        assert written is not None
        assert spoken is not None
        assert written[1] != spoken[1]
