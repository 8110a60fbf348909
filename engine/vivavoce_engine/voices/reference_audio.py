"""Any audio file → the mono 24 kHz samples that voices are cloned from. Torch-free.

Channels are averaged and the rate converted as the reference does it (librosa 0.11: soxr's high quality). The level
stays as it is. Files are untrusted: only containers of audio and video are opened, none that refers to other files,
and decoding stops soon after the longest length that is taken, whatever a header promises.
"""

import io
import math
from collections.abc import Iterator

import av
import numpy as np
import soxr
from numpy.typing import NDArray

from vivavoce_engine.checkpoint.files import REFERENCE_SAMPLE_RATE
from vivavoce_engine.errors import Rejected

Samples = NDArray[np.float32]

MAX_BYTES = 10 * 2**20
MIN_S, MAX_S = 1.0, 30.0
ENCODER_PADDING_S = 0.1
"""Lossy codecs decode to a little more than what was encoded."""
RATES = range(4000, 192_001)  # Hz
PEAK_MAX = 4.0
"""A file of floats beyond this is not scaled to -1..1."""
DAMAGE_MAX = 0.05
"""Share of packets that may be undecodable, such as tags at the end of an mp3."""
BLOCK = REFERENCE_SAMPLE_RATE // 50
SILENCE = 1e-3
"""Deviation within a block, -60 dB: a file that never exceeds it is silent."""
TRIM_BELOW = 10 ** (-50 / 20)
"""What is this much quieter than the loudest block is trimmed at both ends,"""
TRIM_KEEPS = REFERENCE_SAMPLE_RATE // 5
"""but for this many samples."""
FORMATS = "aac,ac3,aiff,amr,ape,asf,au,avi,caf,flac,flv,loas,matroska,webm,mov,mp4,mp3,mpeg,mpegts,ogg,tta,w64,wav,wv"


def read_reference(data: bytes) -> Samples:
    """An audio file's bytes → mono samples [n] float32 at 24 kHz, silence at both ends trimmed, 1 to 30 s long.

    Raises:
        Rejected: not audio, too short, too long, or silent; says which.
    """
    if len(data) > MAX_BYTES:
        raise refusal(f"is larger than {MAX_BYTES // 2**20} MiB")
    samples, rate = decode(data)
    if len(samples) > (MAX_S + ENCODER_PADDING_S) * rate:
        raise refusal(f"is longer than {MAX_S:g} s")
    if len(samples) < MIN_S * rate:
        raise refusal(f"has {len(samples) / rate:.2f} s; at least {MIN_S:g} s are needed")
    return trim(resample(samples, rate))


def refusal(what: str) -> Rejected:
    return Rejected("reference", f"the reference audio {what}")


def decode(data: bytes) -> tuple[Samples, int]:
    """Mono samples at the file's own rate, and that rate in Hz; of a long file a little more than MAX_S."""
    pieces: list[Samples] = []
    count = rate = 0
    try:
        with av.open(io.BytesIO(data), options={"format_whitelist": FORMATS}, metadata_errors="ignore") as container:
            assert isinstance(container, av.container.InputContainer)
            for frame in decoded(container):
                with np.errstate(invalid="ignore", over="ignore"):  # of infinite samples, which are refused below
                    pieces.append(frame.to_ndarray().mean(axis=0, dtype=np.float32))
                rate = rate or frame.sample_rate
                count += frame.samples
                if rate not in RATES:
                    raise refusal(f"has a sample rate of {rate} Hz")
                if count > (MAX_S + 1) * rate:
                    break
    except av.FFmpegError as error:
        raise refusal("is no audio file that can be read") from error
    except ValueError as error:  # of AudioResampler
        raise refusal("changes its format midway") from error
    if not count:
        raise refusal("holds no sound")
    samples = np.concatenate(pieces)
    if not np.abs(samples).max() <= PEAK_MAX:  # false for NaN too
        raise refusal("holds values far outside -1..1")
    return samples, rate


def decoded(container: av.container.InputContainer) -> Iterator[av.AudioFrame]:
    """Frames of the first audio stream as float32 [channels, samples]."""
    if not container.streams.audio or container.streams.audio[0].codec_context is None:
        raise refusal("holds no audio that can be decoded")
    to_float = av.AudioResampler(format="fltp")
    packets = damaged = 0
    for packet in container.demux(container.streams.audio[0]):
        packets += 1
        try:
            frames = packet.decode()
        except av.InvalidDataError:
            damaged += 1
            continue
        for frame in frames:
            yield from to_float.resample(frame)
    if damaged > 1 + DAMAGE_MAX * packets:
        raise refusal("is damaged")


def resample(samples: Samples, rate: int) -> Samples:
    """To 24 kHz, in as many samples as librosa gives (its rounding included)."""
    if rate == REFERENCE_SAMPLE_RATE:
        return samples
    count = math.ceil(len(samples) * (REFERENCE_SAMPLE_RATE / rate))
    converted = soxr.resample(samples, rate, REFERENCE_SAMPLE_RATE, quality="HQ")[:count]
    return np.pad(converted, (0, count - len(converted)))


def trim(samples: Samples) -> Samples:
    """Without the silence at both ends, but for a breath."""
    blocks = samples[: len(samples) // BLOCK * BLOCK].reshape(-1, BLOCK).std(axis=1)
    if blocks.max() < SILENCE:
        raise refusal("is silent")
    loud = np.flatnonzero(blocks >= TRIM_BELOW * blocks.max())
    start = max(0, loud[0] * BLOCK - TRIM_KEEPS)
    trimmed = samples[start : (loud[-1] + 1) * BLOCK + TRIM_KEEPS]
    if len(trimmed) < MIN_S * REFERENCE_SAMPLE_RATE:
        heard_s = len(trimmed) / REFERENCE_SAMPLE_RATE
        raise refusal(f"has {heard_s:.2f} s that are not silent; at least {MIN_S:g} s are needed")
    return np.ascontiguousarray(trimmed)
