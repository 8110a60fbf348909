"""Teacher forcing by the CPU's kernels, on the thread that calls it and no other."""

import numpy as np
from numpy.typing import NDArray

from vivavoce_engine.cpu import library as c
from vivavoce_engine.cpu.decoding import Scratch
from vivavoce_engine.cpu.packing import Networks, address, aligned, sparse
from vivavoce_engine.cpu.prompts import embed_prompt
from vivavoce_engine.text.prompt import Prompt


class NativeForcing:
    """Computes concurrently with the engine's thread, with a cache and a scratch of its own for each call."""

    def __init__(self, library: c.Library, networks: Networks) -> None:
        self._library, self._networks = library, networks

    def log_probabilities(self, prompt: Prompt) -> NDArray[np.float32]:
        """Log probabilities of code 0 [frames + 1, vocabulary] float32; see text/transcript.py.

        Raises:
            Refused: the prompt has more positions than a row.
        """
        assert prompt.conditioning is not None
        functions, talker = self._library.functions, self._networks.talker
        x, stack = embed_prompt(prompt, self._networks), talker.stack
        keys, values = (sparse((stack.count, stack.positions, stack.kv_heads * stack.head_dim)) for _ in range(2))
        memory = Scratch(self._library)
        scratch = memory.take(functions.vivavoce_start_scratch(address(talker), len(x)))
        forced = (address(talker), None, address(keys), address(values), len(x), address(x), scratch)
        self._library.check(functions.vivavoce_force(*forced))
        hidden = np.ascontiguousarray(x[prompt.conditioning.codes_at - 1 :])
        logits = aligned((len(hidden), talker.head.outputs))
        product = (address(talker.head), None, address(hidden), stack.hidden, len(hidden), 1, 0, None, address(logits))
        self._library.check(functions.vivavoce_product(*product, talker.head.outputs))
        logits -= logits.max(axis=1, keepdims=True)
        logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
        found: NDArray[np.float32] = logits
        return found
