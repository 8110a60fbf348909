"""`vivavoce verify`: what an audio file says about its origin."""

import argparse
import json
import sys
from collections.abc import Callable
from importlib.metadata import entry_points

from vivavoce_client.file_tags import FileTags, read_tags, shown

WATERMARK_GROUP = "vivavoce.watermark"
"""Group of entry points that find a watermark: functions from a file's path to a name and a confidence from 0 to 1."""
FOUND_CONFIDENCE = 0.9
"""Confidence from which a watermark counts as found."""
SYNTHETIC_SOURCES = ("trainedAlgorithmicMedia", "compositeWithTrainedAlgorithmicMedia")
"""Ends of the IPTC source types of media that a trained model made, whole or in part."""
FACTS = ("digital_source_type", "software", "model", "voice")
SYNTHETIC, NOT_MARKED, UNREADABLE = 0, 1, 2
EXAMPLES = """\
examples:
  vivavoce verify speech.mp3               what its metadata says
  vivavoce verify --watermark speech.wav   also looks for a watermark in the samples
  vivavoce verify --json speech.flac

exit status: 0 if the file says that it is synthetic, 1 if nothing says so, 2 if it cannot be read
"""
Finder = Callable[[str], tuple[str, float]]


class NoFinder(Exception):
    """The packages that find a watermark are not installed."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLES
    parser.add_argument("file", metavar="FILE", help="WAV, MP3, AAC, Ogg or FLAC file")
    parser.add_argument(
        "--watermark",
        action="store_true",
        help="also look for a watermark in the samples; needs the extras `server` and `watermark`",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Prints the facts that mark the file as synthetic, or says that there are none. Returns the exit status."""
    try:
        with open(args.file, "rb") as file:
            tags = read_tags(file)
        facts = facts_of(tags)
        watermark = find_watermark(args.file) if args.watermark else None
    except (ValueError, NoFinder, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        print(f"vivavoce: {shown(args.file)}: {reason}", file=sys.stderr)
        return UNREADABLE
    is_marked = watermark is not None and watermark[1] >= FOUND_CONFIDENCE
    is_synthetic = facts.get("digital_source_type", "").rpartition("/")[2] in SYNTHETIC_SOURCES or is_marked
    found: dict[str, object] = {}
    if watermark is not None:
        name, confidence = watermark
        found = {"method": name, "confidence": round(confidence, 3), "found": is_marked}
    if args.json:
        answer = {"file": args.file, "format": tags.format, "synthetic": is_synthetic, "facts": facts}
        print(json.dumps(answer | ({"watermark": found} if found else {})))
    else:
        print(
            f"{shown(args.file)} ({tags.format}): {'synthetic audio' if is_synthetic else 'no mark of synthetic audio'}"
        )
        for name, value in facts.items():
            print(f"  {name.replace('_', ' ')}: {value}")
        if found:
            outcome = "found" if is_marked else "not found"
            print(f"  watermark: {found['method']}, {outcome} (confidence {found['confidence']})")
    return SYNTHETIC if is_synthetic else NOT_MARKED


def facts_of(tags: FileTags) -> dict[str, str]:
    """The facts of FACTS that the file's fields say: each in a field of its own, or all in a comment."""
    fields = tags.fields
    listed: dict[str, str] = {}
    for comment in ("comment", "icmt", "coding_history"):
        for part in fields.get(comment, "").split("; "):
            name, sign, value = part.partition("=")
            if sign:
                listed.setdefault(name, value)
    found = {name: fields.get(name) or listed.get(name) for name in FACTS}
    return {name: value for name, value in found.items() if value}


def find_watermark(path: str) -> tuple[str, float]:
    """The name of a watermark, and the confidence that the file has it.

    Raises:
        NoFinder: no package that finds one is installed.
        ValueError: the file cannot be decoded.
    """
    for entry in entry_points(group=WATERMARK_GROUP):
        try:
            find: Finder = entry.load()
        except ImportError as error:
            raise NoFinder(f"{error}; install it with: pip install 'vivavoce-speech[server,watermark]'") from error
        return find(path)
    raise NoFinder("no watermark is known here; pip install 'vivavoce-speech[server,watermark]' adds one")
