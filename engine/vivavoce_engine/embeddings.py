"""The check of a speaker embedding, whether it comes from a client, a stored voice or a mix."""

import numpy as np
from numpy.typing import NDArray

from vivavoce_engine.errors import Rejected

EMBEDDING_MAX = 1000
"""Speaker embeddings are small numbers. Larger values are not a voice and could overflow inside a model."""


def check_embedding(embedding: NDArray[np.float32] | NDArray[np.float64], size: int | None = None) -> None:
    """Raises Rejected unless this is a speaker embedding: [hidden] numbers of a voice's magnitude.

    `size` is `hidden` of the model that is to speak with it, 0 for a model that takes no embedding; None allows any.
    """
    if size is not None and embedding.shape != (size,):
        takes = f"takes {size} values" if size else "takes none"
        raise Rejected("reference", f"a speaker embedding of this model {takes}, not {embedding.size}")
    if not (np.abs(embedding) <= EMBEDDING_MAX).all():  # false for NaN too
        message = f"a speaker embedding's values lie between -{EMBEDDING_MAX} and {EMBEDDING_MAX}, all finite"
        raise Rejected("reference", message)
