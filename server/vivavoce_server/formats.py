"""Audio formats: the name, the media type and the encoder of each."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from vivavoce_server.containers import (
    AacEncoder,
    Encoder,
    FfmpegEncoder,
    FlacEncoder,
    Mp3Encoder,
    OpusEncoder,
    PcmEncoder,
    WavEncoder,
)
from vivavoce_server.telephony import AlawEncoder, UlawEncoder

FormatName = Literal["mp3", "opus", "aac", "flac", "wav", "pcm"]


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
TELEPHONY = {
    "ulaw": AudioFormat("audio/basic", UlawEncoder, 8000),
    "alaw": AudioFormat("audio/x-alaw-basic", AlawEncoder, 8000),
}
"""Formats that have no name in OpenAI's requests."""


def format_of(name: str) -> AudioFormat:
    return TELEPHONY[name] if name in TELEPHONY else FORMATS[name]  # type: ignore[index]
