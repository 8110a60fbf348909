"""`vivavoce say` and `vivavoce voices`."""

import argparse
import os
import sys
import time
import wave
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from vivavoce_client.client import Client
from vivavoce_client.local_server import local_server
from vivavoce_client.protocol import SAMPLE_BYTES, SAMPLE_RATE, SpeechOptions

URL_VARIABLE = "VIVAVOCE_URL"
KEY_VARIABLE = "VIVAVOCE_API_KEY"
STANDARD = "-"
FORMAT_OF_SUFFIX = {
    ".wav": "wav",
    ".pcm": "pcm",
    ".raw": "pcm",
    ".mp3": "mp3",
    ".opus": "opus",
    ".ogg": "opus",
    ".aac": "aac",
    ".flac": "flac",
}
SAID_FORMATS = sorted(set(FORMAT_OF_SUFFIX.values()))


def add_server_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", default=os.environ.get(URL_VARIABLE), help=f"server to use [${URL_VARIABLE}]")
    parser.add_argument("--model", help="served model; without --url: checkpoint to start a server with")


def add_say_arguments(parser: argparse.ArgumentParser) -> None:
    add_server_arguments(parser)
    parser.add_argument("text", help="what to say; - reads standard input")
    parser.add_argument("-o", "--output", default="speech.wav", help="file to write, - is standard output [speech.wav]")
    parser.add_argument("--format", choices=SAID_FORMATS, help="audio format [by the file's name, else wav]")
    parser.add_argument("--voice", help="voice [the server's first]")
    parser.add_argument("--instructions", help="how to say it")
    parser.add_argument("--language", help="language of the text [found by the model]")
    parser.add_argument("--seed", type=int, help="number that makes the speech repeatable")


def say(args: argparse.Namespace) -> int:
    """Speaks into a file and tells how long it took."""
    text = sys.stdin.read() if args.text == STANDARD else args.text
    audio_format = args.format or FORMAT_OF_SUFFIX.get(Path(args.output).suffix.lower(), "wav")
    with connect(args) as client:
        voice = args.voice or next((voice.id for voice in client.voices()), "alloy")
        # A WAV file is written from PCM, since only its end knows the sizes that belong into its header.
        wire_format = "pcm" if audio_format == "wav" else audio_format
        given = {name: getattr(args, name) for name in ("instructions", "language", "seed")}
        if args.url is not None:
            given["model"] = args.model
        given = {name: value for name, value in given.items() if value is not None}
        options = cast(SpeechOptions, {"response_format": wire_format, **given})
        started_s = time.monotonic()
        with client.stream(text, voice, **options) as speech, open_output(args.output) as output:
            received_bytes = write_wav(speech, output) if audio_format == "wav" else write_raw(speech, output)
            took_s = time.monotonic() - started_s
            first_audio_s = speech.first_audio_s or took_s
    report = f"{args.output}: {received_bytes} bytes, first audio after {first_audio_s:.3f} s, all after {took_s:.3f} s"
    if audio_format in ("wav", "pcm"):
        audio_s = received_bytes / (SAMPLE_RATE * SAMPLE_BYTES)
        report += f", {audio_s:.2f} s of speech, real-time factor {took_s / audio_s if audio_s else 0:.3f}"
    print(report, file=sys.stderr)
    return 0


def voices(args: argparse.Namespace) -> int:
    """Lists the voices, each with OpenAI's names for it."""
    with connect(args) as client:
        for voice in client.voices():
            print(f"{voice.id}\t{voice.model}\t{' '.join(voice.aliases)}")
    return 0


@contextmanager
def connect(args: argparse.Namespace) -> Iterator[Client]:
    """A client of the server that the arguments name, or of one that lives as long as this block."""
    key = os.environ.get(KEY_VARIABLE)
    if args.url is not None:
        with Client(args.url, api_key=key) as client:
            yield client
    else:
        with local_server(args.model) as url, Client(url, api_key=key) as client:
            yield client


@contextmanager
def open_output(path: str) -> Iterator[BinaryIO]:
    if path == STANDARD:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
    else:
        with Path(path).open("wb") as file:
            yield file


def write_raw(pieces: Iterable[bytes], output: BinaryIO) -> int:
    """Writes as it comes; returns the number of bytes."""
    return sum(output.write(piece) for piece in pieces)


def write_wav(pieces: Iterable[bytes], output: BinaryIO) -> int:
    """Writes PCM as a WAV file whose header tells its true size; returns the number of PCM bytes."""
    pcm = b"".join(pieces)
    with wave.open(output, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(SAMPLE_BYTES)
        file.setframerate(SAMPLE_RATE)
        file.setnframes(len(pcm) // SAMPLE_BYTES)
        file.writeframesraw(pcm)
    return len(pcm)
