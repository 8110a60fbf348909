"""Audio files made on the spot, as uploads would be."""

import io
import wave

import av
import numpy as np
from numpy.typing import NDArray

from tests.support.reference_audio import ReferenceName, reference_audio

Samples = NDArray[np.float32]


def wav(samples: NDArray[np.floating], rate: int = 24000) -> bytes:
    """A 16-bit WAV file of samples [n] or [channels, n] in -1..1."""
    channels = np.atleast_2d(samples)
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(len(channels))
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(np.round(channels.T * 32768).clip(-32768, 32767).astype("<i2").tobytes())
    return buffer.getvalue()


def reference_wav(name: ReferenceName) -> bytes:
    """The recording that the stored reference outputs were made from; its samples are whole 16-bit steps."""
    return wav(*reference_audio(name))


def voice_like(seed: int, seconds: float, rate: int = 24000) -> Samples:
    """Harmonics with a tremolo and noise, another for each seed."""
    random = np.random.default_rng(seed)
    time = np.arange(round(seconds * rate)) / rate
    pitch_hz, tremolo_hz = random.uniform(90, 250), random.uniform(2, 6)
    tones = sum(np.sin(2 * np.pi * pitch_hz * k * time + k) / k for k in range(1, 6))
    swell = 1 + 0.5 * np.sin(2 * np.pi * tremolo_hz * time)
    return (0.15 * tones * swell + random.normal(0, 0.01, len(time))).astype(np.float32)


def encode(samples: NDArray[np.floating], container: str, codec: str, rate: int = 24000) -> bytes:
    """Samples [n] in any format that PyAV writes."""
    buffer = io.BytesIO()
    frame = av.AudioFrame.from_ndarray(np.atleast_2d(samples).astype(np.float32), format="fltp", layout="mono")
    frame.sample_rate = rate
    with av.open(buffer, "w", format=container) as file:
        stream = file.add_stream(codec, rate=rate, layout="mono")
        assert isinstance(stream, av.AudioStream)
        context = stream.codec_context
        resampler = av.AudioResampler(context.format, "mono", rate, context.frame_size or None)
        for piece in [*resampler.resample(frame), *resampler.resample(None)]:
            file.mux(stream.encode(piece))
        file.mux(stream.encode(None))
    return buffer.getvalue()
