"""The talker: from text and code embeddings to the hidden state and first code of each frame.

Reference: qwen-tts 0.1.1, core/models/modeling_qwen3_tts.py, Qwen3TTSTalkerModel.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vivavoce_engine.checkpoint import TalkerConfig
from vivavoce_engine.models.layers import CacheView, Transformer
from vivavoce_engine.text import NO_ID


class TextProjection(nn.Module):
    """text_projection of the checkpoint. Runs once over the whole vocabulary when the model is loaded, so that a
    token's talker embedding is one look-up afterwards (and the wide text embedding need not be kept)."""

    def __init__(self, text_hidden_size: int, hidden_size: int) -> None:
        super().__init__()
        self.linear_fc1 = nn.Linear(text_hidden_size, text_hidden_size)
        self.linear_fc2 = nn.Linear(text_hidden_size, hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear_fc2(F.silu(self.linear_fc1(x)))
        return out


class Talker(nn.Module):
    def __init__(self, config: TalkerConfig) -> None:
        super().__init__()
        hidden = config.transformer.hidden_size
        self.transformer = Transformer(config.transformer)
        self.text_embedding = nn.Embedding(config.text_vocab_size, hidden)
        """Already projected: text_projection(text_embedding)."""
        self.codec_embedding = nn.Embedding(config.vocab_size, hidden)
        self.codec_head = nn.Linear(hidden, config.vocab_size, bias=False)

    def embed(self, text_ids: Tensor, codec_ids: Tensor) -> Tensor:
        """Prompt embeddings: text side plus codec side, either absent where its id is NO_ID.

        text_ids, codec_ids [B, T] → [B, T, hidden].
        """
        text = self.text_embedding(text_ids.clamp(min=0)) * (text_ids != NO_ID)[..., None]
        codec = self.codec_embedding(codec_ids.clamp(min=0)) * (codec_ids != NO_ID)[..., None]
        return torch.add(text, codec)

    def forward(self, x: Tensor, view: CacheView) -> Tensor:
        """x [B, T, hidden] → hidden states after the final norm [B, T, hidden]."""
        out: Tensor = self.transformer(x, view)
        return out

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [B, hidden] → float32 scores of code 0 [B, vocab_size]."""
        out: Tensor = self.codec_head(hidden)
        return out.float()
