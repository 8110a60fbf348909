"""`vivavoce bench pace`: pace of long texts, and how it drifts from their first third to their last.

The last line of the output is one JSON document. Pace is characters of the text a second of speech, by the times of the
words. It counts the pauses that the voice makes; articulation leaves out what is between two words. Drift is the ratio
of the last third of a text's time to the first. Each layout speaks the same texts with the same seeds. A ratio is taken
within a text, and its interval is that of `compare.ratio`.
"""

import argparse
import json
import platform
import statistics
import sys
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from itertools import pairwise

from vivavoce_client import Client
from vivavoce_client.protocol import ApiError, SpeechOptions
from vivavoce_client.say import add_server_arguments, connect
from vivavoce_client.words import SpokenWord

from vivavoce_bench.listener.compare import MIN_PAIRS, Ratio, ratio
from vivavoce_bench.listener.live_text import words as live_words
from vivavoce_bench.listener.prompts import BUNDLED, PromptOrder, load_prompts

MAX_WORD_MS = 60_000
LAYOUTS = ("whole", "streaming", "live")
"""Whole text first; a token of the text beside each frame; the same while the text arrives, over the socket."""
THIRDS = 3
ENDLESS = "endless_speech"
"""The code of a fault that the model's text has, and not its server."""
INVALID, USAGE_ERROR = 1, 2


class TooFewWords(Exception):
    """The times of fewer than two words of a text are known."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `vivavoce bench pace`. Entry point of the command line."""
    parser.description = "Measures the pace of long texts, and its drift, in both layouts of the text"
    add_server_arguments(parser)
    parser.add_argument("--layout", choices=LAYOUTS, nargs="+", default=["whole", "streaming"], help="[%(default)s]")
    parser.add_argument("--texts", type=int, default=10, help=f"number of texts, {MIN_PAIRS} or more [%(default)s]")
    parser.add_argument("--chars", type=int, default=1000, help="least length of a text, in characters [%(default)s]")
    parser.add_argument(
        "--prompts", default="en", help=f"{', '.join(BUNDLED)}, or a file with one sentence a line [%(default)s]"
    )
    parser.add_argument("--voice", help="a speaker, or a stored voice, which is a clone [the server's first]")
    parser.add_argument("--language", help="language of the texts [detected by the model]")
    parser.add_argument("--word-ms", type=float, default=0, help="live: ms from one word to the next [%(default)s]")
    parser.add_argument("--seed", type=int, default=0, help="seed of the texts' order and of the speech [%(default)s]")


def run(args: argparse.Namespace) -> int:
    """Runs `vivavoce bench pace`. Entry point of the command line."""
    try:
        if args.texts < MIN_PAIRS:
            raise ValueError(f"--texts must be at least {MIN_PAIRS}")
        if not 0 <= args.word_ms <= MAX_WORD_MS:  # nor NaN
            raise ValueError(f"--word-ms must be from 0 to {MAX_WORD_MS}")
        texts = long_texts(load_prompts(args.prompts), args.texts, args.chars, args.seed)
    except ValueError as error:
        print(f"vivavoce: {error}", file=sys.stderr)
        return USAGE_ERROR
    with connect(args) as client:
        voice = args.voice or next((voice.id for voice in client.voices()), "alloy")
        paces, faults = _measure(client, args, texts, voice)
    print(*faults, sep="\n", file=sys.stderr)
    if len(texts) - len(faults) < MIN_PAIRS:
        print(f"INVALID: fewer than {MIN_PAIRS} texts were spoken to their end")
        return INVALID
    print("\n".join(table(paces)))
    document = {
        "bench": "pace",
        "client": f"vivavoce-speech {version('vivavoce-speech')}",
        "python": platform.python_version(),
        "arguments": {name: getattr(args, name) for name in ("model", "prompts", "texts", "chars", "language", "seed")},
        "voice": voice,
        "faults": faults,
        "drift": {name: asdict(drift(each)) for name, each in paces.items()},
        "articulation_drift": {name: asdict(drift(each, articulation=True)) for name, each in paces.items()},
        "against_first": {name: asdict(each) for name, each in against_first(paces).items()},
        "paces": {name: [asdict(each) for each in of_layout] for name, of_layout in paces.items()},
    }
    print(json.dumps(document))
    return 0


def _measure(
    client: Client, args: argparse.Namespace, texts: Sequence[str], voice: str
) -> tuple[dict[str, list["Pace"]], list[str]]:
    """The paces by layout of the texts that were spoken in all layouts, and the faults of the others.

    Raises:
        VivavoceError: the server cannot be reached, or refuses a request.
    """
    layouts = list(dict.fromkeys(args.layout))
    paces: dict[str, list[Pace]] = {layout: [] for layout in layouts}
    faults = []
    for number, text in enumerate(texts):
        print(f"\rtext {number + 1} of {len(texts)}", end="", file=sys.stderr, flush=True)
        try:
            spoken = [pace_of(*_speak(client, args, text, layout, voice, args.seed + number)) for layout in layouts]
        except ApiError as error:
            if error.code != ENDLESS:
                raise
            faults.append(f"text {number}: {error}")
        except TooFewWords as error:
            faults.append(f"text {number}: {error}")
        else:
            for layout, pace in zip(layouts, spoken, strict=True):
                paces[layout].append(pace)
    print(file=sys.stderr)
    return paces, faults


def long_texts(prompts: Sequence[str], count: int, chars: int, seed: int) -> list[str]:
    """Texts of at least this many characters, of whole sentences, none of which comes again before all have come."""
    order, at, texts = PromptOrder(prompts, f"pace {seed}"), 0, []
    blank = " " if prompts[0][-1:].isascii() else ""
    for _ in range(count):
        text = order[at]
        at += 1
        while len(text) < chars:
            text += blank + order[at]
            at += 1
        texts.append(text)
    return texts


def _speak(
    client: Client, args: argparse.Namespace, text: str, layout: str, voice: str, seed: int
) -> tuple[Sequence[SpokenWord], float]:
    """Speaks a text → its words, and the seconds of its file."""
    options: SpeechOptions = {"response_format": "pcm", "word_timestamps": True, "seed": seed}
    if args.language is not None:
        options["language"] = args.language
    if args.url is not None and args.model is not None:
        options["model"] = args.model
    if layout == "live":
        with client.live(voice, **options) as live, live.say(_paced(text, args.word_ms / 1000)) as utterance:
            for _ in utterance:
                pass
            return utterance.words, utterance.duration_s or 0.0
    options["non_streaming_mode"] = layout == "whole"
    with client.stream(text, voice, **options) as speech:
        for _ in speech:
            pass
        return speech.words, speech.duration_s or 0.0


def _paced(text: str, word_s: float) -> Iterator[str]:
    """Yields the words of a text, one each `word_s` seconds."""
    for word in live_words(text):
        yield word
        time.sleep(word_s)


@dataclass(frozen=True, slots=True)
class Pace:
    """Pace of a text's speech, from its first word to its last. `thirds` are thirds of that time.

    `words_timed` is the share of the words whose times are known. `file_s` is the length of the whole file.
    """

    chars: int
    words: int
    words_timed: float
    speech_s: float
    file_s: float
    thirds: tuple[float, ...]
    """Characters a second."""
    articulation: tuple[float, ...]
    """Characters a second of words, without what is between them, in the same thirds."""

    @property
    def chars_per_s(self) -> float:
        return self.chars / self.speech_s

    @property
    def words_per_min(self) -> float:
        return 60 * self.words / self.speech_s


def pace_of(words: Sequence[SpokenWord], file_s: float) -> Pace:
    """The pace of a text by its words. Raises TooFewWords."""
    timed = [
        (word.start_s, word.end_s, word.text_start, word.text_end)
        for word in words
        if word.start_s is not None and word.end_s is not None
    ]
    if len(timed) < 2:
        raise TooFewWords(f"the model told the times of {len(timed)} words of {len(words)}")
    # Characters said by each moment, and seconds of words by each moment: both rise in straight lines between these.
    moments, said, spoken_s = list[float](), list[int](), list[float]()
    in_words_s = 0.0
    for start_s, end_s, first, end in timed:
        start_s = max(start_s, moments[-1] if moments else 0.0)
        end_s = max(end_s, start_s)
        moments += [start_s, end_s]
        said += [first, end]
        spoken_s += [in_words_s, in_words_s := in_words_s + end_s - start_s]
    third_s = (moments[-1] - moments[0]) / THIRDS
    edges = [moments[0] + third_s * edge for edge in range(THIRDS)] + [moments[-1]]
    chars, seconds = (
        [after - before for before, after in pairwise(_at(edge, moments, risen) for edge in edges)]
        for risen in (said, spoken_s)
    )
    return Pace(
        chars=said[-1] - said[0],
        words=len(words),
        words_timed=round(len(timed) / len(words), 3),
        speech_s=round(moments[-1] - moments[0], 3),
        file_s=round(file_s, 3),
        thirds=tuple(round(each / third_s, 3) for each in chars),
        articulation=tuple(round(each / max(of_words, 1e-3), 3) for each, of_words in zip(chars, seconds, strict=True)),
    )


def _at(moment: float, moments: Sequence[float], risen: Sequence[float]) -> float:
    """The value at a moment between those at which `risen` is known, on a straight line."""
    after = min(bisect_right(moments, moment), len(moments) - 1)
    before = after - 1
    share = (moment - moments[before]) / max(moments[after] - moments[before], 1e-9)
    return risen[before] + min(share, 1.0) * (risen[after] - risen[before])


def drift(paces: Sequence[Pace], *, articulation: bool = False) -> Ratio:
    """The last third over the first, over all texts."""
    thirds = [each.articulation if articulation else each.thirds for each in paces]
    return ratio([each[0] for each in thirds], [each[-1] for each in thirds])


def against_first(paces: dict[str, list[Pace]]) -> dict[str, Ratio]:
    """The pace of each further layout over that of the first one, of the same texts."""
    (_, first), *others = paces.items()
    return {
        name: ratio([each.chars_per_s for each in first], [each.chars_per_s for each in of_layout])
        for name, of_layout in others
    }


def table(paces: dict[str, list[Pace]]) -> list[str]:
    """Lines that people read."""
    head = f"{'layout':10}{'texts':>6}{'s each':>8}{'chars/s':>9}{'words/min':>10}   {'chars/s by thirds':21}"
    lines = [f"{head}drift, last third / first"]
    for name, of_layout in paces.items():
        thirds = [statistics.mean(each.thirds[third] for each in of_layout) for third in range(THIRDS)]
        lines.append(
            f"{name:10}{len(of_layout):6}{statistics.mean(each.speech_s for each in of_layout):8.1f}"
            f"{statistics.mean(each.chars_per_s for each in of_layout):9.2f}"
            f"{statistics.mean(each.words_per_min for each in of_layout):10.0f}   "
            f"{', '.join(f'{third:.2f}' for third in thirds):21}{percent(drift(of_layout))}"
            f"; without pauses {percent(drift(of_layout, articulation=True))}"
        )
    first = next(iter(paces))
    lines += [f"pace, {name} against {first}: {percent(each)}" for name, each in against_first(paces).items()]
    return lines


def percent(found: Ratio) -> str:
    """A ratio as a change in percent, with its interval of 95 %."""
    value, low, high = (100 * (each - 1) for each in (found.value, found.low, found.high))
    return f"{value:+.1f} % ({low:+.1f} to {high:+.1f})"


def main() -> int:
    """Runs the command from a checkout that is not installed."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return run(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
