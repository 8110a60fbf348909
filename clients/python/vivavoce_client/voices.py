"""`vivavoce voices`: list the voices of a server, store some, mix some, delete some."""

import argparse
import sys
from collections.abc import Sequence

from vivavoce_client.input_files import BadFile, read_file, read_json
from vivavoce_client.protocol import NewVoice
from vivavoce_client.say import add_server_arguments, connect


def add_voices_arguments(parser: argparse.ArgumentParser) -> None:
    add_server_arguments(parser)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", help="action [list]")
    # --url and --model may stand after the action too. If they are absent there, those before the action count.
    server = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    server.add_argument("--url", help="server to use")
    server.add_argument("--model", help="served model; without --url: checkpoint to start a server with")

    actions.add_parser("list", parents=[server], help="all voices, with OpenAI's names for each")
    add = actions.add_parser("add", parents=[server], help="store a voice from a recording or an embedding")
    add.add_argument("name", help="name of the voice in requests")
    add.add_argument("recording", nargs="?", help="audio file of 1 to 30 s")
    add.add_argument("--embedding", metavar="FILE", help="JSON list of numbers instead of a recording")
    add.add_argument("--consent", required=True, help="the speaker's permission, in words")
    add.add_argument("--ref-text", help="transcript of the recording; the model then continues from it")
    blend = actions.add_parser("blend", parents=[server], help="store a mix of the server's voices")
    blend.add_argument("name", help="name of the voice in requests")
    blend.add_argument("mix", help="such as 'a(2)+b(1)'")
    blend.add_argument(
        "--consent", help="permission of the speakers, in words [a note that the server had the voices already]"
    )
    delete = actions.add_parser("delete", parents=[server], help="delete stored voices")
    delete.add_argument("names", nargs="+", metavar="name")


def run(args: argparse.Namespace) -> int:
    match args.action:
        case "add":
            return add_voice(args)
        case "blend":
            consent = args.consent or f"Mixed from voices of this server: {args.mix}"
            return store(args, NewVoice(args.name, consent, mix=args.mix, model=served_model(args)))
        case "delete":
            return delete_voices(args)
        case _:
            return list_voices(args)


def list_voices(args: argparse.Namespace) -> int:
    """Prints each voice on a line: id, model, OpenAI's names for it, accent and sex, description."""
    with connect(args) as client:
        for voice in client.voices():
            kind = "stored" if voice.created_at is not None else " ".join(voice.aliases)
            sound = " ".join(filter(None, (voice.accent, voice.sex)))
            print(f"{voice.id}\t{voice.model or '-'}\t{kind}\t{sound or '-'}\t{voice.description or '-'}")
    return 0


def add_voice(args: argparse.Namespace) -> int:
    if (args.recording is None) == (args.embedding is None):
        raise BadFile("give a recording or --embedding, one of them")
    audio = None if args.recording is None else read_file(args.recording)
    embedding = None if args.embedding is None else read_numbers(args.embedding)
    voice = NewVoice(args.name, args.consent, audio, args.ref_text, embedding, model=served_model(args))
    return store(args, voice)


def store(args: argparse.Namespace, voice: NewVoice) -> int:
    with connect(args) as client:
        stored = client.add_voice(voice)
    print(stored.id)
    for warning in stored.warnings:
        print(f"vivavoce: {warning}", file=sys.stderr)
    return 0


def delete_voices(args: argparse.Namespace) -> int:
    with connect(args) as client:
        for name in args.names:
            client.delete_voice(name)
            print(f"deleted {name}", file=sys.stderr)
    return 0


def served_model(args: argparse.Namespace) -> str | None:
    """Model for the request. None without --url, because the local server has only the model it was started with."""
    model: str | None = args.model
    return None if args.url is None else model


def read_numbers(path: str) -> Sequence[float]:
    numbers = read_json(path)
    if not isinstance(numbers, list):
        raise BadFile(f"{path} holds no list of numbers")
    return numbers
