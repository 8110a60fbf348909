"""`vivavoce batch`: a file of lines or a book in, numbered audio files out."""

import argparse

from vivavoce_client.arguments import number_of
from vivavoce_client.say import SAID_FORMATS, add_server_arguments, add_text_arguments

MAX_COUNT = 100
"""Most requests at once, as many as httpx opens connections."""
DAY_S = 86_400
EXAMPLES = """\
examples:
  vivavoce batch lines.txt --out said                      said/0001.wav, said/0002.wav, ...: a file for each line
  vivavoce batch lines.csv --out said --format mp3         columns: text, voice, instructions, language, seed, speed
  vivavoce batch film.srt --out said --join --srt --vtt    each line at the time of its cue in said/whole.wav
  vivavoce batch book.epub --out said --seed 1 --join      a file for each chapter, and all of them in said/whole.wav
The same command goes on where a crash, a signal or a lost server has ended it.
"""


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
    """Imports the work when it is asked for, since every command reads these arguments."""
    from vivavoce_client.batch.running import run

    return run(args)
