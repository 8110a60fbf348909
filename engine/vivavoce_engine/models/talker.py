"""The talker: from text and code embeddings to the hidden state and the first code of each frame.

Reference: qwen-tts 0.1.1, core/models/modeling_qwen3_tts.py, Qwen3TTSTalkerModel; for Qwen3-Omni transformers 5.17.0,
models/qwen3_omni_moe, Qwen3OmniMoeTalkerForConditionalGeneration.
"""

from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from vivavoce_engine.checkpoint.networks import TalkerConfig
from vivavoce_engine.models.layers import CacheView, RowLinear, Transformer
from vivavoce_engine.text.prompt import NO_ID

CONTROL_CODES = 1024
"""The last codes of the vocabulary steer the prompt. Of them only the end of speech may be drawn."""


class InputProjection(nn.Module):
    """The checkpoint's text_projection or hidden_projection, which bring what the talker reads to its width.

    That of text runs once over the whole vocabulary when the model is loaded. A token's embedding is then one look-up,
    and the wide text embedding is not kept.
    """

    def __init__(self, config: TalkerConfig) -> None:
        super().__init__()
        self.linear_fc1 = nn.Linear(config.text_hidden_size, config.text_projection_size)
        self.linear_fc2 = nn.Linear(config.text_projection_size, config.transformer.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear_fc2(F.silu(self.linear_fc1(x)))
        return out


class Talker(nn.Module):
    """A transformer over the sum of text and code embeddings, with a head for code 0."""

    def __init__(self, config: TalkerConfig) -> None:
        super().__init__()
        hidden = config.transformer.hidden_size
        self.transformer = Transformer(config.transformer)
        self.text_embedding = nn.Embedding(config.text_vocab_size, hidden)
        """Already projected: text_projection(text_embedding)."""
        self.codec_embedding = nn.Embedding(config.vocab_size, hidden)
        self.codec_head = RowLinear(hidden, config.vocab_size, bias=False)
        self.hidden_projection = InputProjection(config) if config.reads_hidden_states else None
        """Projection of the thinker's hidden states at the tokens of sound and pictures."""

    def speaker_embeddings(self, spk_id: Mapping[str, int]) -> dict[str, NDArray[np.float32]]:
        """Returns the embeddings of the preset speakers by name, each [hidden] float32. Blends of voices are made of
        them."""
        table = self.codec_embedding.weight
        return {name.lower(): table[code].detach().float().cpu().numpy() for name, code in spk_id.items()}

    def embed(self, text_ids: Tensor, codec_ids: Tensor) -> Tensor:
        """Embeds prompts: the sum of text and codec embedding. A side whose id is NO_ID adds nothing.

        text_ids, codec_ids [B, T] int64 → [B, T, hidden].
        """
        assert text_ids.shape == codec_ids.shape
        text = self.text_embedding(text_ids.clamp(min=0)) * (text_ids != NO_ID)[..., None]
        codec = self.codec_embedding(codec_ids.clamp(min=0)) * (codec_ids != NO_ID)[..., None]
        return torch.add(text, codec)

    def project_hidden(self, states: Tensor) -> Tensor:
        """states [tokens, thinker hidden] of sound and pictures → what the talker reads there, [tokens, hidden]."""
        assert self.hidden_projection is not None, "this talker has no thinker"
        out: Tensor = self.hidden_projection(states)
        return out

    def forward(self, x: Tensor, view: CacheView) -> Tensor:
        """x [B, T, hidden] → hidden states after the final norm [B, T, hidden]."""
        out: Tensor = self.transformer(x, view)
        return out

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [B, hidden] → float32 scores of code 0 [B, vocab_size]."""
        out: Tensor = self.codec_head(hidden[:, None])[:, 0]
        return out.float()
