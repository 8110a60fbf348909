"""Incremental encoders of audio files.

Every encoder writes one header at the beginning, can leave the length open, and holds nothing back after `flush`.
"""

import struct
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Protocol

import av
import numpy as np
from numpy.typing import NDArray
from vivavoce_engine import SynthesisFailed

from vivavoce_server.effects import Samples, audio_frame
from vivavoce_server.mp3_info import InfoFrame

UNKNOWN_SIZE = 0xFFFFFFFF
WAV_HEADER_BYTES = 44
SAMPLE_BYTES = 2
FULL_SCALE = 32767
AUDIBLE_LOSS = 10 ** (-55 / 20)
"""RMS of -55 dBFS, below which nothing is missed at the beginning of a file."""


class Encoder(Protocol):
    """Encodes one utterance into one file, piece by piece. `feed` and `flush` may return nothing."""

    @property
    def delay_s(self) -> float:
        """Seconds of a decoded file before its first sample, of which no decoder knows. `feed` settles it."""
        ...

    def head(self) -> bytes:
        """The bytes before all samples, unless they have been returned already. `feed` returns them otherwise."""
        ...

    def feed(self, pcm: Samples) -> bytes: ...

    def flush(self) -> bytes: ...

    def complete(self, file_bytes: int) -> bytes:
        """The head with the file's length filled in, where the format has a field for it. Its size is the same.

        `file_bytes` is the size of the whole file, which `flush` has ended.
        """
        ...


class FileEncoder(ABC):
    """An Encoder whose format has a head, an encoding of samples, and an end."""

    def __init__(self, sample_rate: int) -> None:
        self.delay_s = 0.0
        self._sample_rate = sample_rate
        self._samples = 0
        """Samples that have been fed."""
        self._head: bytes | None = None

    def head(self) -> bytes:
        if self._head is not None:
            return b""
        self._head = self._open()
        return self._head

    def feed(self, pcm: Samples) -> bytes:
        head = self.head()
        self._samples += len(pcm)
        return head + self._encode(pcm)

    def flush(self) -> bytes:
        return self.head() + self._close()

    def complete(self, file_bytes: int) -> bytes:
        return self._head or b""

    def _open(self) -> bytes:
        """The head of a file whose length is not known yet."""
        return b""

    @abstractmethod
    def _encode(self, pcm: Samples) -> bytes: ...

    def _close(self) -> bytes:
        """The bytes that the encoder still holds."""
        return b""


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
    """The 44 bytes before 16-bit mono samples. `data_bytes` None marks a stream whose length is not known yet.

    Samples of over 4 GiB, 12 hours at 48 kHz, are more than a field can tell. They are marked as a stream's.
    """
    if data_bytes is None or data_bytes + WAV_HEADER_BYTES - 8 > UNKNOWN_SIZE:
        riff_bytes = told_bytes = UNKNOWN_SIZE
    else:
        riff_bytes, told_bytes = data_bytes + WAV_HEADER_BYTES - 8, data_bytes
    return struct.pack(
        "<4sI4s4sIHHIIHH4sI",
        *(b"RIFF", riff_bytes, b"WAVE"),
        *(b"fmt ", 16, 1, 1, sample_rate, sample_rate * SAMPLE_BYTES, SAMPLE_BYTES, 8 * SAMPLE_BYTES),
        *(b"data", told_bytes),
    )


class PcmEncoder(FileEncoder):
    """Encoder for raw 16-bit little-endian mono samples."""

    def _encode(self, pcm: Samples) -> bytes:
        return to_int16(pcm).tobytes()


class WavEncoder(PcmEncoder):
    """Encoder for 16-bit mono samples behind one header that leaves the length open."""

    def _open(self) -> bytes:
        return wav_header(self._sample_rate, None)

    def complete(self, file_bytes: int) -> bytes:
        return wav_header(self._sample_rate, file_bytes - WAV_HEADER_BYTES)


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


class FfmpegEncoder(FileEncoder):
    """Encoder with a codec and a container of FFmpeg. Each packet leaves the muxer at once."""

    muxer: ClassVar[str]
    codec: ClassVar[str]
    sample_format: ClassVar[str] = "fltp"
    muxer_options: ClassVar[dict[str, str]] = {}

    def __init__(self, sample_rate: int) -> None:
        super().__init__(sample_rate)
        self._written = _Written()
        options = {"flush_packets": "1", **self.muxer_options}
        self._container = av.open(self._written, "w", format=self.muxer, options=options)
        stream = self._container.add_stream(self.codec, rate=sample_rate, options=self.codec_options())
        assert isinstance(stream, av.AudioStream)
        stream.layout = "mono"
        self._stream = stream

    def codec_options(self) -> dict[str, str]:
        return {}

    def add_tags(self, tags: Mapping[str, str]) -> None:
        """Adds text fields to the head, if the container has a place for them. The head is not written yet."""
        self._container.metadata.update(tags)

    def _open(self) -> bytes:
        self._container.start_encoding()
        return self._written.take()

    def _encode(self, pcm: Samples) -> bytes:
        samples = to_int16(pcm) if self.sample_format == "s16" else _checked(pcm)
        first = self._samples - len(pcm)
        frame = audio_frame(samples[np.newaxis, :], self.sample_format, self._sample_rate, first)
        self._mux(self._stream.encode(frame))
        return self._written.take()

    def _close(self) -> bytes:
        self._mux(self._stream.encode(None))
        self._container.close()
        return self._written.take()

    def _mux(self, packets: "list[av.Packet[av.AudioStream]]") -> None:
        self._container.mux(packets)


class LossyEncoder(FfmpegEncoder):
    """Encoder with a bit rate, which is in bits per second."""

    def __init__(self, sample_rate: int, bit_rate: int | None = None) -> None:
        """`bit_rate` None means the format's usual one."""
        self._bit_rate = bit_rate or self.usual_bit_rate(sample_rate)
        super().__init__(sample_rate)

    @staticmethod
    @abstractmethod
    def usual_bit_rate(sample_rate: int) -> int: ...

    def codec_options(self) -> dict[str, str]:
        return {"b": str(self._bit_rate)}


class Mp3Encoder(LossyEncoder):
    """Encoder for an Info frame, and MPEG frames behind it. The Info frame tells the encoder's delay."""

    muxer, codec = "mp3", "libmp3lame"
    # The muxer would have to go back for its own Info frame.
    muxer_options: ClassVar[dict[str, str]] = {"write_xing": "0", "id3v2_version": "0"}

    def __init__(self, sample_rate: int, bit_rate: int | None = None) -> None:
        super().__init__(sample_rate, bit_rate)
        self._info = InfoFrame(sample_rate, self._bit_rate)
        self._frames = 0

    @staticmethod
    def usual_bit_rate(sample_rate: int) -> int:
        return 64_000 if sample_rate < 16000 else 128_000

    def codec_options(self) -> dict[str, str]:
        # Without a bit reservoir, a frame can leave as soon as it is full.
        return {**super().codec_options(), "compression_level": "7", "reservoir": "0"}

    def _open(self) -> bytes:
        return super()._open() + self._info.open()

    def _mux(self, packets: "list[av.Packet[av.AudioStream]]") -> None:
        self._frames += len(packets)
        super()._mux(packets)

    def complete(self, file_bytes: int) -> bytes:
        return self._info.complete(self._frames, file_bytes, self._samples)


class OpusEncoder(LossyEncoder):
    """Encoder for Ogg Opus, with one page per packet of 20 ms. The header tells the delay, the last page the end."""

    muxer, codec, sample_format = "ogg", "libopus", "flt"
    muxer_options: ClassVar[dict[str, str]] = {"page_duration": "20000"}

    @staticmethod
    def usual_bit_rate(sample_rate: int) -> int:
        return 64_000

    def codec_options(self) -> dict[str, str]:
        return {**super().codec_options(), "frame_duration": "20"}

    def number_stream(self, number: int) -> None:
        """Gives the stream this serial number, from 0 to 2**31 - 1, instead of a random one. Call it before `head`."""
        self._container.options.update({"fflags": "bitexact", "serial_offset": str(number)})


class AacEncoder(LossyEncoder):
    """Encoder for AAC-LC in ADTS frames, which have no place for the encoder's delay of one frame.

    A decoder adds the halves of neighbouring frames. The first frame is therefore silence, and the beginning of the
    speech faded in. It is left out where the sound is the same without it: where the speech begins in silence. The
    file then begins with the first sample of the speech.
    """

    muxer, codec = "adts", "aac"
    frame_samples: ClassVar[int] = 1024

    def __init__(self, sample_rate: int, bit_rate: int | None = None) -> None:
        super().__init__(sample_rate, bit_rate)
        self._beginning: list[Samples] = []
        """The samples until the first frame leaves."""
        self._begun = False

    @staticmethod
    def usual_bit_rate(sample_rate: int) -> int:
        return 48_000 if sample_rate < 16000 else 96_000

    def _encode(self, pcm: Samples) -> bytes:
        if not self._begun:
            self._beginning.append(pcm)
        return super()._encode(pcm)

    def _mux(self, packets: "list[av.Packet[av.AudioStream]]") -> None:
        if packets and not self._begun:
            self._begun = True
            # The encoder looks a frame ahead, so a file that is no longer than one frame has ended here. FFmpeg does
            # not open a file of a single frame.
            first = np.concatenate(self._beginning)[: self.frame_samples]
            if self._samples > self.frame_samples and lost_without_overlap(first) < AUDIBLE_LOSS:
                packets = packets[1:]
            else:
                self.delay_s = self.frame_samples / self._sample_rate
            self._beginning.clear()
        super()._mux(packets)


def lost_without_overlap(frame: Samples) -> float:
    """RMS of the difference that a first frame of AAC makes if the half of it that the frame before holds is missing.

    The transform's window fades the frame in, and a mirror image of its end comes on top.
    """
    window = np.sin(np.pi / 2 * (np.arange(len(frame)) + 0.5) / len(frame))
    faded, mirrored = frame * (1 - window**2), (frame * window)[::-1] * window
    return float(np.sqrt(np.mean(faded**2 + mirrored**2)))


class FlacEncoder(FfmpegEncoder):
    """Encoder for FLAC in short blocks. The usual 4096 samples would delay speech by 170 ms."""

    muxer, codec, sample_format = "flac", "flac", "s16"
    blocks_per_s: ClassVar[int] = 25

    def codec_options(self) -> dict[str, str]:
        return {"frame_size": str(self._sample_rate // self.blocks_per_s)}

    def complete(self, file_bytes: int) -> bytes:
        # STREAMINFO follows "fLaC" and a block header. The number of samples is its 36-bit field that ends at byte 18.
        # A streamed header has 0 there, which means unknown.
        head = super().complete(file_bytes)
        end = 4 + 4 + 18
        field = int.from_bytes(head[end - 5 : end]) | self._samples
        return head[: end - 5] + field.to_bytes(5) + head[end:]


class SharedEncoder:
    """One file for several utterances, whose end stays open.

    `flush` ends an utterance. It pushes out the samples that the encoder still holds, by short silence behind them.
    A thread of an utterance that was cut off may still be encoding when the next one begins, hence the lock.
    """

    def __init__(self, encoder: Encoder, held_samples: int) -> None:
        """`held_samples` is the largest number of samples that the encoder holds back."""
        self._encoder = encoder
        self.held_samples = held_samples
        self._lock = threading.Lock()

    @property
    def delay_s(self) -> float:
        return self._encoder.delay_s

    def head(self) -> bytes:
        with self._lock:
            return self._encoder.head()

    def feed(self, pcm: Samples) -> bytes:
        with self._lock:
            return self._encoder.feed(pcm)

    def flush(self) -> bytes:
        return self.feed(np.zeros(self.held_samples, np.float32)) if self.held_samples else b""

    def complete(self, file_bytes: int) -> bytes:
        return self._encoder.complete(file_bytes)
