"""`vivavoce eval text`: speaks written texts, transcribes them, and counts the words that are not said as expected."""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, cast, get_args

from vivavoce_client import ApiError, Client
from vivavoce_client.protocol import SpeechOptions
from vivavoce_client.say import add_server_arguments, connect

from vivavoce_eval.asr import Transcriber
from vivavoce_eval.errors import Unusable
from vivavoce_eval.hearing import SpeechRecogniser
from vivavoce_eval.pairs import Pair, choose, read_pairs
from vivavoce_eval.spelling import wrong_words
from vivavoce_eval.waves import Samples, for_judges, from_pcm

Variant = Literal["raw", "read", "words"]
VARIANTS: tuple[Variant, ...] = get_args(Variant)
"""The text as it is written, as the server reads it by default, and the expected words."""
PAIRS, SEED = 60, 1
MOST_FRAMES = 150
"""Frames after which speech is cut off: 12 s. Texts of the pairs are sentences, and only babble is longer."""
AT_ONCE = 3
"""Requests that the server works on at once. Its speech is the same for any number."""
NOTHING_TO_SAY = 400


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_server_arguments(parser)
    parser.add_argument(
        "--pairs", type=Path, required=True, metavar="FILE", help="lines `language TAB kind TAB written TAB spoken`"
    )
    parser.add_argument("--limit", type=int, default=PAIRS, metavar="N", help=f"number of English pairs [{PAIRS}]")
    parser.add_argument("--choice", type=int, default=0, metavar="SEED", help="seed of the choice of pairs [0]")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=VARIANTS, help="texts to speak [all]")
    parser.add_argument("--voices", nargs="+", help="speakers, which take turns [the server's presets]")
    parser.add_argument("--seed", type=int, default=SEED, help=f"seed of the speech [{SEED}]")
    parser.add_argument("--whisper", choices=("base", "tiny.en"), default="base", help="model that transcribes [base]")
    parser.add_argument("--threads", type=int, default=1, help="threads of the transcriber [1]")
    parser.add_argument("--show", action="store_true", help="show each text that was not heard as expected")


@dataclass(frozen=True, slots=True)
class Said:
    """A variant of a pair as it was said: its transcript, wrong words, and words expected."""

    pair: Pair
    variant: Variant
    heard: str
    wrong: int
    words: int


@dataclass(frozen=True, slots=True)
class TextFigures:
    """Figures of a variant. `errors` is the share of wrong words in percent. `right` texts have no wrong word, and
    `nearly` texts at most one.
    """

    errors: float
    wrong: int
    words: int
    right: int
    nearly: int
    texts: int


def run(args: argparse.Namespace) -> int:
    """Prints the figures of each variant, and a line of JSON."""
    pairs = choose(read_pairs(args.pairs), args.limit, args.choice)
    listener = Transcriber(args.whisper, args.threads)
    said: list[Said] = []
    with connect(args) as client:  # starts a server for --model if there is no --url
        speakers = args.voices or [voice.id for voice in client.voices() if voice.created_at is None]
        if not speakers:
            raise Unusable("the server has no preset voice: name some with --voices")
        options = SpeechOptions(seed=args.seed, max_new_tokens=MOST_FRAMES)
        if args.url is not None and args.model is not None:
            options["model"] = args.model
        for variant in dict.fromkeys(args.variants):
            said += listen(client, listener, [(pair, variant) for pair in pairs], speakers, options)
    figures = {variant: figures_of([one for one in said if one.variant == variant]) for variant in args.variants}
    if args.show:
        show(said)
    print(as_text(figures))
    print(
        json.dumps(
            {
                "pairs": len(pairs),
                "speakers": speakers,
                "variants": {name: asdict(found) for name, found in figures.items()},
            }
        )
    )
    return 0


def listen(
    client: Client,
    listener: SpeechRecogniser,
    texts: Sequence[tuple[Pair, Variant]],
    speakers: Sequence[str],
    options: SpeechOptions,
) -> list[Said]:
    """Speaks texts, with speakers in turn, and transcribes them while the server speaks the next ones.

    Raises:
        VivavoceError: the server cannot be reached, or refuses a request for another reason than its text.
    """

    def speak(number: int) -> Samples | None:
        pair, variant = texts[number]
        text = pair.readings[0] if variant == "words" else pair.written
        asked = options if variant == "read" else cast(SpeechOptions, {**options, "normalize": False})
        try:
            return from_pcm(client.speak(text, speakers[number % len(speakers)], **asked))
        except ApiError as error:
            if error.status == NOTHING_TO_SAY and error.param == "input":
                return None
            raise

    said = []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        speaking = [pool.submit(speak, number) for number in range(len(texts))]
        try:
            for (pair, variant), speech in zip(texts, speaking, strict=True):
                samples = speech.result()
                heard = "" if samples is None else listener.transcribe(for_judges(samples))
                said.append(Said(pair, variant, heard, *wrong_words(pair.readings, heard, listener.normalise)))
                print(f"\r{variant}: {len(said)} texts judged", end="", file=sys.stderr, flush=True)
        finally:
            for speech in speaking:
                speech.cancel()
    print(file=sys.stderr)
    return said


def figures_of(said: Sequence[Said]) -> TextFigures:
    wrong, words = sum(one.wrong for one in said), sum(one.words for one in said)
    right, nearly = (sum(one.wrong <= most for one in said) for most in (0, 1))
    return TextFigures(round(100 * wrong / words, 1), wrong, words, right, nearly, len(said))


def as_text(figures: dict[Variant, TextFigures]) -> str:
    def lines() -> Iterator[str]:
        yield "text    word errors    wholly right    at most one word wrong"
        for variant, found in figures.items():
            shares = (f"{found.errors:.1f} %", f"{found.right} of {found.texts}", f"{found.nearly} of {found.texts}")
            yield f"{variant:<8}{shares[0]:>11}{shares[1]:>16}{shares[2]:>26}"

    return "\n".join(lines())


def show(said: Sequence[Said]) -> None:
    for one in said:
        if one.wrong:
            print(f"{one.variant}  {one.pair.written!r}  {one.wrong} of {one.words}")
            print(f"    expected {' || '.join(one.pair.readings)!r}\n    heard    {one.heard!r}")
