"""Cells of tables in Markdown, and the figures in them."""

import math
from collections.abc import Sequence

Rows = list[list[str]]
"""The cells of a table. The first row is its head."""
NONE = ""


def number(value: float | None) -> str:
    """Three significant digits, and no fewer than the whole part: 2.17, 16.9, 926, 1544."""
    if value is None:
        return NONE
    digits = 2 if value == 0 else max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{digits}f}"


def numbers(values: Sequence[float | None], between: str = " / ") -> str:
    """Several figures in a cell; nothing if one is missing."""
    return NONE if None in values else between.join(map(number, values))


def markdown(rows: Rows) -> list[str]:
    """Lines of a table in Markdown."""
    head, *others = rows
    return [_line(head), "|" + "---|" * len(head), *map(_line, others)]


def _line(cells: Sequence[str]) -> str:
    return "|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|"
