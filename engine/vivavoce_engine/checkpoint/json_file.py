"""Typed values of a checkpoint's JSON files."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from vivavoce_engine.errors import CheckpointError

Json = Mapping[str, Any]
T = TypeVar("T")


class JsonFile:
    """Reads typed values from a JSON file. Its errors name the file and the key."""

    def __init__(self, path: Path, section: str = "", content: Json | None = None) -> None:
        self._path = path
        self._section = section
        if content is None:
            try:
                content = json.loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError, RecursionError) as error:
                raise CheckpointError(f"{path} is not readable JSON: {error}") from error
            if not isinstance(content, dict):
                raise CheckpointError(f"{path} holds no JSON object")
        self._content = content

    def where(self, key: str) -> str:
        return f"{self._path}: {self._section}{key}"

    def value(self, key: str, kind: type[T], default: T | None = None) -> T:
        value = self._content.get(key, default)
        if kind is float and type(value) is int:
            value = float(value)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise CheckpointError(f"{self.where(key)} must be {kind.__name__}, not {value!r}")
        return value

    def optional(self, key: str, kind: type[T]) -> T | None:
        return self.value(key, kind) if self.has(key) else None

    def choice(self, key: str, choices: tuple[T, ...], default: T | None = None) -> T:
        """Reads one of several values."""
        value = self._content.get(key, default)
        for choice in choices:
            if value == choice:
                return choice
        raise CheckpointError(f"{self.where(key)} is {value!r}, not one of {', '.join(map(repr, choices))}")

    def ints(self, key: str, default: list[int] | None = None) -> tuple[int, ...]:
        value = self.value(key, list, default)
        if not all(type(item) is int and item > 0 for item in value):
            raise CheckpointError(f"{self.where(key)} must be positive integers, not {value!r}")
        return tuple(value)

    def ids(self, key: str, below: int) -> dict[str, int]:
        """Reads a map from names to ids."""
        value = self.value(key, dict)
        for name, number in value.items():
            if type(number) is not int or not 0 <= number < below:
                raise CheckpointError(f"{self.where(key)}.{name} must be an id below {below}, not {number!r}")
        return value

    def section(self, key: str) -> "JsonFile":
        return JsonFile(self._path, f"{self._section}{key}.", self.value(key, dict))

    def has(self, key: str) -> bool:
        return self._content.get(key) is not None

    def must_have_only(self, *keys: str) -> None:
        """Refuses a key that nothing reads, most likely a typing error."""
        for key in self._content.keys() - set(keys):
            raise CheckpointError(f"{self.where(key)} is unknown; there are {', '.join(keys)}")

    def must_be(self, key: str, expected: object) -> None:
        """Refuses a variant of the architecture that this code does not compute. No released checkpoint has one."""
        if self._content.get(key, expected) != expected:
            raise CheckpointError(f"{self.where(key)} is {self._content[key]!r}; only {expected!r} is supported")
