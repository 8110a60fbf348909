"""Pairs of written and spoken text, for the judgement of how a voice reads.

A file has a header and a pair a line, with tabs between: language, kind, written, spoken, note. ` || ` separates
readings that are all right; `\\n`, `\\\\` and `\\uXXXX` are escapes. Pairs of the kind "unchanged" are said as they are
written.
"""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vivavoce_eval.errors import Unusable

UNCHANGED = "unchanged"
ESCAPE = re.compile(r"\\(u[0-9a-f]{4}|n|\\)")
MIN_FIELDS = 4


@dataclass(frozen=True, slots=True)
class Pair:
    """A written text, and the readings that are right."""

    language: str
    kind: str
    written: str
    readings: tuple[str, ...]


def read_pairs(path: Path) -> list[Pair]:
    """Reads the pairs of a file.

    Raises:
        Unusable: the file cannot be read, or a line has too few fields. The message names the line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise Unusable(f"{path} cannot be read: {error}") from error
    pairs = []
    for number, line in enumerate(lines[1:], start=2):
        fields = line.split("\t")
        if len(fields) < MIN_FIELDS:
            raise Unusable(f"{path}: line {number} is not `language TAB kind TAB written TAB spoken`: {line!r}")
        language, kind, written, spoken = fields[:MIN_FIELDS]
        pairs.append(Pair(language, kind, unescaped(written), tuple(unescaped(spoken).split(" || "))))
    return pairs


def unescaped(text: str) -> str:
    def sign(match: re.Match[str]) -> str:
        code = match[1]
        return {"n": "\n", "\\": "\\"}.get(code) or chr(int(code[1:], 16))

    return ESCAPE.sub(sign, text)


def choose(pairs: Sequence[Pair], count: int, seed: int) -> list[Pair]:
    """Chooses English pairs that are said otherwise than written, always the same ones for a seed, in their order."""
    numbers = [number for number, pair in enumerate(pairs) if pair.language == "en" and pair.kind != UNCHANGED]
    if not numbers:
        raise Unusable("the file has no English pair that is said otherwise than written")
    chosen = random.Random(seed).sample(numbers, min(count, len(numbers)))
    return [pairs[number] for number in sorted(chosen)]
