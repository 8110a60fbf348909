"""Audio formats: the media type and the incremental encoder of each.

Every encoder writes one header at the beginning, can leave the length open, and holds nothing back after `flush`.
"""

import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import av
import numpy as np
from numpy.typing import NDArray
from vivavoce_engine import SynthesisFailed

from vivavoce_server.effects import Samples, audio_frame

FormatName = Literal["mp3", "opus", "aac", "flac", "wav", "pcm"]
UNKNOWN_SIZE = 0xFFFFFFFF
HEAD_BYTES = 64
"""Bytes at a file's beginning among which all fields for its length are."""
WAV_HEADER_BYTES = 44
SAMPLE_BYTES = 2
FULL_SCALE = 32767


class Encoder(Protocol):
    """Encodes one utterance into one file, piece by piece. `feed` and `flush` may return nothing."""

    def head(self) -> bytes:
        """The bytes before all samples, unless they have been returned already. `feed` returns them otherwise."""
        ...

    def feed(self, pcm: Samples) -> bytes: ...

    def flush(self) -> bytes: ...

    def complete(self, head: bytes, file_bytes: int) -> bytes:
        """The first bytes of the file with its length filled in, where the format has a field for it.

        `head` is what the pieces, joined, begin with: HEAD_BYTES, or all if there are fewer.
        """
        ...


def to_int16(pcm: Samples) -> NDArray[np.int16]:
    """Converts float32 samples to little-endian 16-bit integers. Raises SynthesisFailed if one is NaN or infinite."""
    scaled = _checked(pcm)
    scaled *= FULL_SCALE
    samples: NDArray[np.int16] = np.rint(scaled, out=scaled).astype("<i2")
    return samples


def _checked(pcm: Samples) -> Samples:
    """A copy clipped to [-1, 1]. NaN or infinity is a fault of the model and must not pass as silence."""
    if not np.isfinite(pcm).all():
        raise SynthesisFailed("the model made audio that is not a number")
    return np.clip(pcm, -1.0, 1.0)


def wav_header(sample_rate: int, data_bytes: int | None) -> bytes:
    """The 44 bytes before 16-bit mono samples. `data_bytes` None marks a stream whose length is not known yet."""
    riff_bytes = UNKNOWN_SIZE if data_bytes is None else data_bytes + WAV_HEADER_BYTES - 8
    return struct.pack(
        "<4sI4s4sIHHIIHH4sI",
        *(b"RIFF", riff_bytes, b"WAVE"),
        *(b"fmt ", 16, 1, 1, sample_rate, sample_rate * SAMPLE_BYTES, SAMPLE_BYTES, 8 * SAMPLE_BYTES),
        *(b"data", UNKNOWN_SIZE if data_bytes is None else data_bytes),
    )


class PcmEncoder:
    """Encoder for raw 16-bit little-endian mono samples."""

    def __init__(self, sample_rate: int) -> None:
        self._sample_rate = sample_rate
        self._head = b""

    def feed(self, pcm: Samples) -> bytes:
        return self.head() + to_int16(pcm).tobytes()

    def flush(self) -> bytes:
        return self.head()

    def complete(self, head: bytes, file_bytes: int) -> bytes:
        return head

    def head(self) -> bytes:
        head, self._head = self._head, b""
        return head


class WavEncoder(PcmEncoder):
    """Encoder for 16-bit mono samples behind one header that leaves the length open."""

    def __init__(self, sample_rate: int) -> None:
        super().__init__(sample_rate)
        self._head = wav_header(sample_rate, None)

    def complete(self, head: bytes, file_bytes: int) -> bytes:
        return wav_header(self._sample_rate, file_bytes - WAV_HEADER_BYTES) + head[WAV_HEADER_BYTES:]


class _Written:
    """The sink of FFmpeg's output. It cannot seek, so a muxer does not rely on going back to its header."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def write(self, data: bytes) -> int:
        self._bytes += data
        return len(data)

    def take(self) -> bytes:
        taken = bytes(self._bytes)
        self._bytes.clear()
        return taken


class FfmpegEncoder:
    """Encoder with a codec and a container of FFmpeg. Each packet leaves the muxer at once."""

    muxer: ClassVar[str]
    codec: ClassVar[str]
    sample_format: ClassVar[str] = "fltp"
    muxer_options: ClassVar[dict[str, str]] = {}

    def __init__(self, sample_rate: int, bit_rate: int | None = None) -> None:
        """`bit_rate` is in bits per second; None leaves it to the format."""
        self._sample_rate = sample_rate
        self._bit_rate = bit_rate
        self._samples = 0
        self._written = _Written()
        options = {"flush_packets": "1", **self.muxer_options}
        self._container = av.open(self._written, "w", format=self.muxer, options=options)
        stream = self._container.add_stream(self.codec, rate=sample_rate, options=self.codec_options())
        assert isinstance(stream, av.AudioStream)
        stream.layout = "mono"
        self._stream = stream

    def codec_options(self) -> dict[str, str]:
        return {}

    def head(self) -> bytes:
        self._container.start_encoding()
        return self._written.take()

    def feed(self, pcm: Samples) -> bytes:
        samples = to_int16(pcm) if self.sample_format == "s16" else _checked(pcm)
        frame = audio_frame(samples[np.newaxis, :], self.sample_format, self._sample_rate, self._samples)
        self._samples += len(pcm)
        self._container.mux(self._stream.encode(frame))
        return self._written.take()

    def flush(self) -> bytes:
        self._container.mux(self._stream.encode(None))
        self._container.close()
        return self._written.take()

    def complete(self, head: bytes, file_bytes: int) -> bytes:
        return head


class Mp3Encoder(FfmpegEncoder):
    """Encoder for bare MPEG frames, without ID3 tag or Xing frame. A Xing frame would need the file's length."""

    muxer, codec = "mp3", "libmp3lame"
    muxer_options: ClassVar[dict[str, str]] = {"write_xing": "0", "id3v2_version": "0"}

    def codec_options(self) -> dict[str, str]:
        # Without a bit reservoir, a frame can leave as soon as it is full.
        rate = self._bit_rate or (64_000 if self._sample_rate < 16000 else 128_000)
        return {"b": str(rate), "compression_level": "7", "reservoir": "0"}


class OpusEncoder(FfmpegEncoder):
    """Encoder for Ogg Opus, with one page per packet of 20 ms."""

    muxer, codec, sample_format = "ogg", "libopus", "flt"
    muxer_options: ClassVar[dict[str, str]] = {"page_duration": "20000"}

    def codec_options(self) -> dict[str, str]:
        return {"b": str(self._bit_rate or 64_000), "frame_duration": "20"}

    def number_stream(self, number: int) -> None:
        """Gives the stream this serial number, from 0 to 2**31 - 1, instead of a random one. Call it before `head`."""
        self._container.options.update({"fflags": "bitexact", "serial_offset": str(number)})


class AacEncoder(FfmpegEncoder):
    """Encoder for AAC-LC in ADTS frames, which need no file header."""

    muxer, codec = "adts", "aac"

    def codec_options(self) -> dict[str, str]:
        return {"b": str(self._bit_rate or (48_000 if self._sample_rate < 16000 else 96_000))}


class FlacEncoder(FfmpegEncoder):
    """Encoder for FLAC in short blocks. The usual 4096 samples would delay speech by 170 ms."""

    muxer, codec, sample_format = "flac", "flac", "s16"
    blocks_per_s: ClassVar[int] = 25

    def codec_options(self) -> dict[str, str]:
        return {"frame_size": str(self._sample_rate // self.blocks_per_s)}

    def complete(self, head: bytes, file_bytes: int) -> bytes:
        # STREAMINFO follows "fLaC" and a block header. The number of samples is its 36-bit field that ends at byte 18.
        # A streamed header has 0 there, which means unknown.
        end = 4 + 4 + 18
        field = int.from_bytes(head[end - 5 : end]) | self._samples
        return head[: end - 5] + field.to_bytes(5) + head[end:]


@dataclass(frozen=True, slots=True)
class AudioFormat:
    """A format of files. `sample_rate` None keeps the model's rate.

    Frames of mp3 and AAC have a fixed number of samples, and an encoder adds one or two frames of silence at the
    beginning. At 48 kHz these last 24 to 47 ms, at 24 kHz up to 85 ms.
    """

    media_type: str
    encoder: Callable[[int], Encoder]
    sample_rate: int | None = None


FORMATS: dict[FormatName, AudioFormat] = {
    "mp3": AudioFormat("audio/mpeg", Mp3Encoder, 48000),
    "opus": AudioFormat("audio/ogg", OpusEncoder),
    "aac": AudioFormat("audio/aac", AacEncoder, 48000),
    "flac": AudioFormat("audio/flac", FlacEncoder),
    "wav": AudioFormat("audio/wav", WavEncoder),
    "pcm": AudioFormat("audio/pcm", PcmEncoder),
}
LOSSY: dict[str, type[FfmpegEncoder]] = {"mp3": Mp3Encoder, "opus": OpusEncoder, "aac": AacEncoder}
"""Formats whose bit rate can be chosen."""


class SharedEncoder:
    """One file for several utterances, whose end stays open.

    `flush` ends an utterance. It pushes out the samples that the encoder still holds, by short silence behind them.
    A thread of an utterance that was cut off may still be encoding when the next one begins, hence the lock.
    """

    def __init__(self, encoder: Encoder, held_samples: int) -> None:
        """`held_samples` is the largest number of samples that the encoder holds back."""
        self._encoder = encoder
        self._held_samples = held_samples
        self._lock = threading.Lock()

    def head(self) -> bytes:
        with self._lock:
            return self._encoder.head()

    def feed(self, pcm: Samples) -> bytes:
        with self._lock:
            return self._encoder.feed(pcm)

    def flush(self) -> bytes:
        return self.feed(np.zeros(self._held_samples, np.float32)) if self._held_samples else b""

    def complete(self, head: bytes, file_bytes: int) -> bytes:
        return self._encoder.complete(head, file_bytes)
