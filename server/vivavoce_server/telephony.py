"""G.711, the two encodings of telephony: a byte for each sample."""

import numpy as np
from numpy.typing import NDArray

from vivavoce_server.containers import PcmEncoder, to_int16
from vivavoce_server.effects import Samples

G711_RATE = 8000
"""Sample rate in Hz."""
ULAW_BIAS, ULAW_CLIP = 0x84, 32635
ALAW_TOGGLES = 0x55
"""A-law inverts every other bit, so that silence has edges for a line's clock."""


def to_ulaw(samples: NDArray[np.int16]) -> bytes:
    """Converts 16-bit samples to G.711 μ-law."""
    wide = samples.astype(np.int32)
    magnitude = np.minimum(np.abs(wide), ULAW_CLIP) + ULAW_BIAS
    exponent = np.floor(np.log2(magnitude)).astype(np.int32) - 7
    mantissa = (magnitude >> (exponent + 3)) & 0x0F
    sign = np.where(wide < 0, 0x80, 0)
    coded: bytes = (~(sign | (exponent << 4) | mantissa) & 0xFF).astype(np.uint8).tobytes()
    return coded


def to_alaw(samples: NDArray[np.int16]) -> bytes:
    """Converts 16-bit samples to G.711 A-law."""
    wide = samples.astype(np.int32)
    magnitude = np.where(wide < 0, ~wide, wide) >> 3
    exponent = np.maximum(np.floor(np.log2(magnitude | 1)).astype(np.int32) - 4, 0)
    mantissa = (magnitude >> np.maximum(exponent, 1)) & 0x0F
    sign = np.where(wide < 0, 0, 0x80)
    coded: bytes = ((sign | (exponent << 4) | mantissa) ^ ALAW_TOGGLES).astype(np.uint8).tobytes()
    return coded


class UlawEncoder(PcmEncoder):
    """Encoder for raw μ-law."""

    def _encode(self, pcm: Samples) -> bytes:
        return to_ulaw(to_int16(pcm))


class AlawEncoder(PcmEncoder):
    """Encoder for raw A-law."""

    def _encode(self, pcm: Samples) -> bytes:
        return to_alaw(to_int16(pcm))
