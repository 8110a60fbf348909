"""Changes of single keys in a JSON file. All other bytes of the file stay as they are."""

import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

BLANKS = re.compile(r"\s*")
INDENT = re.compile(r"\n([ \t]+)\"")


def set_keys(text: str, values: Mapping[str, Any]) -> str:
    """Sets keys of the object that a JSON text holds: in their places if they are there, and else at its end.

    Raises:
        ValueError: the text holds no JSON object.
    """
    if not isinstance(json.loads(text), dict):
        raise ValueError("it holds no JSON object")
    places = {key: (start, end) for key, start, end in members(text)}
    for key, (start, end) in sorted(places.items(), key=lambda place: -place[1][0]):
        if key in values:
            text = text[:start] + json.dumps(values[key]) + text[end:]
    missing = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in values.items() if key not in places]
    if not missing:
        return text
    indent = INDENT.search(text)
    gap = f"\n{indent[1]}" if indent else " " if places else ""
    close = text.rindex("}")
    body = text[:close].rstrip()
    rest = text[len(body) :] if places or not indent else text[close:]
    lead = f",{gap}" if places else gap
    return body + lead + f",{gap or ' '}".join(missing) + rest


def members(text: str) -> Iterator[tuple[str, int, int]]:
    """Keys of the text's object, each with the place of its value: start and end (exclusive)."""
    decoder = json.JSONDecoder()

    def past(at: int) -> int:
        match = BLANKS.match(text, at)
        assert match is not None
        return match.end()

    at = past(past(0) + 1)
    while text[at] != "}":
        key, at = decoder.raw_decode(text, at)
        start = past(past(at) + 1)
        _, end = decoder.raw_decode(text, start)
        yield key, start, end
        at = past(end)
        at = past(at + 1) if text[at] == "," else at


def replace_file(path: Path, text: str) -> None:
    """Writes a file in one step: a reader sees the old content or the new. Its permissions stay.

    Raises:
        OSError: the folder cannot be written.
    """
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, path.stat().st_mode & 0o777)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
