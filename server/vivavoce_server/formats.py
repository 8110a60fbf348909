"""Audio formats: the name, the media type and the encoder of each."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from vivavoce_server.containers import (
    AacEncoder,
    Encoder,
    FlacEncoder,
    LossyEncoder,
    Mp3Encoder,
    OpusEncoder,
    PcmEncoder,
    WavEncoder,
)
from vivavoce_server.telephony import G711_RATE, AlawEncoder, UlawEncoder

FormatName = Literal["mp3", "opus", "aac", "flac", "wav", "pcm", "g711_ulaw", "g711_alaw"]


@dataclass(frozen=True, slots=True)
class AudioFormat:
    """A format of files. `sample_rate` (Hz) None keeps the model's rate.

    Frames of mp3 and AAC have a fixed number of samples, so what their encoders add at the beginning and the end is
    shortest at 48 kHz. Some players drop none of it.
    """

    media_type: str
    encoder: Callable[[int], Encoder]
    sample_rate: int | None = None
    has_one_rate: bool = False
    """True if the format has no other sample rate."""


FORMATS: dict[FormatName, AudioFormat] = {
    "mp3": AudioFormat("audio/mpeg", Mp3Encoder, 48000),
    "opus": AudioFormat("audio/ogg", OpusEncoder),
    "aac": AudioFormat("audio/aac", AacEncoder, 48000),
    "flac": AudioFormat("audio/flac", FlacEncoder),
    "wav": AudioFormat("audio/wav", WavEncoder),
    "pcm": AudioFormat("audio/pcm", PcmEncoder),
    "g711_ulaw": AudioFormat("audio/PCMU;rate=8000", UlawEncoder, G711_RATE, has_one_rate=True),
    "g711_alaw": AudioFormat("audio/PCMA;rate=8000", AlawEncoder, G711_RATE, has_one_rate=True),
}
"""Media types of G.711 are RFC 4856's, whose parameter `rate` is required."""
LOSSY: dict[FormatName, type[LossyEncoder]] = {"mp3": Mp3Encoder, "opus": OpusEncoder, "aac": AacEncoder}
"""Formats whose bit rate can be chosen."""
