"""Length of a recording as its header states it, so that half a file is not taken for a whole one. Torch-free."""

import struct
from collections.abc import Iterator

import av

FORMATS_WITH_LENGTH = frozenset({"flac", "aiff", "mov", "matroska"})
"""FFmpeg's names of the containers whose header states the length. FFmpeg guesses the length of others."""
UNKNOWN_SIZE_BYTES = 0x7FFF0000
"""Programs that write a WAV file to a pipe state a size of this or more, or 0."""
TOLERANCE_S, TOLERANCE_SHARE = 0.5, 0.05
"""Difference that lossy codecs and a few damaged packets make."""


def is_cut(stated_s: float, heard_s: float) -> bool:
    """True if a file with this stated length ends too early."""
    return heard_s < stated_s - max(TOLERANCE_S, TOLERANCE_SHARE * stated_s)


def stated_length_s(container: av.container.InputContainer, data: bytes, heard_s: float) -> float | None:
    """Length in seconds that the header of an opened file states, None if it states none.

    `data` is the file, in which `heard_s` seconds were found.
    """
    name = container.format.name.partition(",")[0]
    if name == "wav":  # of which FFmpeg states the length that is there
        return stated_wav_length_s(data, heard_s)
    stream = container.streams.audio[0]
    if name == "mp3":  # for which FFmpeg guesses if the file is longer than stated, by a tag behind it
        return stated_mp3_length_s(data, stream.sample_rate)
    if name not in FORMATS_WITH_LENGTH:
        return None
    if stream.duration is not None and stream.time_base is not None:
        return float(stream.duration * stream.time_base)
    # The container's length is that of its longest stream.
    if container.duration is not None and len(container.streams) == 1:
        return container.duration / av.time_base
    return None


def stated_wav_length_s(data: bytes, heard_s: float) -> float | None:
    for name, start, size in wav_chunks(data):
        if name == b"data" and 0 < size < UNKNOWN_SIZE_BYTES and start < len(data):
            present = min(size, len(data) - start)
            return heard_s * size / present
    return None


def wav_chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Name, start and stated size in bytes of each chunk of a WAV file."""
    at = 12
    while at + 8 <= len(data):
        name, size = struct.unpack_from("<4sI", data, at)
        yield name, at + 8, size
        at += 8 + size + size % 2


def stated_mp3_length_s(data: bytes, rate: int) -> float | None:
    """Length by the number of frames that the first frame of an MP3 file may hold. It follows the tags in front."""
    start = 0
    if data[:3] == b"ID3" and len(data) >= 10:
        size = 0
        for byte in data[6:10]:
            size = size << 7 | byte & 0x7F
        start = 10 + size
    first = data[start : start + 2048]
    at = max(first.find(b"Xing"), first.find(b"Info"))
    if at < 0 or at + 12 > len(first) or rate <= 0:
        return None
    flags, frames = struct.unpack_from(">2I", first, at + 4)
    frame_samples = 1152 if rate >= 32_000 else 576
    return frames * frame_samples / rate if flags & 1 else None
