"""Samples of audio files, and how two sounds differ. The formats with codecs need PyAV or FFmpeg's program."""

import asyncio
import io
import math
import operator
import struct
import sys
from array import array
from dataclasses import dataclass
from fractions import Fraction
from importlib.util import find_spec
from shutil import which
from typing import TypeAlias

SAMPLE_RATE = 24_000
"""Rate of OpenAI's pcm, to which everything is decoded."""
Samples: TypeAlias = "array[int]"  # Python 3.11 cannot subscript it
"""Mono samples, int16, at SAMPLE_RATE."""
THINNED_RATE = 2_000
MAX_LAG_S = 0.3
PROGRAM_TIMEOUT_S = 30.0


class Undecodable(Exception):
    """The bytes are no audio of the format."""


class NoDecoder(Exception):
    """Nothing on this machine decodes the format."""


@dataclass(frozen=True, slots=True)
class Wave:
    """A WAV file of 16-bit PCM. The sizes are those of its header, in bytes; `data` is what came behind it."""

    channels: int
    sample_rate: int
    riff_bytes: int
    data_bytes: int
    data_offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Likeness:
    """Correlation of two sounds at their best shift, and that shift in seconds, positive if the first comes later."""

    correlation: float
    lag_s: float


def samples_of(pcm: bytes) -> Samples:
    """Samples of s16le; an odd last byte is dropped."""
    samples = array("h", pcm[: len(pcm) // 2 * 2])
    if sys.byteorder == "big":
        samples.byteswap()
    return samples


def parse_wave(body: bytes) -> Wave:
    """Reads a WAV's header. Raises Undecodable."""
    if len(body) < 12 or body[:4] != b"RIFF" or body[8:12] != b"WAVE":
        raise Undecodable(f"it begins with {body[:12]!r} instead of RIFF….WAVE")
    riff_bytes = struct.unpack_from("<I", body, 4)[0]
    offset, form = 12, None
    while offset + 8 <= len(body):
        name, size = struct.unpack_from("<4sI", body, offset)
        offset += 8
        if name == b"data":
            if form is None:
                raise Undecodable("the data come before the chunk fmt")
            kind, channels, rate, _, _, bits = form
            if kind not in (1, 0xFFFE) or bits != 16 or channels not in (1, 2) or not rate:
                raise Undecodable(f"format {kind}, {channels} channels, {bits} bits, {rate} Hz instead of 16-bit PCM")
            return Wave(channels, rate, riff_bytes, size, offset, body[offset:])
        if name == b"fmt " and offset + 16 <= len(body):
            form = struct.unpack_from("<HHIIHH", body, offset)
        offset += size + size % 2
    raise Undecodable("it has no chunk data")


def decode_wave(body: bytes) -> Samples:
    """Samples of a WAV, whatever lengths its header states. Raises Undecodable."""
    wave = parse_wave(body)
    held = wave.data[: wave.data_bytes] if 0 < wave.data_bytes <= len(wave.data) else wave.data
    return resample(samples_of(held)[:: wave.channels], wave.sample_rate)


def resample(samples: Samples, rate: int) -> Samples:
    """The samples at SAMPLE_RATE, by the nearest one, which is enough for lengths and likeness."""
    if rate == SAMPLE_RATE:
        return samples
    step = rate / SAMPLE_RATE
    count = int(len(samples) / step)
    return array("h", (samples[int(index * step)] for index in range(count)))


async def decode(body: bytes, name: str) -> Samples:
    """Samples of a file of one of OpenAI's formats. Raises Undecodable, NoDecoder."""
    if name == "pcm":
        return samples_of(body)
    if name == "wav":
        return decode_wave(body)
    if has_av():
        return await asyncio.to_thread(decode_by_av, body)
    program = ffmpeg()
    if program is None:
        raise NoDecoder(f"{name} is decoded by PyAV (pip install av) or by ffmpeg, and neither is installed")
    return await _decode_by_program(program, body)


def has_av() -> bool:
    """True if PyAV is installed."""
    return find_spec("av") is not None


def ffmpeg() -> str | None:
    """The path of FFmpeg's program."""
    return which("ffmpeg")


def decode_by_av(body: bytes) -> Samples:
    """Samples of any file that FFmpeg reads. Raises Undecodable."""
    import av  # not part of a bare install

    pcm = bytearray()
    resampler = av.AudioResampler(format="s16", layout="mono", rate=SAMPLE_RATE)

    def keep(frame: "av.AudioFrame | None") -> None:
        for made in resampler.resample(frame):
            pcm.extend(bytes(made.planes[0])[: made.samples * 2])

    try:
        with av.open(io.BytesIO(body), mode="r") as container:
            for frame in container.decode(audio=0):
                keep(frame)
        keep(None)
    except (av.FFmpegError, ValueError, IndexError) as error:
        raise Undecodable(f"FFmpeg cannot decode it: {error}") from error
    return samples_of(bytes(pcm))


async def _decode_by_program(program: str, body: bytes) -> Samples:
    arguments = ["-v", "error", "-i", "pipe:0", "-f", "s16le", "-ac", "1", "-ar"]
    process = await asyncio.create_subprocess_exec(
        program,
        *arguments,
        str(SAMPLE_RATE),
        "pipe:1",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(PROGRAM_TIMEOUT_S):
            pcm, complaint = await process.communicate(body)
    finally:
        if process.returncode is None:
            process.kill()
    if process.returncode:
        raise Undecodable(f"ffmpeg cannot decode it: {complaint.decode('utf-8', 'replace')[:160]}")
    return samples_of(pcm)


def seconds(samples: Samples) -> float:
    return len(samples) / SAMPLE_RATE


def level_db(samples: Samples) -> float:
    """RMS in dBFS; -120 for silence."""
    if not samples:
        return -120.0
    mean = sum(map(operator.mul, samples, samples)) / len(samples)
    return max(-120.0, 10 * math.log10(mean / 2**30)) if mean else -120.0


def likeness(sound: Samples, reference: Samples) -> Likeness:
    """Compares waveforms, thinned to THINNED_RATE, at all shifts up to MAX_LAG_S. Of equals the smallest counts."""
    if sound == reference:
        return Likeness(1.0 if any(sound) else 0.0, 0.0)
    one, two = _thinned(sound), _thinned(reference)
    energy = math.sqrt(sum(map(operator.mul, one, one)) * sum(map(operator.mul, two, two)))
    if not energy:
        return Likeness(0.0, 0.0)
    best = Likeness(0.0, 0.0)
    span = int(MAX_LAG_S * THINNED_RATE)
    for lag in sorted(range(-span, span + 1), key=abs):
        shifted, still = (one[lag:], two) if lag > 0 else (one, two[-lag:])
        correlation = sum(map(operator.mul, shifted, still)) / energy
        if correlation > best.correlation + 0.005:
            best = Likeness(correlation, lag / THINNED_RATE)
    return best


def _thinned(samples: Samples) -> list[int]:
    """Means of groups of samples: a crude low-pass, enough to compare the same speech with itself."""
    step = int(Fraction(SAMPLE_RATE, THINNED_RATE))
    return [sum(samples[start : start + step]) // step for start in range(0, len(samples) - step + 1, step)]
