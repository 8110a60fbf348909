"""Marks of synthetic speech: facts that a file says about itself, in the place that its format has for them.

docs/marked_audio.md lists what is written where. The samples of a file are the same with a mark and without.
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from urllib.parse import quote

from vivavoce_server.build import VERSION
from vivavoce_server.config import MarkChoice
from vivavoce_server.containers import UNKNOWN_SIZE, Encoder, FfmpegEncoder
from vivavoce_server.effects import Samples
from vivavoce_server.watermarks import Watermarker, missing

SYNTHETIC_HEADER = "X-Synthetic-Audio"
SYNTHETIC_ABOUT = (
    "With `--mark-audio`: the source type of the audio, the software, and the model and voice of a single file, as a"
    " dictionary of RFC 9651. Characters beyond ASCII are in percent code."
)
SOURCE_TYPE = "http://cv.iptc.org/newscodes/digitalsourcetype/trainedAlgorithmicMedia"
"""IPTC's digital source type of media that a trained model made."""
OWN_VOICE = "from the request"
"""Name of a voice that a request brings with it, as a recording or as an embedding."""
MAX_NAME_CHARS = 200
"""Most characters of a name that a mark holds."""
FMT_END = 36
"""End of the chunk `fmt ` in a WAV file, in bytes; other chunks may follow it."""


@dataclass(frozen=True, slots=True)
class AudioMark:
    """Facts about synthetic speech. `watermarker` also marks the samples themselves; None leaves them as they are."""

    software: str
    model: str
    voice: str
    watermarker: Watermarker | None = None

    def facts(self) -> dict[str, str]:
        """Names and values, in the order in which a file has them."""
        return {
            "digital_source_type": SOURCE_TYPE,
            "software": self.software,
            "model": _printable(self.model),
            "voice": _printable(self.voice),
        }

    def sentence(self) -> str:
        """All facts in one line, for formats that have a field for a comment only."""
        facts = "; ".join(f"{name}={value}" for name, value in self.facts().items())
        return f"Synthetic speech, made by software; {facts}"

    def tags(self) -> dict[str, str]:
        """The facts as comments of Ogg and FLAC."""
        return {"comment": self.sentence(), **self.facts()}

    def header(self) -> str:
        """The value of SYNTHETIC_HEADER."""
        return header_of(self.facts())

    def wav_chunks(self) -> bytes:
        """The chunks `bext` (EBU Tech 3285) and LIST/INFO."""
        return self._bext() + self._info()

    def id3(self) -> bytes:
        """A tag of ID3v2.4."""
        frames = [_id3_frame(b"COMM", b"\3eng\0" + self.sentence().encode())]
        frames += [_id3_frame(b"TXXX", f"\3{name}\0{value}".encode()) for name, value in self.facts().items()]
        body = b"".join(frames)
        return b"ID3\4\0\0" + _syncsafe(len(body)) + body

    def _bext(self) -> bytes:
        # Without a date and a time, the same request always gives the same bytes.
        fixed = struct.pack(
            "<256s32s32s10s8sQH64s190s",
            *(_ascii(f"Synthetic speech; {SOURCE_TYPE}", 256), _ascii(self.software, 32), b"", b"", b"", 0),
            *(1, b"", b""),
        )
        return _chunk(b"bext", fixed + _ascii(self.sentence(), 4 * MAX_NAME_CHARS) + b"\r\n")

    def _info(self) -> bytes:
        fields = {b"ICMT": self.sentence(), b"ISFT": self.software}
        listed = b"".join(_chunk(name, text.encode() + b"\0") for name, text in fields.items())
        return _chunk(b"LIST", b"INFO" + listed)


@dataclass(frozen=True, slots=True)
class Marker:
    """Makes the marks of one server's speech."""

    software: str
    watermarker: Watermarker | None

    def mark(self, model: str, voice: str | None) -> AudioMark:
        """The mark of speech with a voice. None means that the request brought the voice with it."""
        return AudioMark(self.software, model, voice or OWN_VOICE, self.watermarker)

    def header(self) -> str:
        """The value of SYNTHETIC_HEADER where the model and the voice are not known, or several."""
        return header_of({"digital_source_type": SOURCE_TYPE, "software": self.software})


def open_marker(choice: MarkChoice) -> Marker | None:
    """The marker of a server; None if it marks nothing.

    Raises:
        NoWatermarker: a watermark is wanted and there is none.
    """
    if choice == "off":
        return None
    return Marker(f"Vivavoce {VERSION}", load_watermarker() if choice == "on" else None)


def load_watermarker() -> Watermarker:
    """The watermark of this server. It is loaded once.

    Raises:
        NoWatermarker: its package is missing, or not the expected one.
    """
    try:
        from vivavoce_server.perth import load_perth
    except ImportError as error:
        raise missing(error.name or str(error)) from None
    return load_perth()


def header_of(facts: Mapping[str, str]) -> str:
    """Facts as a dictionary of RFC 9651, in ASCII."""
    safe = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) not in '%"\\')
    return ", ".join(f'{name.replace("_", "-")}="{quote(value, safe=safe)}"' for name, value in facts.items())


def marked(encoder: Encoder, name: str, mark: AudioMark) -> Encoder:
    """The encoder of a file in the format `name` that holds the mark. Raw formats have no place for one."""
    if name == "wav":
        return MarkedFile(encoder, partial(_into_wav, mark.wav_chunks()))
    if name in ("mp3", "aac"):
        # The tag is at the very front. In the middle of a stream, it would end the work of some decoders.
        return MarkedFile(encoder, mark.id3().__add__)
    if isinstance(encoder, FfmpegEncoder):
        encoder.add_tags(mark.tags())
    return encoder


class MarkedFile:
    """An Encoder that puts a mark into the head of another one's file."""

    def __init__(self, encoder: Encoder, place: Callable[[bytes], bytes]) -> None:
        """`place` makes a head with the mark of a head without."""
        self._encoder = encoder
        self._place = place
        self._mark_bytes: int | None = None
        """Bytes that the mark adds to the file; None until its head is written."""

    @property
    def delay_s(self) -> float:
        return self._encoder.delay_s

    def head(self) -> bytes:
        if self._mark_bytes is not None:
            return b""
        plain = self._encoder.head()
        head = self._place(plain)
        self._mark_bytes = len(head) - len(plain)
        return head

    def feed(self, pcm: Samples) -> bytes:
        return self.head() + self._encoder.feed(pcm)

    def flush(self) -> bytes:
        return self.head() + self._encoder.flush()

    def complete(self, file_bytes: int) -> bytes:
        return self._place(self._encoder.complete(file_bytes - (self._mark_bytes or 0)))


def _into_wav(chunks: bytes, head: bytes) -> bytes:
    """A WAV file's head with more chunks between `fmt ` and `data`. Behind `data`, a stream could have none."""
    (riff_bytes,) = struct.unpack_from("<I", head, 4)
    riff_bytes = min(riff_bytes + len(chunks), UNKNOWN_SIZE)
    return head[:4] + struct.pack("<I", riff_bytes) + head[8:FMT_END] + chunks + head[FMT_END:]


def _printable(text: str) -> str:
    """A name without characters that would end a field, of bounded length."""
    return "".join(sign if sign.isprintable() and sign != ";" else " " for sign in text[:MAX_NAME_CHARS])


def _ascii(text: str, size: int) -> bytes:
    """Text for the fields of `bext`, which are in ASCII."""
    return text.encode("ascii", "replace")[:size]


def _chunk(name: bytes, body: bytes) -> bytes:
    """A chunk of RIFF. It has an even number of bytes, and its size does not count the one that fills it up."""
    return name + struct.pack("<I", len(body)) + body + b"\0" * (len(body) % 2)


def _id3_frame(name: bytes, body: bytes) -> bytes:
    return name + _syncsafe(len(body)) + b"\0\0" + body


def _syncsafe(number: int) -> bytes:
    """A size of ID3v2: seven bits a byte, so that no byte looks like the sync word of a frame."""
    return bytes(number >> shift & 0x7F for shift in (21, 14, 7, 0))
