"""The parser of all commands: errors of one line that name what was probably meant, switches, and --version."""

import argparse
import difflib
import math
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NoReturn

DISTRIBUTION = "vivavoce-speech"
USAGE_ERROR = 2
SHOWN_CHARS = 60
"""Most characters of a wrong value in a message."""


def package_version() -> str:
    """Version of the installed package, for people."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "not installed"


def shown(value: object) -> str:
    """A wrong value for a message: on one line, and not too long."""
    text = repr(value)
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}..."


def near_match(word: str, known: Iterable[str]) -> str:
    """A question for the end of a message, after a known word that is much alike; empty without one."""
    folded = {each.lower(): each for each in known}
    found = difflib.get_close_matches(word.lower(), folded, n=1, cutoff=0.6)
    return f"; did you mean {folded[found[0]]}?" if found else ""


def number_of(value: str) -> float:
    """A number of a command line, which JSON can send: neither NaN nor infinite. Raises ArgumentTypeError."""
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"{shown(value)} is not a number")
    return number


class Switch(argparse.Action):
    """A setting that is on or off: `--eager`, `--no-eager`; `--eager false` is taken too. The value is a word."""

    def __init__(self, option_strings: Sequence[str], dest: str, **kwargs: Any) -> None:  # noqa: ANN401
        flags = [*option_strings, *(f"--no-{flag.removeprefix('--')}" for flag in option_strings)]
        super().__init__(flags, dest, nargs="?", **kwargs)

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        is_off = (option_string or "").startswith("--no-")
        if is_off and values is not None:
            parser.error(f"{option_string} takes no value, not {shown(values)}")
        setattr(namespace, self.dest, "false" if is_off else "true" if values is None else values)


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Help whose options stand before a column of text that is wide enough to be read."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if isinstance(action, Switch):
            return ", ".join(action.option_strings)
        return super()._format_action_invocation(action)


class Parser(argparse.ArgumentParser):
    """An argparse parser that ends with one line and status 2 where a command line is wrong.

    Options are not abbreviated: a later option could make the abbreviation mean something else.
    """

    def __init__(self, **kwargs: Any) -> None:  # noqa: ANN401  # those of argparse
        kwargs.setdefault("formatter_class", HelpFormatter)
        kwargs.setdefault("allow_abbrev", False)
        super().__init__(**kwargs)
        if self.add_help:
            version_text = f"vivavoce {package_version()}"
            self.add_argument("--version", action="version", version=version_text, help="show the version and exit")

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE_ERROR, f"{self.prog}: {message}\n")

    def parse_known_args(  # type: ignore[override]  # a subcommand's parser is called by this name
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self._refuse(unknown[0])
        return parsed, unknown

    def _refuse(self, word: str) -> NoReturn:
        """Ends with the word that no option or argument takes."""
        if not word.startswith("-"):
            self.error(f"there is nothing to do with {shown(word)}")
        name = word.partition("=")[0]
        flags = [flag for action in self._actions for flag in action.option_strings if flag.startswith("--")]
        hint = near_match(name, flags) or f"; {self.prog} --help lists all"
        self.error(f"there is no option {shown(name)[1:-1]}{hint}")

    def _check_value(self, action: argparse.Action, value: object) -> None:
        choices = None if action.choices is None else [str(choice) for choice in action.choices]
        if choices is not None and value not in choices:
            what = "command" if isinstance(action, argparse._SubParsersAction) else "choice"
            hint = near_match(str(value), choices)
            message = f"there is no {what} {shown(value)} among {', '.join(choices)}{hint}"
            if what == "command":
                self.error(message)
            raise argparse.ArgumentError(action, message)
