"""Reads the package's tables: data/LANGUAGE/NAME.tsv, one rule a line. Lines that begin with "# " are notes."""

import gzip
from functools import cache
from importlib.resources import files

Row = tuple[str, ...]


@cache
def rows_of(language: str, name: str) -> tuple[Row, ...]:
    """The rows of a table, each split at its tabs."""
    lines = (files("vivavoce_text") / "data" / language / f"{name}.tsv").read_text(encoding="utf-8").splitlines()
    return tuple(tuple(line.split("\t")) for line in lines if line.strip() and not line.startswith("# "))


@cache
def words_of(language: str, name: str) -> frozenset[str]:
    """The first column of a table."""
    return frozenset(row[0] for row in rows_of(language, name))


@cache
def readings_of(language: str, name: str) -> dict[str, str]:
    """The second column of a table, by the first."""
    return {row[0]: row[1] for row in rows_of(language, name)}


@cache
def dictionary_of(language: str) -> frozenset[str]:
    """The words of a language in small letters: data/LANGUAGE/words.txt.gz. The first use takes some 40 ms."""
    packed = (files("vivavoce_text") / "data" / language / "words.txt.gz").read_bytes()
    return frozenset(gzip.decompress(packed).decode("utf-8").split("\n")[1:])
