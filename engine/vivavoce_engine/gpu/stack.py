"""A transformer of models/layers.py in kernels, over buffers that are allocated once. A step consists of launches
alone."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from vivavoce_engine.checkpoint.networks import TransformerConfig
from vivavoce_engine.gpu.attention import Cache, Projected
from vivavoce_engine.gpu.card import H200
from vivavoce_engine.gpu.experts import ExpertBuffers, Experts
from vivavoce_engine.gpu.launch import Launcher
from vivavoce_engine.gpu.linear import ADD, GATED, PARTS, gemm, gemv, gemv_tokens, norm, splits
from vivavoce_engine.models import layers as modules
from vivavoce_engine.models.layers import Block, GatedMLP, Rope, Transformer

Attend = Callable[[Projected], None]
"""One layer's attention: fills its `out`."""


@dataclass(frozen=True)
class Layer:
    """The weights of one block, as the loaded module holds them."""

    input_norm: Tensor
    qkv: Tensor
    qk_norm: tuple[Tensor, float]
    o: Tensor
    post_norm: Tensor
    mlp: "Gated | Experts"


@dataclass(frozen=True)
class Gated:
    """The weights of a gated MLP: gate_up [2 inner, hidden], gate above up, and down [hidden, inner]."""

    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True)
class Residual:
    """The residual stream between two kernels: x [T, hidden], and the parts [splits, T, hidden] float32 that have not
    been added to it yet, if any."""

    x: Tensor
    parts: Tensor | None = None


class Stack:
    """One transformer, for at most `tokens` new tokens a step. The caller writes the inputs to `x` [tokens, hidden].

    With `deterministic` results depend neither on the number of tokens nor on the card's multiprocessors, because every
    number is computed in one way.
    """

    def __init__(self, transformer: Transformer, tokens: int, launch: Launcher, *, deterministic: bool) -> None:
        self.layers = [layer_weights(cast(Block, block)) for block in transformer.layers]
        self.norm, self.eps = transformer.norm.weight.detach(), transformer.norm.eps
        self.launch = launch
        like, first = self.norm, self.layers[0]
        self.hidden = hidden = len(like)
        assert len(first.o) == first.qkv.shape[1] == hidden
        self._gemv_tokens = 0 if deterministic else gemv_tokens(hidden)
        self._attended = like.new_empty(tokens, first.o.shape[1])
        self._qkv = like.new_empty(tokens, first.qkv.shape[0])
        self._normed = like.new_empty(tokens, hidden)
        self._multiprocessors = (H200 if deterministic else launch.card).multiprocessors
        parts = [self._splits(first.o)]
        if isinstance(first.mlp, Experts):
            self._experts = ExpertBuffers(first.mlp, tokens, self._multiprocessors)
            parts.append(first.mlp.slots)
        else:
            assert len(first.mlp.down) == first.mlp.gate_up.shape[1] == hidden
            assert len(first.mlp.gate_up) == 2 * first.mlp.down.shape[1]
            self._inner = like.new_empty(tokens, first.mlp.down.shape[1])
            parts.append(self._splits(first.mlp.down))
        self._parts = torch.empty(max(parts) * tokens * hidden, dtype=torch.float32, device=like.device)
        self.x = like.new_zeros(tokens, hidden)

    def run(self, tokens: int, attend: Attend) -> Residual:
        """Moves the first `tokens` of x through all blocks."""
        assert 1 <= tokens <= len(self.x)
        stream = Residual(self.x[:tokens])
        qkv, attended = self._qkv[:tokens], self._attended[:tokens]
        for number, layer in enumerate(self.layers):
            self.normed_linear(stream, layer.qkv, qkv, layer.input_norm)
            attend(Projected(number, qkv, layer.qk_norm, attended))
            stream = self._add(attended, layer.o)
            if isinstance(layer.mlp, Experts):
                stream = self._add_experts(stream, layer.mlp, layer.post_norm)
            else:
                stream = self._add_gated(stream, layer.mlp, layer.post_norm)
        return stream

    def _add_gated(self, stream: Residual, mlp: Gated, norm_weight: Tensor) -> Residual:
        """x += MLP(norm(x))."""
        inner = self._inner[: len(stream.x)]
        self.normed_linear(stream, mlp.gate_up, inner, norm_weight, mode=GATED.value)
        return self._add(inner, mlp.down)

    def _add_experts(self, stream: Residual, experts: Experts, norm_weight: Tensor) -> Residual:
        """x += experts(norm(x))."""
        x = stream.x
        normed = self._normed[: len(x)]
        norm(self.launch, x, norm_weight, self.eps, normed, parts=stream.parts)
        parts = self._parts[: experts.slots * x.numel()].view(experts.slots, *x.shape)
        self._experts.run(self.launch, experts, normed, parts)
        return Residual(x, parts)

    def normed_linear(self, stream: Residual, weight: Tensor, out: Tensor, norm_weight: Tensor, mode: int = 0) -> None:
        """out = mode(norm(stream) · weightᵀ)."""
        if len(stream.x) <= self._gemv_tokens and stream.parts is None:
            gemv(self.launch, stream.x, weight, out, mode=mode, norm=(norm_weight, self.eps))
            return
        normed = self._normed[: len(stream.x)]
        norm(self.launch, stream.x, norm_weight, self.eps, normed, parts=stream.parts)
        self.linear(normed, weight, out, mode)

    def _splits(self, weight: Tensor) -> int:
        n, k = weight.shape
        return splits(n, k, self._multiprocessors)

    def _add(self, inner: Tensor, weight: Tensor) -> Residual:
        """x += inner · weightᵀ."""
        tokens = len(inner)
        x = self.x[:tokens]
        if tokens <= self._gemv_tokens:
            gemv(self.launch, inner, weight, x, mode=ADD.value)
            return Residual(x)
        count = self._splits(weight)
        parts = self._parts[: count * x.numel()].view(count, tokens, -1)
        gemm(self.launch, inner, weight, parts, mode=PARTS.value)
        return Residual(x, parts)

    def linear(self, x: Tensor, weight: Tensor, out: Tensor, mode: int = 0, bias: Tensor | None = None) -> None:
        """out = mode(x · weightᵀ)."""
        product = gemv if len(x) <= self._gemv_tokens else gemm
        product(self.launch, x, weight, out, mode=mode, bias=bias)


def layer_weights(block: Block) -> Layer:
    """Returns the weights of a block, without gradients."""
    attention, mlp = block.self_attn, block.mlp
    assert all(weight.is_contiguous() for weight in block.parameters()), "kernels address weights by row and column"
    return Layer(
        input_norm=block.input_layernorm.weight.detach(),
        qkv=attention.qkv_proj.weight.detach(),
        qk_norm=(attention.qk_norm.weight.detach(), attention.qk_norm.eps),
        o=attention.o_proj.weight.detach(),
        post_norm=block.post_attention_layernorm.weight.detach(),
        mlp=mixture(mlp) if isinstance(mlp, modules.Experts) else gated(mlp),
    )


def gated(mlp: GatedMLP) -> Gated:
    """The weights of a gated MLP."""
    return Gated(mlp.gate_up_proj.weight.detach(), mlp.down_proj.weight.detach())


def mixture(mlp: modules.Experts) -> Experts:
    """The weights of a mixture of experts."""
    return Experts(
        router=mlp.router.weight.detach(),
        gate_up=mlp.gate_up_proj.detach(),
        down=mlp.down_proj.detach(),
        shared_gate_up=mlp.shared.gate_up_proj.weight.detach(),
        shared_down=mlp.shared.down_proj.weight.detach(),
        shared_gate=mlp.shared_gate.weight.detach(),
        top=mlp.chosen,
        normalised=mlp.normalised,
    )


def build_cache(rope: Rope, config: TransformerConfig, places: int, length: int, positions: int, like: Tensor) -> Cache:
    """Allocates keys and values of `places` rows or pages, each `length` positions long, and computes the rotations of
    `positions` positions."""
    head_dim = config.head_dim
    assert head_dim == 2 * len(rope.inverse_frequency)
    k = like.new_zeros(config.num_hidden_layers, places, length, config.num_key_value_heads, head_dim)
    with torch.no_grad():
        cos, sin = rope(torch.arange(positions, device=rope.inverse_frequency.device)[None])
    cos, sin = (table.view(positions, head_dim).to(like.device) for table in (cos, sin))
    return Cache(k, torch.zeros_like(k), cos, sin, config.num_attention_heads, config.rope.sections)
