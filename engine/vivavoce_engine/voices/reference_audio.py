"""Decodes audio files into the mono 24 kHz samples that voices are cloned from. Torch-free.

Channels are averaged and the rate is converted as in qwen-tts (librosa 0.11: soxr's high quality). `reference_shape.py`
then sets level and ends, which qwen-tts leaves as they are.
Files are untrusted. Only containers of audio and video are opened, and none that can refer to other files. Decoding
stops soon after the maximum length, whatever length the header states.
"""

import io
import math
from collections.abc import Iterator

import av
import numpy as np
import soxr
from av.codec.codec import Codec, UnknownCodecError, codecs_available
from numpy.typing import NDArray

from vivavoce_engine.checkpoint.files import REFERENCE_SAMPLE_RATE
from vivavoce_engine.errors import Rejected
from vivavoce_engine.voices.reference_length import is_cut, stated_length_s
from vivavoce_engine.voices.reference_shape import NoSpeech, shaped

Samples = NDArray[np.float32]


def is_audio_decoder(name: str) -> bool:
    try:
        return Codec(name, "r").type == "audio"
    except UnknownCodecError:  # it only encodes
        return False


MAX_BYTES = 10 * 2**20
MIN_S, MAX_S = 1.0, 30.0
ENCODER_PADDING_S = 0.1
"""Tolerance for lossy codecs, which decode to slightly more audio than was encoded."""
SAMPLE_RATES_HZ = range(4000, 192_001)  # Hz
PEAK_MAX = 4.0
"""Largest sample of a plausible file. Float samples are on a scale of -1 to 1."""
MAX_DAMAGED_SHARE = 0.05
"""Share of packets that may fail to decode, such as tags at the end of an mp3."""
FORMATS = "aac,ac3,aiff,amr,ape,asf,au,avi,caf,flac,flv,loas,matroska,webm,mov,mp4,mp3,mpeg,mpegts,ogg,tta,w64,wav,wv"

MAX_STREAMS = 16
"""Maximum number of streams in a file. A video of a phone has up to 8."""
MAX_CHANNELS = 8
"""Maximum number of channels: those of 7.1 sound."""
AUDIO_CODECS = ",".join(name for name in sorted(codecs_available) if is_audio_decoder(name))
"""The decoders that FFmpeg may open while it examines a file. Pictures and films stay closed."""
OPEN_OPTIONS = {"format_whitelist": FORMATS, "codec_whitelist": AUDIO_CODECS, "max_streams": str(MAX_STREAMS)}


def read_reference(data: bytes) -> Samples:
    """An audio file's bytes → mono samples [n] float32 at 24 kHz, ready to be cloned (`shaped`).

    Raises:
        Rejected: the file is not audio, or is too short, too long, or silent. The message says which.
    """
    try:
        return shaped(read_samples(data))
    except NoSpeech as error:
        raise rejected_audio(str(error)) from error


def read_samples(data: bytes) -> Samples:
    """An audio file's bytes → its mono samples [n] float32 at 24 kHz, 1 to 30 s long. Raises as `read_reference`."""
    if len(data) > MAX_BYTES:
        raise rejected_audio(f"is larger than {MAX_BYTES // 2**20} MiB")
    samples, rate = decode(data)
    if len(samples) > (MAX_S + ENCODER_PADDING_S) * rate:
        raise rejected_audio(f"is longer than {MAX_S:g} s")
    if len(samples) < MIN_S * rate:
        raise rejected_audio(f"has {len(samples) / rate:.2f} s; at least {MIN_S:g} s are needed")
    return resample(samples, rate)


def rejected_audio(what: str) -> Rejected:
    """The error for a reference recording; `what` completes "the reference audio ..."."""
    return Rejected("reference", f"the reference audio {what}")


def decode(data: bytes, most_s: float = MAX_S) -> tuple[Samples, int]:
    """Mono samples at the file's own rate, and that rate in Hz. Decoding stops a little after `most_s`."""
    pieces: list[Samples] = []
    count = rate = 0
    try:
        with av.open(io.BytesIO(data), options=OPEN_OPTIONS, metadata_errors="ignore") as container:
            assert isinstance(container, av.container.InputContainer)
            for frame in decode_frames(container):
                with np.errstate(invalid="ignore", over="ignore"):  # infinite samples are rejected below
                    channels = frame.to_ndarray().reshape(-1, frame.layout.nb_channels).T
                    pieces.append(channels.mean(axis=0, dtype=np.float32))
                rate = rate or frame.sample_rate
                count += frame.samples
                if rate not in SAMPLE_RATES_HZ:
                    raise rejected_audio(f"has a sample rate of {rate} Hz")
                if count > (most_s + 1) * rate:
                    break
            else:
                check_whole(container, data, count / rate if rate else 0.0)
    except av.FFmpegError as error:
        raise rejected_audio("is no audio file that can be read") from error
    except ValueError as error:  # from AudioResampler
        raise rejected_audio("changes its format midway") from error
    if not count:
        raise rejected_audio("holds no sound")
    samples = np.concatenate(pieces)
    assert len(samples) == count
    if not np.abs(samples).max() <= PEAK_MAX:  # false for NaN too
        raise rejected_audio("holds values far outside -1..1")
    return samples, rate


def check_whole(container: av.container.InputContainer, data: bytes, heard_s: float) -> None:
    """Raises Rejected if the file ends before its header says."""
    stated_s = stated_length_s(container, data, heard_s)
    if heard_s and stated_s is not None and is_cut(stated_s, heard_s):
        raise rejected_audio(f"ends after {heard_s:.1f} s, but its header says {stated_s:.1f} s: it is not whole")


def decode_frames(container: av.container.InputContainer) -> Iterator[av.AudioFrame]:
    """Decodes the first audio stream into frames of float32, the channels of a sample side by side.

    PyAV reads beyond its memory if each of 8 channels or more has a plane of its own.
    """
    if not container.streams.audio or container.streams.audio[0].codec_context is None:
        raise rejected_audio("holds no audio that can be decoded")
    to_float = av.AudioResampler(format="flt")
    packets = damaged = 0
    for packet in container.demux(container.streams.audio[0]):
        packets += 1
        try:
            frames = packet.decode()
        except av.InvalidDataError:
            damaged += 1
            continue
        for frame in frames:
            if frame.layout.nb_channels > MAX_CHANNELS:
                raise rejected_audio(f"has {frame.layout.nb_channels} channels; the most is {MAX_CHANNELS}")
            yield from to_float.resample(frame)
    if damaged > 1 + MAX_DAMAGED_SHARE * packets:
        raise rejected_audio("is damaged")


def resample(samples: Samples, rate: int) -> Samples:
    """Converts samples [n] to 24 kHz. The result has as many samples as librosa gives, its rounding included."""
    assert samples.ndim == 1
    assert rate in SAMPLE_RATES_HZ
    if rate == REFERENCE_SAMPLE_RATE:
        return samples
    count = math.ceil(len(samples) * (REFERENCE_SAMPLE_RATE / rate))
    converted = soxr.resample(samples, rate, REFERENCE_SAMPLE_RATE, quality="HQ")[:count]
    return np.pad(converted, (0, count - len(converted)))
