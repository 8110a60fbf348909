"""`vivavoce batch`: a file of lines or a book in, numbered audio files out."""

import argparse
import asyncio
import os
import sqlite3
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from vivavoce_client.arguments import number_of
from vivavoce_client.batch import whole
from vivavoce_client.batch.files import JOINED_FORMATS, BadOutput
from vivavoce_client.batch.job import Job
from vivavoce_client.batch.progress import Progress
from vivavoce_client.batch.sources import Source, read_source
from vivavoce_client.batch.speaking import Asking, Course
from vivavoce_client.batch.work import Making, Part, Work
from vivavoce_client.client import AsyncClient, Client
from vivavoce_client.protocol import VivavoceError
from vivavoce_client.say import (
    KEY_VARIABLE,
    SAID_FORMATS,
    add_server_arguments,
    add_text_arguments,
    default_voice,
    given_options,
    server_url,
)

MAX_COUNT = 100
"""Most requests at once, as many as httpx opens connections."""
DAY_S = 86_400
SHOWN_REFUSALS = 20
EXAMPLES = """\
examples:
  vivavoce batch lines.txt --out said                      said/0001.wav, said/0002.wav, ...: a file for each line
  vivavoce batch lines.csv --out said --format mp3         columns: text, voice, instructions, language, seed, speed
  vivavoce batch film.srt --out said --join --srt --vtt    each line at the time of its cue in said/whole.wav
  vivavoce batch book.epub --out said --seed 1 --join      a file for each chapter, and all of them in said/whole.wav
The same command goes on where a crash, a signal or a lost server has ended it.
"""


class NotAllSpoken(VivavoceError):
    """Some lines were refused. The others have been spoken."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument(
        "source", metavar="FILE", help="lines (.txt, .csv, .jsonl, .srt) or a book (.epub, .md) to speak"
    )
    parser.add_argument(
        "--out", metavar="FOLDER", required=True, help="folder of the audio files and of the job's state"
    )
    add_server_arguments(parser)
    parser.add_argument("--voice", help="voice of lines that name none [the server's first]")
    parser.add_argument(
        "--format", choices=SAID_FORMATS, default="wav", help="audio format; a book's is wav or pcm [wav]"
    )
    parser.add_argument("--instructions", help="way of speaking, in words")
    add_text_arguments(parser)
    parser.add_argument("--speed", type=number_of, help="0.25 to 4 [1]")
    parser.add_argument("--seed", type=int, help="number that makes the speech repeatable")
    parser.add_argument(
        "--join", action="store_true", help="write all audio into whole.wav too, and where chapters begin"
    )
    parser.add_argument("--srt", action="store_true", help="write SubRip subtitles of the whole, and of each chapter")
    parser.add_argument("--vtt", action="store_true", help="write WebVTT subtitles of the whole, and of each chapter")
    parser.add_argument(
        "--words",
        action="store_true",
        help="ask for the times of words, for subtitles and a JSON file [subtitles estimate them from the text]",
    )
    parser.add_argument(
        "--pause",
        type=seconds_of,
        default=0.5,
        metavar="S",
        help="silence between lines of the whole, pieces of a chapter [0.5]",
    )
    parser.add_argument(
        "--depth", type=count_of, default=1, metavar="N", help="level of headings that begin a chapter [1]"
    )
    parser.add_argument("--streams", type=count_of, default=4, metavar="N", help="requests at once [4]")
    parser.add_argument(
        "--patience",
        type=seconds_of,
        default=600.0,
        metavar="S",
        help="longest wait for a server that is busy or away [600]",
    )
    parser.add_argument(
        "--changed",
        action="store_true",
        help="go on although lines or options have changed: make what is new, delete the rest",
    )


def count_of(value: str) -> int:
    if not value.isdecimal() or not 1 <= int(value) <= MAX_COUNT:
        raise argparse.ArgumentTypeError(f"{value} is not a number from 1 to {MAX_COUNT}")
    return int(value)


def seconds_of(value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1
    if not 0 <= seconds <= DAY_S:
        raise argparse.ArgumentTypeError(f"{value} is not a number of seconds from 0 to {DAY_S}")
    return seconds


def run(args: argparse.Namespace) -> int:
    """Speaks what is left of the job, and writes the files of the whole once nothing is left."""
    source = read_source(args.source, args.depth)
    check_format(args, source)
    for note in source.notes:
        print(f"vivavoce: {note}", file=sys.stderr)
    try:
        with Job(Path(args.out)) as job:
            work = Work(job, Path(args.out), source.tracks, Making(args.format, args.pause))
            run_job(job, work, args, source)
    except (OSError, sqlite3.Error) as error:
        raise BadOutput(f"{args.out} cannot be written: {error}") from error
    if refused := work.refused():
        lines = [f"{line.place}: {reason}" for line, reason in refused[:SHOWN_REFUSALS]]
        more = len(refused) - len(lines)
        lines += [f"and {more} more"] if more else []
        raise NotAllSpoken("\n  ".join([f"{len(refused)} of {len(work.parts)} lines were refused:", *lines]))
    return 0


def run_job(job: Job, work: Work, args: argparse.Namespace, source: Source) -> None:
    """Looks for a server only where one is needed. Raises VivavoceError."""
    with ExitStack() as stack:
        url = None
        voice = args.voice or job.voice
        if voice is None and any("voice" not in line.fields for track in source.tracks for line in track.lines):
            url = stack.enter_context(server_url(args))
            voice = first_voice(url)
            job.keep_voice(voice)
        left = work.begin(requests_of(args, source, voice, work.making), args.changed)
        if left:
            speak(url or stack.enter_context(server_url(args)), work, left, args)
    work.finish()
    write_whole(args, work, Path(args.out), source.is_book)


def check_format(args: argparse.Namespace, source: Source) -> None:
    """Raises NotJoined for what only formats have that can be joined."""
    if args.format in JOINED_FORMATS:
        return
    asked = [f"--{name}" for name in ("join", "srt", "vtt", "words") if getattr(args, name)]
    needs = "a book, whose chapters are joined from pieces," if source.is_book else " and ".join(asked)
    if needs:
        raise whole.NotJoined(f"{needs} needs --format wav or pcm: files in {args.format} cannot be joined")


def first_voice(url: str) -> str:
    with Client(url, api_key=os.environ.get(KEY_VARIABLE)) as client:
        return default_voice(client)


def requests_of(args: argparse.Namespace, source: Source, voice: str | None, making: Making) -> list[dict[str, Any]]:
    """The request of each line: its own fields before those of the command line."""
    common = dict(given_options(args, "instructions", "language", "normalize", "speed", "seed"))
    common |= {"voice": voice, "response_format": making.wire_format}
    common |= {"word_timestamps": True} if args.words else {}
    return [{**common, **line.fields, "input": line.text} for track in source.tracks for line in track.lines]


def speak(url: str, work: Work, left: list[Part], args: argparse.Namespace) -> None:
    """Raises VivavoceError with what is done, if the job ends before its end."""
    progress = Progress(len(work.parts), len(work.parts) - len(left))
    try:
        asyncio.run(ask(url, work, left, Course(args.streams, args.patience), progress))
    except VivavoceError as error:
        raise VivavoceError(f"{error}\n{state_of(work)}") from error
    except KeyboardInterrupt:
        progress.note(state_of(work))
        raise
    finally:
        progress.close()


def state_of(work: Work) -> str:
    return f"{len(work.spoken)} of {len(work.parts)} lines are done; the same command goes on from there"


async def ask(url: str, work: Work, left: list[Part], course: Course, progress: Progress) -> None:
    async with AsyncClient(url, api_key=os.environ.get(KEY_VARIABLE)) as client:
        await Asking(client, work, course, progress.add, progress.note).ask_all(left)


def write_whole(args: argparse.Namespace, work: Work, folder: Path, is_book: bool) -> None:
    kinds = [kind for kind in ("srt", "vtt", "words") if getattr(args, kind)]
    if not work.made():
        return
    if args.join:
        whole.write_audio(work, folder)
        if is_book:
            whole.write_chapters(work, folder)
    if kinds:
        whole.Subtitles(work, kinds, args.words).write(folder, beside_tracks=is_book)
