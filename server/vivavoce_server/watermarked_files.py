"""Looks for the watermark in audio files of any format. `vivavoce verify` uses it."""

import av
import numpy as np

from vivavoce_server.effects import Samples
from vivavoce_server.marks import load_watermarker

SAMPLE_RATE = 16000
SEGMENT_S = 10.0
"""Seconds that are judged together."""
MAX_S = 120.0
"""Most seconds of a file that are judged."""


def find(path: str) -> tuple[str, float]:
    """The name of the watermark, and the confidence, from 0 to 1, that a file has it.

    The file's beginning is judged in segments, and the mean of their confidences counts.

    Raises:
        ValueError: there is no watermark to look for, or the file has no audio that can be decoded.
    """
    watermarker = load_watermarker()
    pcm = _decoded(path)
    segments = max(1, round(len(pcm) / (SEGMENT_S * SAMPLE_RATE)))
    judged = [watermarker.confidence(part, SAMPLE_RATE) for part in np.array_split(pcm, segments)]
    return watermarker.name, float(np.mean(judged))


def _decoded(path: str) -> Samples:
    """The beginning of a file as mono samples. A file that is cut or damaged is decoded as far as it goes."""
    left = wanted = round(MAX_S * SAMPLE_RATE)
    pieces: list[Samples] = [np.zeros(0, np.float32)]
    try:
        with av.open(path, "r") as container:
            resampler = av.AudioResampler(format="flt", layout="mono", rate=SAMPLE_RATE)
            for frame in container.decode(audio=0):
                for piece in resampler.resample(frame):
                    pieces.append(piece.to_ndarray()[0])
                    left -= piece.samples
                if left <= 0:
                    break
    except (av.FFmpegError, IndexError) as error:
        if len(pieces) == 1:
            raise ValueError(f"it has no audio that can be decoded: {error}") from error
    pcm: Samples = np.concatenate(pieces)[:wanted]
    if not len(pcm):
        raise ValueError("it has no audio that can be decoded")
    return pcm
