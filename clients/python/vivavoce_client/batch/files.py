"""Audio files of a job: parts as they come from the server, and the tracks that are made of them."""

import contextlib
import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from vivavoce_client.batch.job import HASHED_BYTES, Content
from vivavoce_client.outputs import wav_header
from vivavoce_client.protocol import PCM, SAMPLE_BYTES, SAMPLE_RATE, VivavoceError

WAV = "wav"
JOINED_FORMATS = (WAV, PCM)
"""Formats in which files can be joined."""
HEADER_BYTES = len(wav_header(None))
MAX_WAV_BYTES = 0xFFFFFFFF - HEADER_BYTES


class BadOutput(VivavoceError):
    """A file cannot be written."""


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file that appears under its name once it is complete. Raises BadOutput.

    It does not wait for the disk: a job that goes on compares each file with its state.
    """
    unfinished = path.with_name(f".{path.name}.part")
    try:
        with unfinished.open("wb") as file:
            yield file
        os.replace(unfinished, path)
    except OSError as error:
        raise BadOutput(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        unfinished.unlink(missing_ok=True)


def clean(folder: Path) -> None:
    """Removes what a killed process left of unfinished files."""
    for unfinished in folder.glob(".*.part"):
        unfinished.unlink()


def write(path: Path, pieces: Iterable[bytes]) -> Content:
    """Writes a file and tells what is in it. Raises BadOutput."""
    digest = hashlib.sha256()
    size_bytes = 0
    with whole_file(path) as file:
        for piece in pieces:
            file.write(piece)
            digest.update(piece)
            size_bytes += len(piece)
    return Content(size_bytes, digest.hexdigest())


def read(path: Path, skipped_bytes: int = 0) -> Iterator[bytes]:
    """The content of a file, behind its first bytes."""
    with path.open("rb") as file:
        file.seek(skipped_bytes)
        while piece := file.read(HASHED_BYTES):
            yield piece


def joined(stretches: Iterable["Path | int"], pcm_bytes: int, audio_format: str, skipped_bytes: int) -> Iterator[bytes]:
    """A file of the audio of others, without their first bytes, and of silences, which are numbers of samples.

    Raises:
        BadOutput: it would be larger than a WAV file can be.
    """
    if audio_format == WAV:
        if pcm_bytes > MAX_WAV_BYTES:
            raise BadOutput(
                f"{pcm_bytes} bytes of audio are more than a WAV file holds; --format pcm has no such limit"
            )
        yield wav_header(pcm_bytes)
    for stretch in stretches:
        if isinstance(stretch, int):
            left_bytes = stretch * SAMPLE_BYTES
            while left_bytes:
                piece = bytes(min(left_bytes, HASHED_BYTES))
                left_bytes -= len(piece)
                yield piece
        else:
            yield from read(stretch, skipped_bytes)


def samples_of(seconds: float) -> int:
    return round(seconds * SAMPLE_RATE)
