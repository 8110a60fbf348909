"""`vivavoce eval quality`: speaks sentences, judges them, and reports the run with its gates."""

import argparse
import platform
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

from vivavoce_client.protocol import SpeechOptions
from vivavoce_client.say import add_server_arguments, connect
from vivavoce_voice import QUALITY

from vivavoce_eval.asr import Transcriber
from vivavoce_eval.errors import Unusable
from vivavoce_eval.extras import need
from vivavoce_eval.figures import Run, load, save, voices_of
from vivavoce_eval.gates import Limits, gates
from vivavoce_eval.hearing import Panel, Row, Spoken
from vivavoce_eval.judges import Embedding, SpeakerEncoder
from vivavoce_eval.report import QualityReport, as_json, as_text, write_html, write_markdown
from vivavoce_eval.sentences import ENGLISH, pick, read_sentences
from vivavoce_eval.speaking import from_folder, through_server
from vivavoce_eval.waves import Samples, write_wav

JUDGES = ("faster-whisper", "speechmos", "Resemblyzer", "librosa")
NO_COMPARISON = "none"
TEACHER = QUALITY / "teacher.json"
BASELINES = {"whole": QUALITY / "whole_text.json", "streaming": QUALITY / "streaming_text.json"}
REPORTS = {".html": write_html, ".md": write_markdown}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_server_arguments(parser)
    parser.add_argument("--wavs", type=Path, metavar="DIR", help="judge sound files 000.wav, 001.wav, … instead")
    parser.add_argument("--voices", nargs="+", help="speakers, which take turns [the server's presets]")
    parser.add_argument(
        "--sentences", type=Path, default=ENGLISH, help="file of lines `category TAB text` [100 English sentences]"
    )
    parser.add_argument("--limit", type=int, metavar="N", help="number of sentences [all]")
    parser.add_argument("--streaming-text", action="store_true", help="feed the text while the model speaks")
    parser.add_argument("--whisper", choices=("base", "tiny.en"), default="base", help="model that transcribes [base]")
    parser.add_argument("--threads", type=int, default=1, help="threads of the transcriber [1]")
    of_voice = "[the shipped voice's, if it knows the speakers]"
    parser.add_argument("--teacher", metavar="FILE", help=f"run of the voice's teacher, or `none` {of_voice}")
    parser.add_argument("--baseline", metavar="FILE", help=f"earlier run of the voice, or `none` {of_voice}")
    parser.add_argument("--max-wer", type=float, help="highest word error rate, %% [baseline + 3, or 5]")
    parser.add_argument("--min-ovrl", type=float, help="lowest DNSMOS OVRL [baseline - 0.15, or 3.1]")
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the run as JSON, for use as a baseline later")
    parser.add_argument("--note", default="", help="note about the speech, saved with the run")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="write the speech as sound files")
    parser.add_argument(
        "--report", type=Path, metavar="FILE", help="write a report with spectrograms and sound: .html or .md"
    )


def run(args: argparse.Namespace) -> int:
    """Runs the command. Prints a table and a line of JSON. Returns 0 if all gates pass."""
    if args.report and args.report.suffix not in REPORTS:
        print(f"vivavoce: --report must end in {' or '.join(REPORTS)}, not {args.report.name!r}", file=sys.stderr)
        return 2
    if args.report:
        need("matplotlib.figure")  # fails now, not after all sentences have been spoken
    try:
        for file in filter(None, (args.save, args.report)):
            file.parent.mkdir(parents=True, exist_ok=True)
        report, sounds = judge(args)
    except OSError as error:
        raise Unusable(str(error)) from error
    if args.save:
        save(report.run, args.save)
    if args.report:
        REPORTS[args.report.suffix](report, sounds, args.report)
    print(as_text(report))
    print(as_json(report))
    return 0 if report.passed else 1


def judge(args: argparse.Namespace) -> tuple[QualityReport, dict[int, Samples]]:
    """Returns the report, and the speech of each sentence."""
    listener, recogniser = Transcriber(args.whisper, args.threads), SpeakerEncoder()
    with speaking(args) as (speakers, speech):
        teacher = reference(args.teacher, TEACHER, speakers)
        baseline = reference(args.baseline, BASELINES[text_mode(args)], speakers)
        expected = {name: voice.embedding for name, voice in teacher.voices.items()} if teacher else {}
        rows, embeddings, sounds = heard(Panel(listener, recogniser, expected), saving(speech, args.keep))
    run = Run(about(args, speakers), tuple(rows), voices_of(rows, embeddings))
    limits = Limits(args.max_wer, args.min_ovrl)
    references = {name: one for name, one in (("baseline", baseline), ("teacher", teacher)) if one}
    return QualityReport(run, gates(run, baseline, teacher, limits), references), sounds


@contextmanager
def speaking(args: argparse.Namespace) -> Iterator[tuple[list[str], Iterable[Spoken]]]:
    """Yields the speakers, and their speech."""
    sentences = read_sentences(args.sentences)
    sentences = sentences if args.limit is None else pick(sentences, args.limit)
    if args.wavs:
        speakers = args.voices or list(load(TEACHER).voices)
        yield speakers, from_folder(args.wavs, sentences, speakers)
        return
    with connect(args) as client:  # starts a server for --model if there is no --url
        speakers = args.voices or [voice.id for voice in client.voices() if voice.created_at is None]
        if not speakers:
            raise Unusable("the server has no preset voice: name some with --voices")
        options = cast(SpeechOptions, {"non_streaming_mode": not args.streaming_text})
        if args.url is not None and args.model is not None:
            options["model"] = args.model
        yield speakers, through_server(client, sentences, speakers, options)


def heard(panel: Panel, speech: Iterable[Spoken]) -> tuple[list[Row], list[Embedding | None], dict[int, Samples]]:
    rows, embeddings, sounds = [], [], {}
    for spoken in speech:
        row, embedding = panel.judge(spoken)
        rows.append(row)
        embeddings.append(embedding)
        sounds[row.number] = spoken.samples
        print(f"\r{len(rows)} sentences judged", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return rows, embeddings, sounds


def saving(speech: Iterable[Spoken], folder: Path | None) -> Iterator[Spoken]:
    """Yields the speech unchanged. Writes it into the folder, if one is given."""
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
    for spoken in speech:
        if folder:
            write_wav(folder / f"{spoken.sentence.number:03d}.wav", spoken.samples)
        yield spoken


def text_mode(args: argparse.Namespace) -> str:
    return "streaming" if args.streaming_text else "whole"


def reference(given: str | None, default: Path, speakers: list[str]) -> Run | None:
    """Run to compare with: a file, none, or the shipped voice's if that has all the speakers.

    Raises:
        Unusable: the file is not a run. OSError: it cannot be read.
    """
    if given == NO_COMPARISON:
        return None
    if given is not None:
        return load(Path(given))
    run = load(default)
    return run if run.voices.keys() >= set(speakers) else None


def about(args: argparse.Namespace, speakers: list[str]) -> dict[str, Any]:
    """Describes how a run was made."""
    return {
        "note": args.note,
        "source": args.wavs.name if args.wavs else args.url or args.model or "the shipped voice",
        "text_mode": "as in the sound files" if args.wavs else text_mode(args),
        "speakers": speakers,
        "sentences": args.sentences.name,
        "listener": f"Whisper {args.whisper}, greedy",
        "versions": {"python": platform.python_version(), **{name: version(name) for name in JUDGES}},
    }
