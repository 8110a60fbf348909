"""Attention of the talker to its text: what each head looks at in speech that was made, by the PyTorch modules."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from vivavoce_engine import SynthesisRequest
from vivavoce_engine.checkpoint.files import Checkpoint
from vivavoce_engine.models.code_predictor import CodePredictor
from vivavoce_engine.models.layers import KVCache, RowView
from vivavoce_engine.models.prompts import embed_prompt
from vivavoce_engine.models.talker import Talker
from vivavoce_engine.text.prompt import Prompt

from vivavoce_eval.waves import Samples

Codes = NDArray[np.int64]
"""Codes [frames, code groups]."""
Scores = NDArray[np.float32]
"""Raw attention scores (q.k / sqrt(head_dim), before the softmax), [heads, frames, text tokens + 1]. The last column is
the end of the text. A position that is not there yet has -inf."""


@dataclass(frozen=True, slots=True, eq=False)
class Utterance:
    """Speech, and the request that it answers."""

    request: SynthesisRequest
    codes: Codes
    pcm: Samples


class RecordingView(RowView):
    """The view of one utterance in one pass. It keeps the scores of the text's columns, one item for each layer.

    `queries` are the positions that a code 0 is drawn from. Only the columns are kept, so memory does not grow with the
    square of the length.
    """

    def __init__(self, cache: KVCache, length: int, queries: range, columns: range) -> None:
        super().__init__(cache, [0], [0], length)
        self._length, self._queries, self._columns, self._group = length, queries, columns, cache.group
        self.scores: list[Scores] = []

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        there = range(self._columns.start, min(self._columns.stop, self._length))
        asked = q[0, self._queries.start : self._queries.stop].float()
        keys = k[0, there.start : there.stop].float().repeat_interleave(self._group, 1)
        scores = torch.einsum("fhd,chd->hfc", asked, keys) * q.shape[-1] ** -0.5
        positions, asking = (torch.tensor(list(each), device=q.device) for each in (there, self._queries))
        scores = scores.masked_fill(positions > asking[:, None], -torch.inf)
        absent = len(self._columns) - len(there)
        self.scores.append(np.pad(scores.cpu().numpy(), ((0, 0), (0, 0), (0, absent)), constant_values=-np.inf))
        return super().attend(layer, q, k, v)


@torch.inference_mode()
def record(checkpoint: Checkpoint, models: Mapping[str, nn.Module], prompt: Prompt, codes: Codes) -> Scores:
    """Feeds the talker what it said, in one pass → the scores of all heads, those of a layer in a row.

    The query of a frame is the position from whose hidden state its code 0 was drawn.
    """
    talker, predictor = models["talker"], models["code predictor"]
    assert isinstance(talker, Talker)
    assert isinstance(predictor, CodePredictor)
    frames, like = len(codes), talker.codec_head.weight
    said = torch.from_numpy(codes).to(like.device)
    text = [*prompt.trailing_ids, *[checkpoint.tts_pad_token_id] * frames][:frames]
    later = predictor.embed_frame(said, talker.codec_embedding(said[:, 0]))
    later = later + talker.text_embedding(torch.tensor(text, device=like.device))
    x = torch.cat([embed_prompt(prompt, talker, predictor), later[None, :-1]], dim=1)
    length = x.shape[1]
    columns = range(prompt.text_at, prompt.text_at + prompt.text_tokens + 1)
    cache = KVCache(checkpoint.talker.transformer, 1, length, like)
    view = RecordingView(cache, length, range(length - frames, length), columns)
    talker(x, view)
    return np.concatenate(view.scores)
