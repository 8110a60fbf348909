"""The talker and its code predictor. Parameter names equal those of the checkpoint without the prefix "talker."."""

# Parts that exist only for the published parameter names hang on bare modules, whose attributes have no types.
# mypy: disable-error-code="union-attr,operator,index,arg-type,attr-defined"

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from voice_recipe.config import TalkerSizes
from voice_recipe.layers import GatedMLP, RMSNorm, rope_tables, rotate

Cache = list[tuple[Tensor, Tensor]]  # keys and values of every layer, [B, kv heads, T, head_dim]


@dataclass(frozen=True)
class BlockSizes:
    """One transformer stack."""

    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int


class Attention(nn.Module):
    def __init__(self, sizes: BlockSizes) -> None:
        super().__init__()
        self.sizes, q, kv = sizes, sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
        self.q_proj = nn.Linear(sizes.hidden, q, bias=False)
        self.k_proj = nn.Linear(sizes.hidden, kv, bias=False)
        self.v_proj = nn.Linear(sizes.hidden, kv, bias=False)
        self.o_proj = nn.Linear(q, sizes.hidden, bias=False)
        self.q_norm, self.k_norm = RMSNorm(sizes.head_dim), RMSNorm(sizes.head_dim)

    def forward(
        self, x: Tensor, rope: tuple[Tensor, Tensor], mask: Tensor | None, past: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """x [B, T, H]. Mask None means causal. `past` holds the keys and values before x."""
        (batch, times, _), s = x.shape, self.sizes
        q = self.q_norm(self.q_proj(x).view(batch, times, s.heads, s.head_dim)).transpose(1, 2)
        k = self.k_norm(self.k_proj(x).view(batch, times, s.kv_heads, s.head_dim)).transpose(1, 2)
        v = self.v_proj(x).view(batch, times, s.kv_heads, s.head_dim).transpose(1, 2)
        q, k = rotate(q, *rope).to(v.dtype), rotate(k, *rope).to(v.dtype)
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        group = s.heads // s.kv_heads
        mixed = F.scaled_dot_product_attention(
            q,
            k.repeat_interleave(group, 1),
            v.repeat_interleave(group, 1),
            attn_mask=mask,
            is_causal=mask is None and past is None,
        )
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, times, -1)), (k, v)


class Layer(nn.Module):
    def __init__(self, sizes: BlockSizes, dropout: float) -> None:
        super().__init__()
        self.self_attn, self.mlp = Attention(sizes), GatedMLP(sizes.hidden, sizes.inner)
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(sizes.hidden), RMSNorm(sizes.hidden)
        self.dropout = dropout

    def forward(
        self, x: Tensor, rope: tuple[Tensor, Tensor], mask: Tensor | None, past: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        mixed, kept = self.self_attn(self.input_layernorm(x), rope, mask, past)
        x = x + F.dropout(mixed, self.dropout, self.training)
        return x + F.dropout(self.mlp(self.post_attention_layernorm(x)), self.dropout, self.training), kept


def run_layers(
    layers: nn.ModuleList, x: Tensor, rope: tuple[Tensor, Tensor], mask: Tensor | None, past: Cache | None = None
) -> tuple[Tensor, Cache]:
    kept: Cache = []
    for i, layer in enumerate(layers):
        x, pair = layer(x, rope, mask, past[i] if past else None)
        kept.append(pair)
    return x, kept


class TalkerModel(nn.Module):
    def __init__(self, sizes: TalkerSizes, dropout: float) -> None:
        super().__init__()
        block = BlockSizes(
            sizes.hidden_size,
            sizes.intermediate_size,
            sizes.num_layers,
            sizes.num_heads,
            sizes.num_kv_heads,
            sizes.head_dim,
        )
        self.layers = nn.ModuleList([Layer(block, dropout) for _ in range(block.layers)])
        self.norm = RMSNorm(block.hidden)
        self.codec_embedding = nn.Embedding(sizes.codec_vocab_size, sizes.hidden_size)
        self.text_embedding = nn.Embedding(sizes.text_vocab_size, sizes.text_hidden_size)


class TextProjection(nn.Module):
    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.linear_fc1, self.linear_fc2 = nn.Linear(width, width), nn.Linear(width, out)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear_fc2(F.silu(self.linear_fc1(x)))
        return out


class PredictorModel(nn.Module):
    def __init__(self, sizes: TalkerSizes, dropout: float) -> None:
        super().__init__()
        block = BlockSizes(
            sizes.predictor_hidden_size,
            sizes.predictor_intermediate_size,
            sizes.predictor_layers,
            sizes.predictor_heads,
            sizes.predictor_kv_heads,
            sizes.head_dim,
        )
        self.layers = nn.ModuleList([Layer(block, dropout) for _ in range(block.layers)])
        self.norm = RMSNorm(block.hidden)
        self.codec_embedding = nn.ModuleList(
            nn.Embedding(sizes.codebook_size, sizes.hidden_size) for _ in range(sizes.code_groups - 1)
        )


class CodePredictor(nn.Module):
    """Predicts codes 1.. of a frame, one after the other, from the talker's hidden state and code 0."""

    def __init__(self, sizes: TalkerSizes, dropout: float) -> None:
        super().__init__()
        self.sizes, self.model = sizes, PredictorModel(sizes, dropout)
        self.lm_head = nn.ModuleList(
            nn.Linear(sizes.predictor_hidden_size, sizes.codebook_size, bias=False)
            for _ in range(sizes.code_groups - 1)
        )
        self.small_to_mtp_projection = nn.Linear(sizes.hidden_size, sizes.predictor_hidden_size)

    def run(self, x: Tensor, start: int = 0, past: Cache | None = None) -> tuple[Tensor, Cache]:
        """x [M, T, talker hidden] at positions start.. -> states [M, T, predictor hidden]."""
        at = torch.arange(start, start + x.shape[1], device=x.device)
        rope = rope_tables(at, self.sizes.head_dim, self.sizes.rope_theta)
        x, kept = run_layers(self.model.layers, self.small_to_mtp_projection(x), rope, None, past)
        return self.model.norm(x), kept


class Talker(nn.Module):
    def __init__(self, sizes: TalkerSizes, dropout: float = 0.0, predictor_dropout: float = 0.0) -> None:
        super().__init__()
        self.sizes, self.model = sizes, TalkerModel(sizes, dropout)
        self.text_projection = TextProjection(sizes.text_hidden_size, sizes.hidden_size)
        self.codec_head = nn.Linear(sizes.hidden_size, sizes.codec_vocab_size, bias=False)
        self.code_predictor = CodePredictor(sizes, predictor_dropout)
        for name, p in self.named_parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.05 if "embedding" in name else 0.02)
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                p.data.mul_((2 * sizes.num_layers) ** -0.5)
            if name.endswith("bias"):
                nn.init.zeros_(p)

    def text(self, ids: Tensor) -> Tensor:
        """T(id) of the prompt layout: ids [...] -> [..., H]."""
        out: Tensor = self.text_projection(self.model.text_embedding(ids))
        return out

    def frame_embedding(self, codes: Tensor) -> Tensor:
        """Sum of the embeddings of a frame's codes: [..., 8] -> [..., H]."""
        total: Tensor = self.model.codec_embedding(codes[..., 0])
        for i, table in enumerate(self.code_predictor.model.codec_embedding):
            total = total + table(codes[..., i + 1])
        return total

    def trunk(
        self, x: Tensor, positions: Tensor, mask: Tensor | None, past: Cache | None = None
    ) -> tuple[Tensor, Cache]:
        """x [B, T, H], positions [B, T] or [T] -> hidden states after the final norm, cache."""
        cos, sin = rope_tables(positions, self.sizes.head_dim, self.sizes.rope_theta)
        if positions.dim() == 2:
            cos, sin = cos[:, None], sin[:, None]
        x, kept = run_layers(self.model.layers, x, (cos, sin), mask, past)
        return self.model.norm(x), kept

    def predictor_logits(self, hidden: Tensor, codes: Tensor) -> list[Tensor]:
        """Teacher-forced: hidden [M, H], codes [M, 8] -> logits of codes 1..7, [M, codebook] each."""
        predictor = self.code_predictor
        inputs = [hidden, self.model.codec_embedding(codes[:, 0])]
        inputs += [table(codes[:, i + 1]) for i, table in enumerate(predictor.model.codec_embedding[:-1])]
        states, _ = predictor.run(torch.stack([part.to(hidden.dtype) for part in inputs], 1))
        return [head(states[:, i + 1]) for i, head in enumerate(predictor.lm_head)]
