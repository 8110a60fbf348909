"""Names of the stages of reading, as requests and settings give them."""

from collections.abc import Iterable
from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field, PlainSerializer
from pydantic_core import PydanticCustomError
from vivavoce_text import STAGES, Stage

from vivavoce_server.errors import SHOWN_CHARS

OlderName = Literal["markdown", "links"]
OLDER_NAMES: Final[dict[OlderName, tuple[Stage, ...]]] = {"markdown": ("markup",), "links": ("urls", "emails", "names")}
"""Names besides STAGES, and the stages that they stand for."""
MAX_NAMES = 32
"""Most names in a choice."""
StageName = Stage | OlderName
ALL_STAGES: Final[frozenset[Stage]] = frozenset(STAGES)


def stages_of(names: Iterable[StageName]) -> frozenset[Stage]:
    """The stages with these names."""
    stages: set[Stage] = set()
    for name in names:
        if name == "markdown" or name == "links":
            stages.update(OLDER_NAMES[name])
        else:
            stages.add(name)
    return frozenset(stages)


def _refuse_unknown(value: Iterable[object], others: str) -> None:
    """Refuses an unknown name with a message that lists the names, and `others` that are no stages."""
    names = (*STAGES, *OLDER_NAMES)
    for name in value:
        if name not in names:
            message = "there is no stage {name}; there are {names}{others}"
            shown = repr(name[:SHOWN_CHARS]) if isinstance(name, str) else f"of type {type(name).__name__}"
            context = {"name": shown, "names": ", ".join(names), "others": others}
            raise PydanticCustomError("unknown_stage", message, context)


def _chosen(value: object) -> object:
    """Refuses a wrong choice with a message that says what works. pydantic's own speaks of a union."""
    if not isinstance(value, bool | list | tuple):
        raise PydanticCustomError("no_choice", "give true, false or a list of stages")
    if not isinstance(value, bool):
        if len(value) > MAX_NAMES:
            raise PydanticCustomError("too_long", "give at most {most} stages", {"most": MAX_NAMES})
        _refuse_unknown(value, "")
    return value


StageChoice = Annotated[bool | Annotated[list[StageName], Field(max_length=MAX_NAMES)], BeforeValidator(_chosen)]
"""A request's choice: all stages, none, or the named ones."""


def _parsed(value: object) -> object:
    if not isinstance(value, str):
        return value
    word = value.strip().lower()
    if word in ("true", "false"):
        return word == "true"
    names = tuple(filter(None, map(str.strip, word.split(","))))
    if not names:
        raise PydanticCustomError("no_choice", "give checkpoint, true, false or stages between commas")
    if names == ("checkpoint",):
        return word
    _refuse_unknown(names, ", and checkpoint, true and false for a choice without names")
    return names


StageSetting = Annotated[
    bool | tuple[StageName, ...] | Literal["checkpoint"], BeforeValidator(_parsed), PlainSerializer(str)
]
"""An operator's choice for requests that make none: `checkpoint`, all stages, none, or the named ones."""
