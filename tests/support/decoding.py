"""Files of speech, as other programs read them, compared with the samples that they were made of."""

import io

import av
import av.logging
import numpy as np
import soundfile
from vivavoce_server.audio import AudioOptions, SpeechEncoder
from vivavoce_server.effects import Samples
from vivavoce_server.formats import FORMATS

MODEL_RATE, FRAME_SAMPLES = 24000, 1920
OPUS_RATE = 48000
"""The rate at which FFmpeg decodes Opus, whatever went in."""
READ_BY_SOUNDFILE = frozenset({"wav", "flac", "mp3", "opus"})
RATES = (8000, 16000, 24000, 48000)
"""Sample rates in Hz that a request may ask for."""
FILES = [(name, rate) for name, audio in FORMATS.items() for rate in (RATES if not audio.has_one_rate else (8000,))]
"""Every format at every one of its sample rates."""
RAW = {"pcm": "s16le", "g711_ulaw": "mulaw", "g711_alaw": "alaw"}
"""Formats without a header → FFmpeg's name."""


def noise(samples: int, silent: int = 0) -> Samples:
    """A sound in which every position differs from every other, behind as many silent samples."""
    random = np.random.default_rng(samples)
    sound = np.convolve(random.standard_normal(samples + 40), np.exp(-np.arange(41) / 6), "valid")
    swell = 0.6 + 0.4 * np.sin(2 * np.pi * 3 * np.arange(samples) / MODEL_RATE)
    sound = 0.05 * sound * swell
    sound[:silent] = 0
    return sound.astype(np.float32)


def streamed(options: AudioOptions, pcm: Samples, piece_samples: int = FRAME_SAMPLES) -> tuple[bytes, SpeechEncoder]:
    """The file of these samples as it is streamed, and its encoder."""
    encoder = SpeechEncoder(options, MODEL_RATE)
    pieces = [encoder.feed(pcm[at : at + piece_samples]) for at in range(0, len(pcm), piece_samples)]
    return b"".join(pieces) + encoder.flush(), encoder


def whole(options: AudioOptions, pcm: Samples) -> bytes:
    """The file of these samples whose length was known before its first byte was sent."""
    body, encoder = streamed(options, pcm)
    head = encoder.complete(len(body))
    return head + body[len(head) :]


def heard_by_ffmpeg(file: bytes, options: AudioOptions) -> tuple[Samples, int]:
    """The samples that FFmpeg decodes, and their rate. Any complaint is an error."""
    raw = RAW.get(options.format)
    rate = {"sample_rate": str(options.rate_for(MODEL_RATE))} if raw else {}
    with av.logging.Capture() as complaints, av.open(io.BytesIO(file), "r", format=raw, options=rate) as container:
        resampler = av.AudioResampler(format="flt", layout="mono")
        frames = [out for frame in container.decode(audio=0) for out in resampler.resample(frame)]
    assert [text for level, _, text in complaints if level <= av.logging.ERROR] == []
    return np.concatenate([frame.to_ndarray()[0] for frame in frames]), frames[0].sample_rate


def heard_by_soundfile(file: bytes) -> tuple[Samples, int]:
    """The samples that libsndfile decodes, and their rate."""
    samples, rate = soundfile.read(io.BytesIO(file), dtype="float32")
    return samples, rate


def lag(heard: Samples, made: Samples) -> int:
    """Samples by which a sound comes later than it was made: where their cross-correlation is highest."""
    size = len(heard) + len(made)
    correlation = np.fft.irfft(np.fft.rfft(heard, size) * np.conj(np.fft.rfft(made, size)), size)
    peak = int(np.argmax(correlation))
    return peak if peak < len(heard) else peak - size
