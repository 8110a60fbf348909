"""Qwen3 transformer blocks with the reference's numerics (transformers 4.57.3, models/qwen3; for experts and positions
of three axes 5.17.0, models/qwen3_omni_moe).

RMSNorm computes its variance in float32, and casts before it multiplies by the weight. cos and sin are float32. Fusing
or reordering these casts is audible after a few predictor steps. Packed projections compute the same sums.

A row's result is the same bit for bit in any batch. A sum's last bits depend on the shape of its product, and on a CPU
the libraries choose another kernel for another number of rows. So each row is a product, and an attention, of its own.
"""

from collections.abc import Sequence
from functools import cache, reduce
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vivavoce_engine.checkpoint.networks import ExpertsConfig, RopeConfig, TransformerConfig

AXES = 3
"""Axes of a multimodal position: time, height and width."""


@cache
def scalar(value: float, device: torch.device) -> Tensor:
    """Returns a number as a float32 tensor, which is made once. PyTorch would make one of a Python number at every
    call, and on a CPU that takes longer than the arithmetic."""
    with torch.inference_mode(False):
        return torch.tensor(value, dtype=torch.float32, device=device)


def in_turn(parts: Sequence[Tensor]) -> Tensor:
    """The sum of equal shapes, in their order. PyTorch's own sum over them has an order that depends on the shape."""
    return reduce(torch.add, parts)


class RowLinear(nn.Linear):
    """A linear layer whose result for one batch element does not depend on the others."""

    def forward(self, x: Tensor) -> Tensor:
        """x [B, T, in_features] → [B, T, out_features].

        On a CPU each batch element is a product of its own, of one shape in any batch. Small weights stay in the cache
        from one element to the next, so this costs what one product of all rows does (LOG.md).
        """
        if not x.is_cpu:
            return super().forward(x)
        weight = self.weight.t().expand(len(x), -1, -1)
        return torch.bmm(x, weight) if self.bias is None else torch.baddbmm(self.bias, x, weight)


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last axis (arXiv 1910.07467)."""

    def __init__(self, shape: int | tuple[int, int], eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(shape))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        total = wide.square().sum(-1, keepdim=True)  # half the time of mean() on a CPU
        variance = torch.addcdiv(scalar(self.eps, x.device), total, scalar(x.shape[-1], x.device))
        return self.weight * (wide * variance.rsqrt_()).to(x.dtype)


class Rope(nn.Module):
    """cos and sin of rotary position embedding, split-half pairing (RoFormer, arXiv 2104.09864)."""

    inverse_frequency: Tensor

    def __init__(self, config: RopeConfig) -> None:
        super().__init__()
        # On the CPU even if modules are built without storage, because no checkpoint fills this buffer.
        exponent = torch.arange(0, config.head_dim, 2, dtype=torch.int64, device="cpu").float() / config.head_dim
        self.register_buffer("inverse_frequency", 1.0 / (config.theta**exponent) / config.factor, persistent=False)
        self._axes = None if config.sections is None else axes_of_frequencies(config.sections)

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """positions → cos, and sin with its first half negated, each [B, T, 1, head_dim] float32.

        positions are integers [B, T], or [3, B, T] where time, height and width differ. Equal ones give what [B, T]
        gives, bit for bit.
        """
        places = positions[..., None].float()
        if positions.ndim > 2:
            assert self._axes is not None, "one axis has no sections"
            assert len(positions) == AXES
            places = positions[self._axes].permute(1, 2, 0).float()
        angle = (places * self.inverse_frequency).unsqueeze(2)
        cos, sin = angle.cos(), angle.sin()
        return torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)


def axes_of_frequencies(sections: Sequence[int]) -> list[int]:
    """The axis from which each frequency of an interleaved multimodal RoPE takes its position, one for each of
    head_dim / 2. The axes take turns until the sections of height and width are used up; the rest is time's."""
    axes = [0] * sum(sections)
    for axis in range(1, AXES):
        axes[axis : AXES * sections[axis] : AXES] = [axis] * sections[axis]
    return axes


def rotate(x: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
    """Rotates x [B, T, heads, head_dim] with the tables of Rope. Computes in float32, and returns x's dtype."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, dims=-1), signed_sin).to(x.dtype)


class KVCache:
    """Keys and values of every row: two tensors [layers, rows, positions, kv_heads, head_dim].

    Only positions below a row's length are read, so a row is used again without clearing it.
    """

    def __init__(self, config: TransformerConfig, rows: int, length: int, like: Tensor) -> None:
        assert config.num_attention_heads % config.num_key_value_heads == 0, "groups of query heads have one size"
        shape = (config.num_hidden_layers, rows, length, config.num_key_value_heads, config.head_dim)
        self.k = torch.zeros(shape, dtype=like.dtype, device=like.device)
        self.v = torch.zeros_like(self.k)
        self.group = config.num_attention_heads // config.num_key_value_heads


class CacheView(Protocol):
    """The keys and values that one forward pass writes, and those that its queries see."""

    positions: Tensor
    """[B, T] int64, or [3, B, T] where the axes of a position differ"""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Writes k and v [B, T, kv_heads, head_dim]; attends with q [B, T, heads, head_dim] → [B, T, heads *
        head_dim]."""
        ...


class HeadScores:
    """Scores of one query head of one layer: those of the last query of each batch element for a span of its keys.

    `spans` [B]: first position and the one behind the last; None where no scores are wanted.
    """

    def __init__(self, layer: int, head: int, spans: Sequence[tuple[int, int] | None]) -> None:
        self.layer = layer
        self.head = head
        self.spans = spans
        self.found: dict[int, Tensor] = {}
        """Batch element → q.k / sqrt(head_dim), before the softmax, of the span's keys that the query sees."""

    def take(self, number: int, q: Tensor, k: Tensor) -> None:
        """q [T, heads, D] of batch element `number`, and all keys that its last query sees, k [L, kv_heads, D]."""
        span = self.spans[number]
        if span is not None:
            group = q.shape[1] // k.shape[1]
            seen = k[slice(*span), self.head // group]
            self.found[number] = torch.mv(seen, q[-1, self.head]) * q.shape[-1] ** -0.5


class RowView:
    """The talker's view: batch element b is row `rows[b]` of the cache, and has the `steps` positions from `starts[b]`
    on. Each row attends by itself to as many keys as it has. `scores` looks on, and changes nothing. `positions` are
    those that RoPE takes, [B, T] or [3, B, T], where they are not the places in the cache."""

    def __init__(
        self,
        cache: KVCache,
        rows: Sequence[int],
        starts: Sequence[int],
        steps: int,
        scores: HeadScores | None = None,
        positions: Tensor | None = None,
    ) -> None:
        assert len(rows) == len(starts) > 0
        assert steps > 0
        assert all(0 <= row < cache.k.shape[1] for row in rows)
        assert 0 <= min(starts) <= max(starts) + steps <= cache.k.shape[2], "a position has a place in the cache"
        self._cache, self._steps, self._scores = cache, steps, scores
        self._spans = [(row, start, start + steps) for row, start in zip(rows, starts, strict=True)]
        device = cache.k.device
        places = torch.tensor(starts, device=device)[:, None] + torch.arange(steps, device=device)
        assert positions is None or positions.shape[-2:] == places.shape
        self.positions = places if positions is None else positions
        self._masks = [causal_mask(start, stop, cache) for _, start, stop in self._spans]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = self._cache.k[layer], self._cache.v[layer]
        out = []
        for number, (row, start, stop) in enumerate(self._spans):
            keys[row, start:stop] = k[number]
            values[row, start:stop] = v[number]
            one = slice(number, number + 1)
            of_row = slice(row, row + 1)
            out.append(attend(q[one], keys[of_row, :stop], values[of_row, :stop], self._masks[number]))
            if self._scores is not None and self._scores.layer == layer:
                self._scores.take(number, q[number], keys[row, :stop])
        return torch.cat(out) if len(out) > 1 else out[0]


class FrameView:
    """The code predictor's view within a frame: the first `batch` rows, all at the positions [start, stop)."""

    def __init__(self, cache: KVCache, batch: int, start: int, stop: int) -> None:
        assert batch <= cache.k.shape[1]
        assert 0 <= start < stop <= cache.k.shape[2]
        self._k, self._v = cache.k[:, :batch, :stop], cache.v[:, :batch, :stop]
        self._start = start
        self.positions = torch.arange(start, stop, device=cache.k.device).expand(batch, -1)
        self._mask = causal_mask(start, stop, cache)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = self._k[layer], self._v[layer]
        keys[:, self._start :] = k
        values[:, self._start :] = v
        return attend(q, keys, values, self._mask)


def causal_mask(start: int, stop: int, cache: KVCache) -> Tensor | None:
    """The keys that the positions [start, stop) see, for grouped queries: [1, 1, group * T, stop] bool. None for one
    position, which sees all."""
    if stop - start == 1:
        return None
    steps = torch.arange(stop, device=cache.k.device)
    return (steps <= steps[start:, None]).repeat(cache.group, 1)[None, None]


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Grouped-query attention without repeating keys: the queries of a group form one sequence.

    q [B, T, heads, D]; k, v [B, L, kv_heads, D]; mask [B or 1, 1, group * T, L] → [B, T, heads * D].
    """
    batch, steps, heads, head_dim = q.shape
    kv_heads = k.shape[2]
    group = heads // kv_heads
    q = q.view(batch, steps, kv_heads, group, head_dim).permute(0, 2, 3, 1, 4).reshape(batch, kv_heads, -1, head_dim)
    out = attend_each(q, k.transpose(1, 2), v.transpose(1, 2), mask)
    return out.view(batch, kv_heads, group, steps, head_dim).permute(0, 3, 1, 2, 4).reshape(batch, steps, -1)


def attend_each(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Scaled dot-product attention, in which no batch element depends on the others.

    q [B, heads, T, D]; k, v [B, heads, L, D]; mask [B or 1, 1, T, L] → [B, heads, T, D]. The buffers of a CPU's threads
    differ in alignment, and the last bits follow from it. A call of one element shares out its heads in one way only.
    """
    if not q.is_cpu or len(q) == 1 or torch.get_num_threads() == 1:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    masks = [mask if mask is None or len(mask) == 1 else mask[n : n + 1] for n in range(len(q))]
    return torch.cat(
        [
            F.scaled_dot_product_attention(q[n : n + 1], k[n : n + 1], v[n : n + 1], attn_mask=seen)
            for n, seen in enumerate(masks)
        ]
    )


class Attention(nn.Module):
    """Self-attention with RMSNorm over each head of q and k before RoPE (Qwen3)."""

    def __init__(self, config: TransformerConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        heads, kv_heads, self.head_dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.heads, self.qk_heads = heads, heads + kv_heads
        self.qkv_proj = RowLinear(config.hidden_size, (heads + 2 * kv_heads) * self.head_dim, bias=False)
        self.o_proj = RowLinear(heads * self.head_dim, config.hidden_size, bias=False)
        self.qk_norm = RMSNorm((self.qk_heads, self.head_dim), config.rms_norm_eps)
        """q_norm for the query heads, then k_norm for the key heads, one row a head."""

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, view: CacheView) -> Tensor:
        batch, steps, _ = x.shape
        qkv = self.qkv_proj(x).view(batch, steps, -1, self.head_dim)
        qk = rotate(self.qk_norm(qkv[:, :, : self.qk_heads]), cos, sin)
        out: Tensor = self.o_proj(
            view.attend(self.layer, qk[:, :, : self.heads], qk[:, :, self.heads :], qkv[:, :, self.qk_heads :])
        )
        return out


class GatedMLP(nn.Module):
    """SwiGLU (arXiv 2002.05202), gate and up in one matrix."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate_up_proj = RowLinear(hidden_size, 2 * intermediate_size, bias=False)
        self.down_proj = RowLinear(intermediate_size, hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        out: Tensor = self.down_proj(F.silu(gate) * up)
        return out


class Experts(nn.Module):
    """A mixture of experts (arXiv 1701.06538), each a SwiGLU, beside one that every token takes.

    The router's probabilities are float32. A token's experts are added up likeliest first, then comes the shared one. A
    batch element's result does not depend on the others.
    """

    def __init__(self, hidden_size: int, config: ExpertsConfig) -> None:
        super().__init__()
        inner = config.intermediate_size
        self.chosen, self.normalised = config.chosen, config.normalised
        self.router = RowLinear(hidden_size, config.count, bias=False)
        self.gate_up_proj = nn.Parameter(torch.zeros(config.count, 2 * inner, hidden_size))
        self.down_proj = nn.Parameter(torch.zeros(config.count, hidden_size, inner))
        self.shared = GatedMLP(hidden_size, config.shared_intermediate_size)
        self.shared_gate = RowLinear(hidden_size, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x [B, T, hidden] → the same shape."""
        shares, experts = self.route(x)
        routed = torch.stack([self._routed(*element) for element in zip(x, shares, experts, strict=True)])
        out: Tensor = routed + self.shared_gate(x).sigmoid() * self.shared(x)
        return out

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [B, T, hidden] → the share of each chosen expert in the result [B, T, chosen], in x's dtype, and its number
        [B, T, chosen] int64, the likeliest first."""
        shares, experts = self.router(x).float().softmax(-1).topk(self.chosen, dim=-1)
        if self.normalised:
            shares = shares / shares.sum(-1, keepdim=True)
        return shares.to(x.dtype), experts

    def _routed(self, x: Tensor, shares: Tensor, experts: Tensor) -> Tensor:
        """x [T, hidden] of one batch element → [T, hidden]. Each expert is read once."""
        out = x.new_empty(*experts.shape, x.shape[-1])
        for expert in sorted(set(experts.flatten().tolist())):
            token, rank = (experts == expert).nonzero(as_tuple=True)
            gate, up = F.linear(x[token], self.gate_up_proj[expert]).chunk(2, dim=-1)
            out[token, rank] = F.linear(F.silu(gate) * up, self.down_proj[expert])
        return in_turn((out * shares[..., None]).unbind(1))


class Block(nn.Module):
    """A pre-norm block: attention, then the MLP or a mixture of experts, each added to the residual stream."""

    def __init__(self, config: TransformerConfig, layer: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config, layer)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp: GatedMLP | Experts
        if config.experts is None:
            self.mlp = GatedMLP(config.hidden_size, config.intermediate_size)
        else:
            self.mlp = Experts(config.hidden_size, config.experts)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, view: CacheView) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, view)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Transformer(nn.Module):
    """A stack of blocks and the final norm, from embeddings to hidden states."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.rope = Rope(config.rope)
        self.layers = nn.ModuleList(Block(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, view: CacheView) -> Tensor:
        """x [B, T, hidden] → [B, T, hidden]; writes keys and values through `view`."""
        cos, sin = self.rope(view.positions)
        for layer in self.layers:
            x = layer(x, cos, sin, view)
        out: Tensor = self.norm(x)
        return out
