"""Reads the text fields of an audio file: WAV, ID3 in front of MP3 and AAC, Ogg, FLAC. It needs no other package.

Files may be cut or hostile: at most MAX_METADATA_BYTES are read, in one pass.
"""

import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

MAX_METADATA_BYTES = 2**20
"""Most bytes of one file's metadata that are read."""
MAX_PARTS = 1000
"""Most chunks, frames, blocks or pages that are looked at."""
MAX_VALUE_CHARS = 1000
OPEN_SIZES = frozenset({0, 0x7FFFFFFF, 0xFFFFFFFF})
"""Sizes of a WAV file's samples that leave the length open."""
ENCODINGS = ("latin-1", "utf-16", "utf-16-be", "utf-8")
"""Encodings of ID3, by the byte in front of a text."""
COMMENT_PACKETS = (b"OpusTags", b"\x03vorbis")


class Unreadable(ValueError):
    """A file is no audio file of a known format, is cut, or has too much metadata. The message says which."""


@dataclass(slots=True)
class FileTags:
    """The name of a file's format, and its text fields by lower-case name. The first field of a name counts."""

    format: str
    fields: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, value: str) -> None:
        self.fields.setdefault(shown(name).lower(), shown(value))


class _Source:
    """A file with a limit on what is read of it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._left_bytes = MAX_METADATA_BYTES

    def read(self, size: int) -> bytes:
        """The next bytes, all of them."""
        if size > self._left_bytes:
            raise Unreadable(f"its metadata is larger than {MAX_METADATA_BYTES} bytes")
        self._left_bytes -= size
        content = self._file.read(size)
        if len(content) < size:
            raise Unreadable("it is cut: it ends inside its metadata")
        return content

    def begins_with(self, size: int) -> bytes:
        """The next bytes, as far as there are some. They are read again later."""
        start = self._file.tell()
        content = self._file.read(size)
        self._file.seek(start)
        return content

    def skip(self, size: int) -> None:
        self._file.seek(size, os.SEEK_CUR)

    def is_at_end(self) -> bool:
        return not self.begins_with(1)


def read_tags(file: BinaryIO) -> FileTags:
    """The text fields of a file that can be sought.

    Raises:
        Unreadable: it is no audio file of a known format, is cut, or has too much metadata.
    """
    source = _Source(file)
    if source.begins_with(3) == b"ID3":
        tags = FileTags("")
        _read_id3(source, tags)
        behind = _kind(source)
        if behind == "flac":
            _read_flac(source, tags)
        tags.format = behind or "ID3"
        return tags
    kind = _kind(source)
    if kind is None:
        raise Unreadable("it is no WAV, MP3, AAC, Ogg or FLAC file")
    tags = FileTags(kind)
    readers: dict[str, Callable[[_Source, FileTags], None]] = {"wav": _read_wav, "flac": _read_flac, "ogg": _read_ogg}
    if kind in readers:
        readers[kind](source, tags)
    return tags


def _kind(source: _Source) -> str | None:
    """The format that the next bytes begin; None for an unknown one."""
    head = source.begins_with(12)
    if head[:4] in (b"RIFF", b"RF64") and head[8:] == b"WAVE":
        return "wav"
    kind = {b"fLaC": "flac", b"OggS": "ogg"}.get(head[:4])
    if kind is None and len(head) > 1 and head[0] == 0xFF:
        # Eleven bits of a sync word, or twelve for ADTS, whose layer is 0.
        if head[1] & 0xF6 == 0xF0:
            return "aac"
        if head[1] & 0xE0 == 0xE0 and head[1] & 0x06:
            return "mp3"
    return kind


def _read_wav(source: _Source, tags: FileTags) -> None:
    source.read(12)
    for _ in range(MAX_PARTS):
        if source.is_at_end():
            return
        name, size = struct.unpack("<4sI", source.read(8))
        if name == b"data" and size in OPEN_SIZES:
            return
        if name == b"bext":
            _read_bext(source.read(size), tags)
        elif name == b"LIST":
            _read_info(source.read(size), tags)
        else:
            source.skip(size)
        source.skip(size % 2)


def _read_bext(body: bytes, tags: FileTags) -> None:
    for name, start, end in (("description", 0, 256), ("originator", 256, 288), ("coding_history", 602, None)):
        if text := body[start:end].partition(b"\0")[0].decode("latin-1").strip():
            tags.add(name, text)


def _read_info(body: bytes, tags: FileTags) -> None:
    if body[:4] != b"INFO":
        return
    place = 4
    while place + 8 <= len(body):
        name, size = struct.unpack_from("<4sI", body, place)
        text = body[place + 8 : place + 8 + size].partition(b"\0")[0]
        tags.add(name.decode("latin-1"), text.decode(errors="replace"))
        place += 8 + size + size % 2


def _read_id3(source: _Source, tags: FileTags) -> None:
    _, version, _, flags, size = struct.unpack(">3sBBB4s", source.read(10))
    body = source.read(_syncsafe(size))
    if version not in (3, 4):
        return
    place = 0
    if flags & 0x40 and len(body) >= 4:  # an extended header; its size counts itself in version 4
        place = _syncsafe(body[:4]) if version == 4 else 4 + int.from_bytes(body[:4])
    for _ in range(MAX_PARTS):
        name = body[place : place + 4]
        if place + 10 > len(body) or not name.strip(b"\0"):
            return
        field_size = body[place + 4 : place + 8]
        frame_bytes = _syncsafe(field_size) if version == 4 else int.from_bytes(field_size)
        place += 10
        _read_frame(name, body[place : place + frame_bytes], tags)
        place += frame_bytes


def _read_frame(name: bytes, frame: bytes, tags: FileTags) -> None:
    if name[:1] not in (b"T", b"C") or not frame or frame[0] >= len(ENCODINGS):
        return
    is_comment = name == b"COMM"
    text = frame[4 if is_comment else 1 :].decode(ENCODINGS[frame[0]], errors="replace")
    first, _, rest = text.partition("\0")
    if name == b"TXXX":
        tags.add(first, rest.rstrip("\0"))
    elif is_comment:
        tags.add("comment", rest.rstrip("\0"))
    elif name[:1] == b"T":
        tags.add(name.decode("latin-1"), first)


def _read_flac(source: _Source, tags: FileTags) -> None:
    source.read(4)
    for _ in range(MAX_PARTS):
        head = source.read(4)
        size = int.from_bytes(head[1:])
        if head[0] & 0x7F == 4:
            _read_comments(source.read(size), tags)
        else:
            source.skip(size)
        if head[0] & 0x80:
            return
    raise Unreadable("its metadata has no end")


def _read_ogg(source: _Source, tags: FileTags) -> None:
    for packet in _ogg_packets(source):
        for start in COMMENT_PACKETS:
            if packet.startswith(start):
                tags.format = "ogg opus" if start == b"OpusTags" else "ogg vorbis"
                _read_comments(packet[len(start) :], tags)
                return


def _ogg_packets(source: _Source) -> Iterator[bytes]:
    """The first packets of an Ogg file, from as many pages as they take."""
    held = b""
    for _ in range(MAX_PARTS):
        if source.is_at_end():
            return
        head = source.read(27)
        if head[:4] != b"OggS":
            raise Unreadable("it is damaged: a page of Ogg does not begin where it should")
        for segment in source.read(head[26]):
            held += source.read(segment)
            if segment < 255:
                yield held
                held = b""


def _read_comments(body: bytes, tags: FileTags) -> None:
    """Reads the comments of Ogg and FLAC: the name of the encoder, then NAME=value."""
    place = 4 + int.from_bytes(body[:4], "little") + 4
    while place + 4 <= len(body):
        size = int.from_bytes(body[place : place + 4], "little")
        name, sign, value = body[place + 4 : place + 4 + size].decode(errors="replace").partition("=")
        if sign:
            tags.add(name, value)
        place += 4 + size


def _syncsafe(size: bytes) -> int:
    number = 0
    for byte in size:
        number = number << 7 | byte & 0x7F
    return number


def shown(text: str) -> str:
    """Text that a terminal can show: what controls it is replaced, and the length is bounded."""
    return "".join(sign if sign.isprintable() else "?" for sign in text[:MAX_VALUE_CHARS])
