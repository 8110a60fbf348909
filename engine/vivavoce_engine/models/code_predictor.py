"""The code predictor: every code of a frame but the first, from the talker's hidden state and the codes before it.

A frame is a sequence with positions 0 to G-1: talker hidden, E0(code 0), E1(code 1), …. Head i gives the logits of code
i+1, from position i+1. Reference: qwen-tts 0.1.1, Qwen3TTSTalkerCodePredictorModelForConditionalGeneration.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from vivavoce_engine.checkpoint.networks import TalkerConfig
from vivavoce_engine.models.layers import FrameView, KVCache, RowLinear, Transformer

Draw = Callable[[int, Tensor], Tensor]
"""(codebook, float32 logits [B, vocab]) → codes [B]."""


class CodePredictor(nn.Module):
    """A transformer that runs once for each code of a frame but the first."""

    def __init__(self, config: TalkerConfig) -> None:
        super().__init__()
        hidden, groups, vocab = config.predictor.hidden_size, config.num_code_groups, config.predictor_vocab_size
        self.groups = groups
        self.transformer = Transformer(config.predictor)
        self.projection = RowLinear(config.transformer.hidden_size, hidden) if config.has_projection else nn.Identity()
        self.codec_embedding = nn.ModuleList(
            nn.Embedding(vocab, config.transformer.hidden_size) for _ in range(groups - 1)
        )
        """E1 and later, in the talker's width. The talker reads their sum."""
        self.input_embedding = nn.ModuleList(
            nn.Embedding(config.vocab_size if group == 0 else vocab, hidden) for group in range(groups - 1)
        )
        """projection(E0), projection(E1), …: this model's inputs, computed once when it is loaded."""
        self.lm_head = nn.ModuleList(RowLinear(hidden, vocab, bias=False) for _ in range(groups - 1))

    def frame_cache(self, config: TalkerConfig, rows: int) -> KVCache:
        """Makes a cache of `rows` rows for the positions of one frame. Every frame overwrites it."""
        return KVCache(config.predictor, rows, self.groups, like=self.transformer.norm.weight)

    def forward(self, hidden: Tensor, code_0: Tensor, cache: KVCache, draw: Draw) -> Tensor:
        """hidden [B, talker hidden], code_0 [B] → all codes of the frame [B, groups]."""
        batch = code_0.shape[0]
        assert len(hidden) == batch
        codes = [code_0]
        x = torch.cat([self.projection(hidden[:, None]), self.input_embedding[0](code_0)[:, None]], dim=1)
        for group in range(1, self.groups):
            view = FrameView(cache, batch, group + 1 - x.shape[1], group + 1)
            out = self.transformer(x, view)[:, -1:]
            codes.append(draw(group, self.lm_head[group - 1](out)[:, 0].float()))
            if group < self.groups - 1:
                x = self.input_embedding[group](codes[group])[:, None]
        return torch.stack(codes, dim=1)

    def embed_frame(self, codes: Tensor, first: Tensor) -> Tensor:
        """Sums a frame's code embeddings, as the talker reads them back.

        codes [B, groups]; first [B, talker hidden] = talker.codec_embedding(code 0) → [B, talker hidden].
        """
        assert codes.shape == (len(first), self.groups)
        total = first
        for group, embedding in enumerate(self.codec_embedding, start=1):
            total = total + embedding(codes[:, group])
        return total
