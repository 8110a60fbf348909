"""Mixed voices: the notation `a(2)+b(1)`, and weighted means of speaker embeddings."""

import math
import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vivavoce_engine.embeddings import check_embedding
from vivavoce_engine.errors import Rejected

MAX_PARTS, MAX_CHARS = 16, 1024
MIN_WEIGHT, MAX_WEIGHT = 1e-6, 1e6
"""The range of a weight. Sums of larger ones could overflow."""
PART = re.compile(r"([^+()]+)(?:\(\s*([0-9]*\.?[0-9]+)\s*\))?", re.ASCII)


def parse_blend(voice: str) -> list[tuple[str, float]]:
    """`a(2)+b` → [("a", 2.0), ("b", 1.0)]: names and weights in their order. A missing weight is 1.

    Raises:
        Rejected: the voice is not in this notation.
    """
    if len(voice) > MAX_CHARS:
        raise Rejected("speaker", f"a voice of {len(voice)} characters; the most is {MAX_CHARS}")
    parts = voice.split("+")
    if len(parts) > MAX_PARTS:
        raise Rejected("speaker", f"a mix of {len(parts)} voices; the most is {MAX_PARTS}")
    blend = []
    for part in parts:
        match = PART.fullmatch(part.strip())
        name = "" if match is None else match[1].strip()
        if match is None or not name:
            raise Rejected("speaker", f"{voice!r} is no mix of voices; write it as a(2)+b(1)")
        blend.append((name, _checked_weight("speaker", float(match[2] or 1))))
    return blend


def _checked_weight(field: str, weight: float) -> float:
    """Raises Rejected, which names the field, for a weight out of range."""
    if not MIN_WEIGHT <= weight <= MAX_WEIGHT:  # true for NaN too
        raise Rejected(field, f"a weight of a mix is from {MIN_WEIGHT:f} to {MAX_WEIGHT:.0f}")
    return weight


def blend_embeddings(embeddings: Sequence[ArrayLike], weights: Sequence[float]) -> NDArray[np.float32]:
    """The weighted mean of speaker embeddings, [hidden] float32. Weights need not sum to 1.

    Raises:
        Rejected: weights that are not positive, or embeddings that are none or not of one size.
    """
    if not embeddings or len(embeddings) != len(weights):
        raise Rejected("reference", "a mix takes one weight for each of its embeddings")
    for weight in weights:
        _checked_weight("reference", weight)
    arrays = [embedding_of(values) for values in embeddings]
    if len({array.size for array in arrays}) > 1:
        raise Rejected("reference", "the embeddings of a mix are of one size")
    total = math.fsum(weights)
    shares = np.array([weight / total for weight in weights])
    mean: NDArray[np.float64] = shares @ np.stack(arrays).astype(np.float64)
    assert mean.shape == arrays[0].shape
    return mean.astype(np.float32)


def embedding_of(values: ArrayLike) -> NDArray[np.float32]:
    """A speaker embedding from a client's numbers, [hidden] float32, of any model.

    Raises:
        Rejected: not a list of numbers, or no voice's (`check_embedding`).
    """
    try:
        wide = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise Rejected("reference", "a speaker embedding is a list of numbers") from error
    if wide.ndim != 1 or not wide.size:
        raise Rejected("reference", "a speaker embedding is a list of numbers")
    check_embedding(wide)
    return wide.astype(np.float32)
