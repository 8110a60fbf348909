"""The Info frame at the beginning of an mp3: the encoder's delay, the padding at the end, and the length.

Decoders play no sound for it. They leave out the delay that it states, and with a length the padding too. The layout is
that of Xing's header with LAME's extension.
"""

import struct
from dataclasses import dataclass
from functools import cached_property

ENCODER_DELAY_SAMPLES = 576
"""Samples that libmp3lame puts before the first one. Decoders know of the 529 that they put there themselves."""
SAMPLE_RATES = ((44100, 48000, 32000), (22050, 24000, 16000), (11025, 12000, 8000))
"""Sample rates in Hz of MPEG-1, MPEG-2 and MPEG-2.5, in the order of their numbers in a frame's header."""
FIRST_BYTES = (0xFB, 0xF3, 0xE3)
"""The second byte of a frame's header: the version, layer III, no CRC."""
MPEG1_KBITS = (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)
MPEG2_KBITS = (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)
MONO_ORIGINAL = 0xC4
FRAMES, BYTES, TOC, QUALITY = 1, 2, 4, 8
"""Flags of the fields that follow them."""
UNKNOWN_BYTES = 0xFFFFFFFF
ENCODER = b"LAME3.100"
CONSTANT_BIT_RATE = 1
MOST_PADDING_SAMPLES = 0xFFF
CONTENT_BYTES = 4 + 4 + 4 + 4 + 100 + 4 + 36
"""The name, the flags, the four fields, and LAME's extension."""


@dataclass(frozen=True)
class InfoFrame:
    """The Info frame of a mono mp3 with a constant bit rate."""

    sample_rate: int
    bit_rate: int

    @cached_property
    def _version(self) -> int:
        return next(index for index, rates in enumerate(SAMPLE_RATES) if self.sample_rate in rates)

    @property
    def frame_samples(self) -> int:
        """Samples of each of the file's frames."""
        return 576 if self._version else 1152

    @property
    def _side_info_bytes(self) -> int:
        return 9 if self._version else 17

    def _header(self) -> tuple[bytes, int]:
        """The header, and the size of the frame in bytes: at the file's bit rate, or at the next one with room."""
        kbits = MPEG2_KBITS if self._version else MPEG1_KBITS
        needed = 4 + self._side_info_bytes + CONTENT_BYTES
        for index, rate in enumerate(kbits, start=1):
            size = self.frame_samples // 8 * rate * 1000 // self.sample_rate
            if rate * 1000 >= self.bit_rate and size >= needed:
                third = index << 4 | SAMPLE_RATES[self._version].index(self.sample_rate) << 2
                return bytes((0xFF, FIRST_BYTES[self._version], third, MONO_ORIGINAL)), size
        raise ValueError(f"mp3 has no bit rate of {self.bit_rate} bits/s at {self.sample_rate} Hz")

    def open(self) -> bytes:
        """The frame of a file whose length is not known yet."""
        # A reader such as FFmpeg passes the frame over only if it states something. The size of a file that is too
        # large to tell is the least that it may say.
        return self._frame(struct.pack(">II", BYTES, UNKNOWN_BYTES), 0)

    def complete(self, frames: int, file_bytes: int, samples: int) -> bytes:
        """The frame of a whole file of `samples` samples in `frames` frames, this one not counted."""
        padding = frames * self.frame_samples - ENCODER_DELAY_SAMPLES - samples
        toc = bytes(256 * percent // 100 for percent in range(100))
        size = min(file_bytes, UNKNOWN_BYTES)
        fields = struct.pack(">III100sI", FRAMES | BYTES | TOC | QUALITY, frames, size, toc, 0)
        return self._frame(fields, min(max(0, padding), MOST_PADDING_SAMPLES))

    def _frame(self, fields: bytes, padding_samples: int) -> bytes:
        header, size = self._header()
        extension = struct.pack(
            ">9sBB4x2x2xBB3sBBH4s2x",
            *(ENCODER, CONSTANT_BIT_RATE, 0, 0, min(255, self.bit_rate // 1000)),
            (ENCODER_DELAY_SAMPLES << 12 | padding_samples).to_bytes(3),
            *(0, 0, 0, bytes(4)),
        )
        told = header + bytes(self._side_info_bytes) + b"Info" + fields + extension
        return (told + crc16(told).to_bytes(2)).ljust(size, b"\0")


def crc16(content: bytes) -> int:
    """CRC-16 with the polynomial 0x8005, bits reversed, as LAME's extension has it."""
    crc = 0
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0xA001 if crc & 1 else 0)
    return crc
