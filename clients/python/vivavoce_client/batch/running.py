"""A run of `vivavoce batch`: from the command line's values to the files of the whole."""

import argparse
import asyncio
import os
import sqlite3
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

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
    default_voice,
    given_options,
    server_url,
)
from vivavoce_client.word_files import KINDS

SHOWN_REFUSALS = 20


class NotAllSpoken(VivavoceError):
    """Some lines were refused. The others have been spoken."""


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
    asked = [f"--{name}" for name in ("join", *KINDS) if getattr(args, name)]
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
    kinds = [kind for kind in KINDS if getattr(args, kind)]
    if not work.made():
        return
    if args.join:
        whole.write_audio(work, folder)
        if is_book:
            whole.write_chapters(work, folder)
    if kinds:
        whole.Subtitles(work, kinds, args.words).write(folder, beside_tracks=is_book)
