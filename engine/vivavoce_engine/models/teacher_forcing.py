"""Teacher forcing by the PyTorch modules of a loaded model, whose weights it shares."""

from contextlib import nullcontext

import numpy as np
import torch
from numpy.typing import NDArray

from vivavoce_engine.checkpoint.networks import TalkerConfig
from vivavoce_engine.device import use_device
from vivavoce_engine.models.code_predictor import CodePredictor
from vivavoce_engine.models.layers import KVCache, RowView
from vivavoce_engine.models.prompts import embed_prompt
from vivavoce_engine.models.talker import Talker
from vivavoce_engine.text.prompt import Prompt


class TeacherForcing:
    """Computes concurrently with the engine's thread, on a CUDA stream of its own or on the CPU."""

    def __init__(self, config: TalkerConfig, talker: Talker, predictor: CodePredictor) -> None:
        self._config, self._talker, self._predictor = config, talker, predictor
        self._like = talker.codec_head.weight
        self._stream: torch.cuda.Stream | None = None
        if self._like.device.type == "cuda":
            self._stream = torch.cuda.Stream(self._like.device)  # type: ignore[no-untyped-call]
            self._stream.wait_stream(torch.cuda.current_stream(self._like.device))  # the weights were loaded on it

    def log_probabilities(self, prompt: Prompt) -> NDArray[np.float32]:
        """Log probabilities of code 0 [frames + 1, vocabulary] float32; see text/transcript.py."""
        assert prompt.conditioning is not None
        use_device(self._like.device)
        with torch.inference_mode(), nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
            x = embed_prompt(prompt, self._talker, self._predictor)
            cache = KVCache(self._config.transformer, 1, x.shape[1], self._like)
            hidden = self._talker(x, RowView(cache, [0], [0], x.shape[1]))[0]
            found = self._talker.logits(hidden[prompt.conditioning.codes_at - 1 :]).log_softmax(-1)
            return found.cpu().numpy()
