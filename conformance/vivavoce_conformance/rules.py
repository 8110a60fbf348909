"""Checks of a speech server: what each one asks for, how strongly, and on whose authority."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal

from vivavoce_conformance.target import Target

Level = Literal["must", "should", "extension"]
LEVELS: tuple[Level, ...] = ("must", "should", "extension")
Outcome = Literal["passed", "failed", "skipped"]
Body = Callable[[Target], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Check:
    """One rule. `run` returns if the server keeps it, and raises Failed or Skipped otherwise.

    `level` is "must" if clients break without it, "should" if they work with a loss, "extension" for what OpenAI's API
    does not have. `source` names the authority of the rule.
    """

    group: str
    name: str
    level: Level
    title: str
    source: str
    run: Body

    @property
    def id(self) -> str:
        return f"{self.group}.{self.name}"


@dataclass(slots=True)
class Group:
    """Checks of one subject, in the order of their definitions."""

    name: str
    about: str
    checks: list[Check] = field(default_factory=list)

    def check(self, level: Level, source: str, title: str) -> Callable[[Body], Body]:
        """Adds the decorated function as a check that has the function's name."""

        def add(run: Body) -> Body:
            self.add(run.__name__, level, source, title, run)
            return run

        return add

    def add(self, name: str, level: Level, source: str, title: str, run: Body) -> None:
        self.checks.append(Check(self.name, name, level, title, source, run))


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check. `reason` is empty if it passed."""

    check: Check
    outcome: Outcome
    reason: str
    seconds: float

    def fails(self, strict: bool) -> bool:
        """True if the run as a whole fails by it: a failed must, and with `strict` a failed should."""
        return self.outcome == "failed" and (self.check.level == "must" or (strict and self.check.level == "should"))


OPENAI = "OpenAI API reference, createSpeech"
SDK = "openai SDK 3.57, types/audio"
GUIDE = "OpenAI guide, Text to speech"
ERRORS = "OpenAI guide, Error codes"
PRACTICE = "common practice"
