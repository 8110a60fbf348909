"""The Dockerfile's instructions, by stage."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONTINUED = re.compile(r"\\\n")


def instructions() -> list[tuple[str, str, str]]:
    """(stage, instruction, its arguments), in order, with continued lines joined."""
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if not line.lstrip().startswith("#")]
    stage, found = "", []
    for line in CONTINUED.sub(" ", "\n".join(lines)).splitlines():
        word, _, rest = line.strip().partition(" ")
        if word == "FROM":
            stage = rest.partition(" AS ")[2] or "last"
        if word:
            found.append((stage, word, rest.strip()))
    return found


def of_stage(stage: str, word: str) -> list[str]:
    return [rest for where, what, rest in instructions() if (where, what) == (stage, word)]


def base_of(stage: str) -> str:
    return of_stage(stage, "FROM")[0].partition(" AS ")[0]


def ancestors(stage: str) -> list[str]:
    """The stage and those that it is made from."""
    stages = {where for where, _, _ in instructions()}
    return [stage, *(ancestors(base_of(stage)) if base_of(stage) in stages else [])]
