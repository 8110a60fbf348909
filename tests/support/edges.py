"""Values at and beyond the edges of every field that a JSON schema describes, and the JSON documents that carry them.

A schema of pydantic, of a route or of a message, is all that a caller gives: a field that is added to a model is tried
without a line here.
"""

import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

Schema = dict[str, Any]
Path = tuple[str | int, ...]
"""Keys and indices from the document to the value."""

MANY = 100_000
"""Elements of a list that no schema should take."""
MANY_CHARS = 2**20
DIGITS = 5000
"""Digits of a number that Python refuses to read as an integer (its limit is 4300)."""


@dataclass(frozen=True, slots=True)
class Literal:
    """JSON that `json.dumps` would not write: NaN, or more digits than Python converts."""

    text: str


@dataclass(frozen=True, slots=True)
class Field:
    """A value of a document: its place, and all schemas that it may have, without references and alternatives."""

    path: Path
    kinds: tuple[Schema, ...]

    @property
    def label(self) -> str:
        return ".".join(map(str, self.path))

    @property
    def name(self) -> str:
        """The innermost key."""
        return next(str(part) for part in reversed(self.path) if isinstance(part, str))

    def types(self) -> set[str]:
        return {kind.get("type", "") for kind in self.kinds}


@dataclass(frozen=True, slots=True)
class Edge:
    """One value for one field. `label` tells it in a failure, where a value of a megabyte does not."""

    label: str
    value: object


# ---- values ---------------------------------------------------------------------------------------------------

NUMBERS = (
    *(0, -0.0, -1, 1, 1.5, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64, -(2**63) - 1),
    *(1e308, -1e308, 1e-308, 5e-324, 1e-38, 1e-45),
)
NUMBER_TEXTS = ("NaN", "Infinity", "-Infinity", "1e309", "-1e309", "1" * 308, "9" * DIGITS, "1e999999999")
STRANGE_DIGITS = ("5", "\u00b2", "\u0665", "\uff15", "\u0be7", "\u2167", "1_0", " 1", "0x1", "1" * DIGITS, "nan", "inf")
"""Texts that one of Python's functions takes for a number: superscript, Arabic, wide and Tamil digits, a Roman one."""


def numbers(kinds: Sequence[Schema]) -> Iterator[Edge]:
    values: list[int | float] = list(NUMBERS)
    for kind in kinds:
        for key in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"):
            if key in kind:
                edge = kind[key]
                values += [edge, edge - 1, edge + 1, edge * (1 - 2**-40), edge * (1 + 2**-40)]
                values += [int(edge)] if float(edge).is_integer() else []
    for value in dict.fromkeys((type(value), value) for value in values):
        yield Edge(repr(value[1]), value[1])
    for text in NUMBER_TEXTS:
        yield Edge(text[:20], Literal(text))
    for text in STRANGE_DIGITS:
        yield Edge(f"text {text[:20]!r}", text)


def texts(kinds: Sequence[Schema]) -> Iterator[Edge]:
    for kind in kinds:
        if "maxLength" in kind:
            yield Edge("one character too many", "a" * (kind["maxLength"] + 1))
    yield Edge("empty", "")
    yield Edge("NUL", "a\0b")
    yield Edge("half a character", Literal('"a\\ud800"'))
    yield Edge("a megabyte", "a" * MANY_CHARS)
    yield Edge("a megabyte of blanks", " " * MANY_CHARS)


def lists(kinds: Sequence[Schema], root: Schema) -> Iterator[Edge]:
    yield Edge("[]", [])
    for kind in kinds:
        if kind.get("type") != "array":
            continue
        one = example(kind.get("items", {}), root)
        most = kind.get("maxItems", MANY)
        yield Edge("1 element", [one])
        yield Edge(f"{most} elements", [one] * most)
        yield Edge(f"{most + 1} elements", [one] * (most + 1))
    wrongs: tuple[object, ...] = ({}, "a", Literal("NaN"))
    for wrong in wrongs:
        yield Edge(f"{MANY} times {str(wrong)[:20]}", [wrong] * MANY)


def some_values(field: Field, root: Schema) -> Iterator[Edge]:
    """All values of a field with numbers or elements, and each third of another's."""
    return islice(values(field, root), 0, None, 1 if field.types() & {"integer", "number", "array"} else 3)


def objects() -> Iterator[Edge]:
    yield Edge("{}", {})
    yield Edge(f"{MANY} keys", {f"k{number}": number for number in range(MANY)})


def values(field: Field, root: Schema) -> Iterator[Edge]:
    """All values that are tried for a field."""
    of_types = field.types()
    yield from (Edge("null", None), Edge("true", True), Edge("a number", 7), Edge("a word", "word"))
    yield from (
        Edge("1000 brackets", Literal("[" * 1000 + "]" * 1000)),
        Edge("a list", [1]),
        Edge("an object", {"a": 1}),
    )
    if of_types & {"integer", "number"}:
        yield from numbers(field.kinds)
    if "string" in of_types:
        yield from texts(field.kinds)
    if "array" in of_types:
        yield from lists(field.kinds, root)
    if "object" in of_types:
        yield from objects()


# ---- schemas --------------------------------------------------------------------------------------------------


def resolved(schema: Schema, root: Schema) -> tuple[Schema, ...]:
    """The alternatives of a schema, without references."""
    if "$ref" in schema:
        found: Any = root
        for key in schema["$ref"].removeprefix("#/").split("/"):
            found = found[key]
        return resolved(found, root)
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            return tuple(kind for alternative in schema[key] for kind in resolved(alternative, root))
    return (schema,)


def fields(schema: Schema, root: Schema) -> list[Field]:
    """Every value of a document with this schema, containers before their contents. Lists are entered once."""
    found: dict[Path, list[Schema]] = {}
    _collect(schema, root, (), found)
    return [Field(path, tuple(kinds)) for path, kinds in found.items() if path]


def _collect(schema: Schema, root: Schema, path: Path, found: dict[Path, list[Schema]]) -> None:
    kinds = resolved(schema, root)
    found.setdefault(path, []).extend(kinds)
    for kind in kinds:
        for name, inner in kind.get("properties", {}).items():
            _collect(inner, root, (*path, name), found)
        if "items" in kind:
            _collect(kind["items"], root, (*path, 0), found)


def _needed(kind: Schema) -> list[str]:
    """Fields of a good object: those that are required, or `input` where `segments` may stand for it."""
    needed: list[str] = kind.get("required", [])
    return needed or [name for name in ("input",) if name in kind.get("properties", {})]


def example(schema: Schema, root: Schema) -> object:
    """The smallest good value of a schema's first alternative."""
    kind = resolved(schema, root)[0]
    if "const" in kind or "enum" in kind:
        return kind.get("const", kind.get("enum", [None])[0])
    match kind.get("type"):
        case "object":
            inner = kind.get("properties", {})
            return {name: example(inner[name], root) for name in _needed(kind)}
        case "array":
            return [example(kind["items"], root)] if "items" in kind else []
        case "string":
            return "Hi."
        case "integer" | "number":
            return max(kind.get("minimum", 1), 1) if kind.get("maximum", 1) >= 1 else kind["maximum"]
        case "boolean":
            return True
        case _:
            return None


# ---- documents ------------------------------------------------------------------------------------------------


def with_value(document: object, field: Field, value: object, schema: Schema, root: Schema) -> object:
    """The document with the value at the field's place. Missing containers get what they require."""
    return _put(document, field.path, value, schema, root)


def numbers_in_texts() -> Iterator[tuple[str, Edge]]:
    """Fields of text that hold numbers of their own, which no schema describes: (field, text)."""
    for number in (*map(repr, NUMBERS), *NUMBER_TEXTS, *STRANGE_DIGITS):
        yield "voice", Edge(f"a mix of {number[:20]}", f"heart({number})+michael(1)")
        yield "input", Edge(f"a pause of {number[:20]}", f"Hi. [pause:{number}s] Hi.")
        yield "input", Edge(f"a pause of {number[:20]} ms", f"Hi. [pause:{number}ms] Hi.")
        yield "input", Edge(f"a break of {number[:20]}", f'Hi. <break time="{number}s" /> Hi.')
        yield "input", Edge(f"the number {number[:20]}", f"It is {number}, ${number} or {number} km.")


def _put(document: object, path: Path, value: object, schema: Schema, root: Schema) -> object:
    if not path:
        return value
    first, rest = path[0], path[1:]
    for kind in resolved(schema, root):
        if (
            isinstance(first, int)
            and kind.get("type") == "array"
            and "items" in kind
            and _holds(kind["items"], rest, root)
        ):
            held = document if isinstance(document, list) and document else [example(kind["items"], root)]
            return [_put(held[0], rest, value, kind["items"], root), *held[1:]]
        inner = kind.get("properties", {}).get(first)
        if inner is not None and _holds(inner, rest, root):
            own: dict[str, object] = document if isinstance(document, dict) else {}
            given = {name: example(kind["properties"][name], root) for name in _needed(kind)} | own
            return given | {str(first): _put(given.get(str(first)), rest, value, inner, root)}
    raise AssertionError(f"{path} is not in the schema")


def _holds(schema: Schema, path: Path, root: Schema) -> bool:
    if not path:
        return True
    for kind in resolved(schema, root):
        inner = kind.get("items") if isinstance(path[0], int) else kind.get("properties", {}).get(path[0])
        if inner is not None and _holds(inner, path[1:], root):
            return True
    return False


def as_json(document: object) -> bytes:
    """The document as JSON, with its Literals as they are."""
    held: list[str] = []

    def mark(value: object) -> str:
        assert isinstance(value, Literal), value
        held.append(value.text)
        return f"\0{len(held) - 1}\0"

    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        text = json.dumps(document, default=mark)
    finally:
        sys.set_int_max_str_digits(before)
    return re.sub(r'"\\u0000(\d+)\\u0000"', lambda found: held[int(found[1])], text).encode()
