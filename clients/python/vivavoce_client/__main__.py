"""The command `vivavoce`. It knows `say` and `voices`; other commands come from the packages that are installed.

Such a command is an entry point of the group "vivavoce.commands" whose value has the two functions of `Command`.
"""

import argparse
import os
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Protocol

from vivavoce_client import say, voices
from vivavoce_client.protocol import VivavoceError

COMMAND_GROUP = "vivavoce.commands"
EXTRAS = {"serve": "server", "bench": "engine"}
"""Command → the extra of vivavoce-speech that brings what it imports."""
USAGE_ERROR, FAILURE = 2, 1


class Command(Protocol):
    """What an entry point of COMMAND_GROUP gives: a module or an object with these."""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None: ...

    @staticmethod
    def run(args: argparse.Namespace) -> int: ...


def main(argv: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else argv
    installed = {entry.name: entry for entry in entry_points(group=COMMAND_GROUP)}
    parser = argparse.ArgumentParser(prog="vivavoce", description="Streaming speech of the Qwen3-TTS family")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    say_parser = commands.add_parser("say", help="speak a text: play it, or write a file")
    say.add_say_arguments(say_parser)
    voices.add_voices_arguments(commands.add_parser("voices", help="list, store, mix and delete voices of a server"))
    run: dict[str, Callable[[argparse.Namespace], int]] = {"say": say.say, "voices": voices.run}
    for name, entry in installed.items():
        command_parser = commands.add_parser(name, help=f"see `vivavoce {name} --help`")
        # Loading means importing, torch perhaps: only for the command that was asked for.
        if arguments[:1] == [name]:
            try:
                command = load_command(entry)
            except ImportError as error:
                return missing(name, error)
            command.add_arguments(command_parser)
            run[name] = command.run
    args = parser.parse_args(arguments)
    try:
        return run[args.command](args)
    except VivavoceError as error:
        print(f"vivavoce: {error}", file=sys.stderr)
        return FAILURE
    except KeyboardInterrupt:
        return FAILURE
    except BrokenPipeError:
        # The reader of standard output has heard enough. Python would complain once more when it flushes at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILURE


def load_command(entry: EntryPoint) -> Command:
    command: Command = entry.load()
    return command


def missing(name: str, error: ImportError) -> int:
    extra = EXTRAS.get(name, name)
    print(
        f"vivavoce: `vivavoce {name}` needs more than the client ({error}). "
        f"Install it with: pip install 'vivavoce-speech[{extra}]'",
        file=sys.stderr,
    )
    return USAGE_ERROR


if __name__ == "__main__":
    sys.exit(main())
