"""`vivavoce say`, and the search for a server, which `vivavoce text` and `vivavoce voices` share."""

import argparse
import codecs
import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from vivavoce_client.arguments import number_of
from vivavoce_client.client import Client
from vivavoce_client.input_files import BadFile, read_json
from vivavoce_client.local_server import local_server
from vivavoce_client.outputs import STANDARD, NoLoudspeaker, Output, open_device, open_output
from vivavoce_client.protocol import PCM, SAMPLE_BYTES, SAMPLE_RATE, ApiError, Segment, SpeechOptions
from vivavoce_client.word_files import KINDS, WordFiles

URL_VARIABLE = "VIVAVOCE_URL"
KEY_VARIABLE = "VIVAVOCE_API_KEY"
DEFAULT_FILE = "speech.wav"
DEFAULT_VOICE = "alloy"
NO_SUCH_ROUTE = (404, 405)
"""Statuses of servers that have no list of voices, such as OpenAI's."""
READ_BYTES = 4096
TEXT_FIELDS = ("input", "text")
"""Fields that an error names if the text cannot be spoken."""
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
EXAMPLES = """\
examples:
  vivavoce say "Hello."                      plays, or writes speech.wav where there is no sound device
  vivavoce say "Hello." -o - | aplay         any player that reads a WAV file from a pipe: | ffplay -nodisp -i -
  llm "Tell a story" | vivavoce say -        speaks while the text is being written
  tail -f events.log | vivavoce say - --lines
  vivavoce say "Hello." -o a.mp3 --srt a.srt --vtt a.vtt
  vivavoce say --segments talk.json -o a.wav with [{"voice": "bella", "text": "Hi!"}, ...] in talk.json
"""


def add_server_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", default=os.environ.get(URL_VARIABLE), help=f"server to use [${URL_VARIABLE}]")
    parser.add_argument("--model", help="served model; without --url: checkpoint to start a server with")


def add_text_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options that decide how a text is read."""
    parser.add_argument("--language", help="language of the text [detected by the model]")
    parser.add_argument(
        "--normalize",
        type=normalize_of,
        default="auto",
        metavar="HOW",
        help="reading of numbers, links and signs: auto (as the model needs it), true (all that the language has), "
        "false (as written), or stages such as urls,numbers [auto]",
    )


def normalize_of(value: str) -> bool | list[str] | None:
    """The field `normalize` for the value of --normalize. None leaves the decision to the server."""
    words: dict[str, bool | None] = {"auto": None, "true": True, "false": False}
    if value in words:
        return words[value]
    stages = [stage.strip() for stage in value.split(",") if stage.strip()]
    if not stages:
        raise argparse.ArgumentTypeError(f"{value!r} is not auto, true, false or a list of stages such as urls,numbers")
    return stages


def add_say_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLES
    add_server_arguments(parser)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("text", nargs="?", help="text to speak; - reads standard input and speaks while it arrives")
    source.add_argument(
        "--segments", metavar="FILE", help="dialogue to speak: a JSON list of {text, voice, seed, speed, ...}"
    )
    parser.add_argument("-o", "--output", help="file to write, or - for standard output [plays the speech]")
    parser.add_argument("--format", choices=SAID_FORMATS, help="audio format [by the file's name, else wav]")
    parser.add_argument("--voice", help="voice [the server's first]")
    parser.add_argument("--instructions", help="way of speaking, in words")
    add_text_arguments(parser)
    add_word_arguments(parser)
    parser.add_argument(
        "--turn-pause", type=number_of, metavar="S", dest="turn_pause_s", help="pause between two voices"
    )
    parser.add_argument("--speed", type=number_of, help="0.25 to 4 [1]")
    parser.add_argument("--seed", type=int, help="number that makes the speech repeatable")
    parser.add_argument(
        "--leading-silence",
        choices=("trim", "keep"),
        help="silence that the voice puts before its first word: trim leaves 20 ms of it [the server's choice]",
    )
    parser.add_argument(
        "--lines",
        action="store_true",
        help="speak each line of standard input as an utterance of its own [if it is a terminal]",
    )


def add_word_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of WordFiles. The model must be able to tell when words are spoken."""
    parser.add_argument("--srt", metavar="FILE", help="SubRip subtitles to write, or - for standard output")
    parser.add_argument("--vtt", metavar="FILE", help="WebVTT subtitles to write, with a time for each word; or -")
    parser.add_argument("--words", metavar="FILE", help="JSON file of the words and their times to write, or -")


class SpeechTimer:
    """Timer of one text's speech. Counts the bytes received."""

    def __init__(self) -> None:
        self._started_s = time.monotonic()
        self._took_s = 0.0
        self.received_bytes = 0

    def add(self, piece: bytes) -> None:
        self.received_bytes += len(piece)
        self._took_s = time.monotonic() - self._started_s

    def line(self, name: str, first_audio_s: float | None, is_pcm: bool) -> str:
        first_s = self._took_s if first_audio_s is None else first_audio_s
        line = f"{name}: {self.received_bytes} bytes, first audio after {first_s:.3f} s, all after {self._took_s:.3f} s"
        if is_pcm:
            audio_s = self.received_bytes / (SAMPLE_RATE * SAMPLE_BYTES)
            line += f", {audio_s:.2f} s of speech, real-time factor {self._took_s / audio_s if audio_s else 0:.3f}"
        return line


def say(args: argparse.Namespace) -> int:
    """Plays or writes the speech while it is made, and prints the time that it took."""
    segments = None if args.segments is None else read_segments(args.segments)
    with WordFiles(args) as word_files, connect(args) as client:
        path = args.output or default_output()
        audio_format = args.format or FORMAT_OF_SUFFIX.get(Path(path or "").suffix.lower(), "wav")
        # A WAV file is written from PCM, because the sizes in its header are known only at the end.
        wire_format = PCM if path is None or audio_format == "wav" else audio_format
        options = speech_options(args, wire_format)
        voice = args.voice
        if voice is None and segments is None:
            voice = default_voice(client)
        if args.text == STANDARD:
            with open_output(path, audio_format) as output:
                say_standard_input(client, voice, options, output, args.lines, word_files)
            return 0
        timer = SpeechTimer()
        source = args.text if segments is None else segments
        with client.stream(source, voice, **options) as speech, open_output(path, audio_format) as output:
            try:
                pass_on(speech, output, timer)
            finally:
                # Places of words in a dialogue count its texts as lines.
                text = args.text if segments is None else "\n".join(segment["text"] for segment in segments)
                word_files.transcript.add(text, speech.words, speech.turns, speech.duration_s)
            print(timer.line(output.name, speech.first_audio_s, wire_format == PCM), file=sys.stderr)
    return 0


def default_voice(client: Client) -> str:
    """The server's first voice, or OpenAI's first where a server has no list of voices."""
    try:
        return next((voice.id for voice in client.voices()), DEFAULT_VOICE)
    except ApiError as error:
        if error.status not in NO_SUCH_ROUTE:
            raise
        return DEFAULT_VOICE


def read_segments(path: str) -> list[Segment]:
    """The turns of a dialogue. Raises BadFile."""
    segments = read_json(path)
    if not isinstance(segments, list) or not all(isinstance(each, dict) and "text" in each for each in segments):
        raise BadFile(f'{path} is no list of segments such as [{{"voice": "bella", "text": "Hello."}}]')
    return segments


def default_output() -> str | None:
    """Returns None to play on loudspeakers, or the name of a file if there are none."""
    try:
        open_device().close()
    except NoLoudspeaker as error:
        print(f"vivavoce: {error}; writing {DEFAULT_FILE}", file=sys.stderr)
        return DEFAULT_FILE
    return None


def speech_options(args: argparse.Namespace, wire_format: str) -> SpeechOptions:
    names = ("instructions", "language", "normalize", "speed", "seed", "leading_silence", "turn_pause_s")
    times = {"word_timestamps": True} if any(getattr(args, kind) is not None for kind in KINDS) else {}
    return cast(SpeechOptions, {"response_format": wire_format, **given_options(args, *names), **times})


def given_options(args: argparse.Namespace, *names: str) -> SpeechOptions:
    """The fields of a request that the command line gives. Without --url, the model is that of the local server."""
    given = {name: getattr(args, name) for name in names}
    if args.url is not None:
        given["model"] = args.model
    return cast(SpeechOptions, {name: value for name, value in given.items() if value is not None})


def pass_on(pieces: Iterable[bytes], output: Output, timer: SpeechTimer) -> None:
    for piece in pieces:
        timer.add(piece)
        output.write(piece)


def say_standard_input(
    client: Client, voice: str, options: SpeechOptions, output: Output, lines: bool, word_files: WordFiles
) -> None:
    """Speaks standard input while it arrives, as one utterance or line by line."""
    is_pcm = options["response_format"] == PCM
    texts: Iterable[Iterable[str]] = [fragments()]
    lines = lines or sys.stdin.isatty()
    if lines:
        texts = ([line] for line in sys.stdin if line.strip())
    with client.live(voice, **options) as live:
        for text in texts:
            timer = SpeechTimer()
            with live.say(text) as speech:
                try:
                    pass_on(speech, output, timer)
                except ApiError as error:
                    # A line that cannot be spoken, such as "---", does not end the ones behind it.
                    if not lines or error.param not in TEXT_FIELDS or timer.received_bytes:
                        raise
                    print(f"vivavoce: {error}; the line is passed over", file=sys.stderr)
                    continue
                finally:
                    if timer.received_bytes:
                        word_files.transcript.add(speech.text, speech.words, speech.turns, speech.duration_s)
            print(timer.line(output.name, speech.first_audio_s, is_pcm), file=sys.stderr)


def fragments() -> Iterator[str]:
    """Yields standard input as it arrives, down to single tokens from a pipe."""
    try:
        descriptor = sys.stdin.fileno()
    except OSError:  # not a real file, but it can be read by lines
        yield from sys.stdin
        return
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    while read := os.read(descriptor, READ_BYTES):
        if text := decoder.decode(read):
            yield text
    yield decoder.decode(b"", final=True)


@contextmanager
def connect(args: argparse.Namespace) -> Iterator[Client]:
    """Yields a client of the server at --url, or of a local server that runs as long as this block."""
    with server_url(args) as url, Client(url, api_key=os.environ.get(KEY_VARIABLE)) as client:
        yield client


@contextmanager
def server_url(args: argparse.Namespace) -> Iterator[str]:
    """Yields --url, or the URL of a local server that runs as long as this block."""
    if args.url is not None:
        yield args.url
    else:
        with local_server(args.model) as url:
            yield url
