"""Texts about a setting for people: its help, its default, and the values that it takes."""

import ast
import inspect
import textwrap
import types
from pathlib import Path
from typing import Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo


def attribute_docs(cls: type) -> dict[str, str]:
    """Maps each attribute of a class to the string below it. Python keeps these strings in the source only."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(tree, ast.ClassDef)
    docs: dict[str, str] = {}
    for attribute, below in zip(tree.body, tree.body[1:], strict=False):
        match attribute, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(doc))):
                docs[name] = " ".join(doc.split())
    return docs


def members(field: FieldInfo) -> tuple[object, ...]:
    """The types that a setting may have, without None and without their constraints."""
    kind = field.annotation
    kinds = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    return tuple(_bare(each) for each in kinds if each is not type(None))


def _bare(kind: object) -> object:
    return get_args(kind)[0] if hasattr(kind, "__metadata__") else kind


def is_switch(field: FieldInfo) -> bool:
    return members(field) == (bool,)


def is_optional(field: FieldInfo) -> bool:
    """True if the setting may be None, which an empty text stands for."""
    return type(None) in get_args(field.annotation)


def is_number(field: FieldInfo) -> bool:
    return bool({int, float} & set(members(field)))


def choices_of(field: FieldInfo) -> tuple[str, ...]:
    """The words that a setting takes, if it takes nothing else."""
    kinds = members(field)
    return get_args(kinds[0]) if len(kinds) == 1 and get_origin(kinds[0]) is Literal else ()


def description(field: FieldInfo) -> str:
    """The values that a setting takes, for `... must be <description>`."""
    if choices := choices_of(field):
        return f"one of {', '.join(choices)}"
    kinds = members(field)
    if kinds == (bool,):
        return "true or false"
    words = [str(word) for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]
    if int in kinds:
        words.insert(0, f"a whole number{_range(field)}")
    elif float in kinds:
        words.insert(0, f"a number{_range(field)}")
    elif any(get_origin(kind) is tuple for kind in kinds):
        words.insert(0, "a list of words, or words between commas")
    elif Path in kinds:
        words.insert(0, "a path")
    return ", or ".join(words) or "a text"


def _range(field: FieldInfo) -> str:
    """The limits of a number, as words; of a union, those of its member with limits."""
    limits = [*field.metadata]
    for kind in get_args(field.annotation):
        for each in getattr(kind, "__metadata__", ()):
            limits += getattr(each, "metadata", [each])
    low = next((f"{each.ge:g}" for each in limits if isinstance(each, Ge)), None)
    above = next((f"{each.gt:g}" for each in limits if isinstance(each, Gt)), None)
    high = next((each.le for each in limits if isinstance(each, Le)), None)
    below = next((each.lt for each in limits if isinstance(each, Lt)), None)
    if low is not None and high is not None:
        return f" from {low} to {_plain(high)}"
    parts = [f"from {low} on" if low is not None else "", f"above {above}" if above is not None else ""]
    parts += [f"at most {_plain(high)}" if high is not None else "", f"below {_plain(below)}" if below else ""]
    told = " and ".join(filter(None, parts))
    return f" {told}" if told else ""


def _plain(limit: object) -> str:
    return f"{limit:.0f}" if isinstance(limit, float) and limit.is_integer() else str(limit)


def metavar(name: str, field: FieldInfo) -> str:
    """The placeholder of a value in the help."""
    if choices := choices_of(field):
        return "{" + ",".join(choices) + "}"
    if is_number(field):
        return next((unit for end, unit in UNITS.items() if name.endswith(end)), "N")
    if Path in members(field):
        return "FOLDER" if name.endswith("_dir") else "FILE"
    return "LIST" if any(get_origin(kind) is tuple for kind in members(field)) else "TEXT"


UNITS = {"_ms": "MILLISECONDS", "_s": "SECONDS", "_bytes": "BYTES"}


def default_text(field: FieldInfo) -> str:
    """The default for the help, in brackets; empty if there is none to show."""
    default = field.default
    if default is None or default == () or default == "":
        return ""
    if isinstance(default, bool):
        return f" [{'on' if default else 'off'}]"
    return f" [{default:g}]" if isinstance(default, float) else f" [{default}]"
