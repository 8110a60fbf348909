"""The command `vivavoce`.

`batch`, `say`, `text`, `verify` and `voices` are built in. Other commands come from installed packages, as entry points
of COMMAND_GROUP, and of BENCH_GROUP for `vivavoce bench`. The value of such an entry point has the two functions of
`Command`.
"""

import argparse
import importlib.util
import os
import sys
from importlib.metadata import EntryPoint, entry_points
from typing import Protocol

from vivavoce_client import completions, say, text, verify, voices
from vivavoce_client.arguments import USAGE_ERROR, Parser, shown
from vivavoce_client.batch import command as batch
from vivavoce_client.protocol import VivavoceError

COMMAND_GROUP = "vivavoce.commands"
BENCH_GROUP = "vivavoce.bench"
EXTRAS = {
    "acceptance": "server",
    "card": "server",
    "doctor": "server",
    "engine": "server",
    "plan": "engine",
    "reading": "server",
    "serve": "server",
    "steps": "server",
}
"""Command → the extra of vivavoce-speech that installs its imports. By default the extra has the command's name."""
HELP = {
    "acceptance": "measure how often codes of a frame can be guessed ahead",
    "card": "measure this machine's NVIDIA card, for the table of cards",
    "conformance": "check a speech server against the rules of OpenAI's API",
    "compare": "measure two servers under the same load",
    "doctor": "check what serving needs of this machine, and say what mends a lack",
    "engine": "measure the engine on this machine",
    "eval": "judge the speech of a voice",
    "load": "measure a server under load, as its listeners hear it",
    "pace": "measure the pace of long texts, and whether it drifts",
    "plan": "compute how many replicas a rate of requests needs",
    "reading": "measure the time and memory that the reading of written text takes",
    "serve": "serve speech over HTTP and WebSocket",
    "steps": "record step times on this machine, for `bench plan`",
}
"""Command → its line in the list of commands, which shows it without importing the command."""
FAILURE = 1


class Command(Protocol):
    """The value of an entry point: a module or an object with these functions."""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None: ...

    @staticmethod
    def run(args: argparse.Namespace) -> int: ...


class NotInstalled(Exception):
    """A command needs a package that is not installed. The message says how to install it."""


def main(argv: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else argv
    try:
        args = build_parser(arguments).parse_args(arguments)
    except NotInstalled as error:
        print(f"vivavoce: {error}", file=sys.stderr)
        return USAGE_ERROR
    try:
        status: int = args.run(args)
    except VivavoceError as error:
        print(f"vivavoce: {error}", file=sys.stderr)
        return FAILURE
    except UnicodeEncodeError as error:
        # Python keeps bytes of a command line that are no text as halves of characters, which nothing can send.
        print(f"vivavoce: a text cannot be written as {error.encoding}: {shown(error.object)}", file=sys.stderr)
        return FAILURE
    except ModuleNotFoundError as error:
        # A command may import what it needs when it runs. A module of a package that is there is a fault of ours.
        package = (error.name or "").partition(".")[0]
        if not package or sys.modules.get(package) is not None or importlib.util.find_spec(package) is not None:
            raise
        print(f"vivavoce: {needs(getattr(args, 'bench', args.command), error)}", file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:
        return FAILURE
    except BrokenPipeError:
        # The reader of standard output has closed it. Python would report that again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILURE
    return status


def build_parser(arguments: list[str] | None) -> Parser:
    """Builds the parser for these arguments, or with None a parser of all that is installed. Raises NotInstalled."""
    parser = Parser(prog="vivavoce", description="Streaming speech of the Qwen3-TTS family")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    say_parser = commands.add_parser("say", help="speak a text: play it, or write a file")
    say.add_say_arguments(say_parser)
    say_parser.set_defaults(run=say.say)
    batch_parser = commands.add_parser("batch", help="speak a file of lines or a book, into numbered files")
    batch.add_arguments(batch_parser)
    batch_parser.set_defaults(run=batch.run)
    text_parser = commands.add_parser("text", help="show what a server would say of a text")
    text.add_arguments(text_parser)
    text_parser.set_defaults(run=text.run)
    verify_parser = commands.add_parser("verify", help="tell whether an audio file says that it is synthetic")
    verify.add_arguments(verify_parser)
    verify_parser.set_defaults(run=verify.run)
    voices_parser = commands.add_parser("voices", help="list, store, mix and delete voices of a server")
    voices.add_voices_arguments(voices_parser)
    voices_parser.set_defaults(run=voices.run)
    bench_parser = commands.add_parser("bench", help="measure a server, or the engine on this machine")
    kinds = bench_parser.add_subparsers(dest="bench", metavar="KIND", required=True)
    asked = None if arguments is None else arguments[:1]
    add_installed(kinds, BENCH_GROUP, arguments[1:2] if arguments and asked == ["bench"] else asked and [])
    completions_parser = commands.add_parser("completions", help="print a script by which a shell completes commands")
    completions.add_arguments(completions_parser)
    completions_parser.set_defaults(run=run_completions)
    add_installed(commands, COMMAND_GROUP, asked)
    return parser


def run_completions(args: argparse.Namespace) -> int:
    """Prints the script of a shell, for all commands whose packages are installed."""
    completions.print_script(build_parser(None), args.shell)
    return 0


def add_installed(commands: "argparse._SubParsersAction[Parser]", group: str, asked: list[str] | None) -> None:
    """Adds the commands of a group's entry points. Imports only a requested one, because that may import torch.

    With `asked` None it imports all that can be imported.
    """
    for entry in entry_points(group=group):
        if entry.name in commands.choices:
            continue  # a package cannot replace a built-in command
        command_parser = commands.add_parser(entry.name, help=HELP.get(entry.name, "see its own --help"))
        if asked is None or asked == [entry.name]:
            try:
                command = load_command(entry)
            except NotInstalled:
                if asked is None:
                    continue
                raise
            command.add_arguments(command_parser)
            command_parser.set_defaults(run=command.run)


def needs(command: str, error: ImportError) -> str:
    """The way to install a command whose import failed."""
    extra = EXTRAS.get(command, command)
    return f"`{command}` needs more than the client ({error}). Install it with: pip install 'vivavoce-speech[{extra}]'"


def load_command(entry: EntryPoint) -> Command:
    try:
        command: Command = entry.load()
    except ImportError as error:
        raise NotInstalled(needs(entry.name, error)) from error
    return command


if __name__ == "__main__":
    sys.exit(main())
