"""Decodes the sounds and pictures of a conversation. They are untrusted: the decoder process alone calls this.

A sound keeps its level and its silence. A picture keeps its size, which the thinker's own processor changes.
"""

import io

import numpy as np
import soxr
from numpy.typing import NDArray

from vivavoce_engine.errors import Rejected
from vivavoce_engine.voices.reference_audio import ENCODER_PADDING_S, MAX_BYTES, Samples, decode

SOUND_RATE = 16000
"""Sample rate, in Hz, of the sounds that a thinker hears."""
MAX_SOUND_S = 120.0
MIN_SOUND_S = 0.1
PICTURE_FORMATS = ("GIF", "JPEG", "PNG", "WEBP")
MAX_PIXELS = 2**24
"""Most pixels of a picture, 16 million."""
MAX_RATIO = 100
"""Largest ratio of a picture's sides."""
WHITE = (255, 255, 255, 255)


def read_sound(data: bytes) -> Samples:
    """An audio file's bytes → mono samples [n] float32 at 16 kHz.

    Raises:
        Rejected: the file is not audio, or too short or too long. The message says which.
    """
    if len(data) > MAX_BYTES:
        raise Rejected("sound", f"the sound is larger than {MAX_BYTES // 2**20} MiB")
    try:
        samples, rate = decode(data, MAX_SOUND_S)
    except Rejected as error:
        raise Rejected("sound", str(error).replace("the reference audio", "the sound", 1)) from error
    if len(samples) > (MAX_SOUND_S + ENCODER_PADDING_S) * rate:
        raise Rejected("sound", f"the sound is longer than {MAX_SOUND_S:g} s")
    if len(samples) < MIN_SOUND_S * rate:
        raise Rejected("sound", f"the sound has {len(samples) / rate:.2f} s; at least {MIN_SOUND_S:g} s are needed")
    if rate == SOUND_RATE:
        return samples
    resampled: Samples = soxr.resample(samples, rate, SOUND_RATE, quality="HQ")
    return resampled


def read_picture(data: bytes) -> NDArray[np.uint8]:
    """A picture's bytes → pixels [height, width, 3] uint8, red, green and blue, on white where it is transparent.

    Raises:
        Rejected: the file is no picture, or has too many pixels. The message says which.
    """
    from PIL import Image, ImageOps  # takes a tenth of a second, which a process that only hears saves

    if len(data) > MAX_BYTES:
        raise Rejected("picture", f"the picture is larger than {MAX_BYTES // 2**20} MiB")
    try:
        with Image.open(io.BytesIO(data), formats=PICTURE_FORMATS) as picture:
            width, height = picture.size
            if width * height > MAX_PIXELS:
                raise Rejected("picture", f"the picture has {width} x {height} pixels; the most is {MAX_PIXELS}")
            if max(width, height) > MAX_RATIO * min(width, height):
                raise Rejected("picture", f"the picture's sides, {width} and {height}, differ too much")
            upright = ImageOps.exif_transpose(picture).convert("RGBA")
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        formats = ", ".join(PICTURE_FORMATS)
        raise Rejected("picture", f"the picture cannot be read: it must be a whole file of {formats}") from error
    upright = Image.alpha_composite(Image.new("RGBA", upright.size, WHITE), upright)
    return np.asarray(upright.convert("RGB"), np.uint8)
