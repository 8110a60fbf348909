"""Embeds prompts for the CPU's kernels; the twin of models/prompts.py."""

import numpy as np
from numpy.typing import NDArray

from vivavoce_engine.cpu.packing import Embeddings, Networks
from vivavoce_engine.text.prompt import NO_ID, Prompt


def embed_prompt(prompt: Prompt, networks: Networks) -> NDArray[np.float32]:
    """Returns the embeddings of a prompt [prefill_tokens, hidden]: text plus codec side, as models/prompts.py does.

    Raises:
        IndexError: a table lacks one of the ids.
    """
    text, codes = (np.array(ids, np.int64) for ids in (prompt.text_ids, prompt.codec_ids))
    x = _or_zeros(networks.text, text) + _or_zeros(networks.codes, codes)
    given = prompt.conditioning
    if given is not None and given.embedding is not None:
        x[given.embedding_at] += given.embedding
    if given is not None and given.codes is not None:
        frames = given.codes.astype(np.int64)
        assert given.codes_at + len(frames) <= len(x), "what is added belongs to positions of the prompt"
        total = networks.codes.look_up(frames[:, 0])
        for group, table in enumerate(networks.later, start=1):
            total = total + table.look_up(frames[:, group])
        x[given.codes_at : given.codes_at + len(frames)] += total
    return np.ascontiguousarray(x, np.float32)


def _or_zeros(table: Embeddings, ids: NDArray[np.int64]) -> NDArray[np.float32]:
    """ids [n] → [n, width]; zeros for NO_ID."""
    found = table.look_up(np.where(ids == NO_ID, 0, ids))
    found[ids == NO_ID] = 0
    return found
