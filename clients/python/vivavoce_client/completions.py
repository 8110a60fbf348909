"""`vivavoce completions SHELL`: the script by which a shell completes commands, options, choices and files.

shtab writes it. A bare install has no shtab (the extra `completions` brings it).
"""

import argparse
import sys
from collections.abc import Mapping

from vivavoce_client.arguments import Switch

SHELLS = ("bash", "zsh", "fish")
EXAMPLES = """\
examples:
  vivavoce completions bash > ~/.local/share/bash-completion/completions/vivavoce
  vivavoce completions zsh > ~/.zfunc/_vivavoce          (with fpath+=~/.zfunc before compinit in ~/.zshrc)
  vivavoce completions fish > ~/.config/fish/completions/vivavoce.fish
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument("shell", choices=SHELLS, help="shell that reads the script")


def print_script(parser: argparse.ArgumentParser, shell: str) -> None:
    """Prints the script for a parser. Raises ModuleNotFoundError if there is no shtab."""
    import shtab

    prepare(parser, {"FILE": shtab.FILE, "FOLDER": shtab.DIRECTORY})
    sys.stdout.write(f"{shtab.complete(parser, shell)}\n")


def prepare(parser: argparse.ArgumentParser, paths: Mapping[str, object]) -> None:
    """Tells shtab what the placeholders of options stand for, in this parser and those of its commands."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                prepare(command, paths)
        elif isinstance(action, Switch):
            action.nargs = 0
        elif isinstance(action.metavar, str) and action.metavar.startswith("{"):
            action.choices = action.metavar[1:-1].split(",")
        elif isinstance(action.metavar, str) and action.metavar in paths:
            action.complete = paths[action.metavar]  # type: ignore[attr-defined]
