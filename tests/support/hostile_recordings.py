"""Files of a few bytes whose headers promise far more: the containers by hand, because no encoder writes such."""

import struct


def lying_mp4(frames: int, tracks: int = 1) -> bytes:
    """An mp4 whose tracks claim `frames` frames of AAC each, in a file of some hundred bytes a track."""
    tracks_boxes = b"".join(_track(number + 1, frames) for number in range(tracks))
    header = _full(b"mvhd", struct.pack(">4I", 0, 0, 24000, frames) + bytes(76) + struct.pack(">I", tracks + 1))
    head = _box(b"ftyp", b"isom" + bytes(4) + b"isom") + _box(b"moov", header + tracks_boxes)
    return head + _box(b"mdat", bytes(64))


def _track(number: int, frames: int) -> bytes:
    sound = bytes(6) + struct.pack(">H8xHHHHI", 1, 1, 16, 0, 0, 24000 << 16)
    table = b"".join(
        (
            _full(b"stsd", struct.pack(">I", 1) + _box(b"mp4a", sound)),
            _full(b"stts", struct.pack(">3I", 1, frames, 1024)),
            _full(b"stsc", struct.pack(">4I", 1, 1, frames, 1)),
            _full(b"stsz", struct.pack(">2I", 1, frames)),
            _full(b"stco", struct.pack(">2I", 1, 600)),
        )
    )
    media = b"".join(
        (
            _full(b"mdhd", struct.pack(">4I4x", 0, 0, 24000, frames)),
            _full(b"hdlr", bytes(4) + b"soun" + bytes(13)),
            _box(b"minf", _full(b"smhd", bytes(4)) + _box(b"stbl", table)),
        )
    )
    return _box(b"trak", _full(b"tkhd", struct.pack(">5I60x", 0, 0, number, 0, frames)) + _box(b"mdia", media))


def _full(kind: bytes, body: bytes) -> bytes:
    """A box with a version and flags."""
    return _box(kind, bytes(4) + body)


def _box(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", 8 + len(body)) + kind + body
