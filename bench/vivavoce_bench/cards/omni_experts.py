"""Experts of Qwen3-Omni's talker on a GPU: against the PyTorch module, their times, and other tilings of them.

`vivavoce_bench.cards.omni` runs it.
"""

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast
from unittest.mock import patch

import torch
from torch import Tensor
from vivavoce_engine.gpu import experts
from vivavoce_engine.gpu.experts import ExpertBuffers, Experts
from vivavoce_engine.gpu.frame import FrameModel
from vivavoce_engine.gpu.graphs import Graphs
from vivavoce_engine.gpu.linear import Blocks
from vivavoce_engine.models import layers as modules
from vivavoce_engine.models.layers import Block

from vivavoce_bench.cards.frame import DEVICE, build, launcher
from vivavoce_bench.cards.shapes import OMNI, random_models, talker_config
from vivavoce_bench.cards.timing import median_ms

Json = dict[str, Any]
BF16, F32 = torch.bfloat16, torch.float32
BANDWIDTH_TB_S = 4.8
"""Bandwidth of an H200's memory."""
EXPERT_TOKENS = (1, 2, 8, 32, 64, 256, 512)
TUNED_TOKENS = (1, 8, 32, 256)
GATED_BLOCKS = [(64, 128, 4, 4), (64, 128, 4, 3), (64, 128, 4, 6), (64, 256, 4, 2), (64, 64, 4, 4), (64, 64, 4, 6),
                (128, 128, 8, 3), (32, 256, 4, 3), (32, 128, 4, 4)]  # fmt: skip
"""Tuples (outputs, summands, warps, stages) of the experts' first product."""
JOINED_BLOCKS = [(64, 128, 4, 3), (64, 128, 4, 2), (128, 128, 4, 3), (128, 64, 4, 4), (64, 64, 4, 6)]
"""Tuples of the second product."""


def graphed(call: Callable[[], object]) -> Callable[[], None]:
    """Records a call, and returns its replay."""
    graphs = Graphs(torch.cuda.Stream(), eager=False)  # type: ignore[no-untyped-call]
    graphs.record(0, lambda: (call(), None)[1])
    return partial(graphs.replay, 0)


def distance(ours: Tensor, exact: Tensor) -> float:
    """Norm of the difference, relative to the exact norm."""
    return float((ours.double() - exact.double()).norm() / exact.double().norm())


def mixtures(model: FrameModel) -> list[Experts]:
    return [cast(Experts, layer.mlp) for layer in model.talker.layers]


def states(mixture: Experts, tokens: int) -> Tensor:
    """Inputs of experts, [tokens, hidden]."""
    generator, like = torch.Generator(DEVICE).manual_seed(1), mixture.router
    return torch.randn(tokens, mixture.hidden, generator=generator, device=DEVICE).to(like.dtype)


@torch.inference_mode()
def check_experts() -> Json:
    """One layer's experts by kernels and by the PyTorch module, both in float32 and in bfloat16."""
    found: Json = {}
    for name, dtype in (("fp32", F32), ("bf16", BF16)):
        talker, _ = random_models(talker_config(OMNI, layers=1), DEVICE, dtype)
        wide, _ = random_models(talker_config(OMNI, layers=1), DEVICE, F32)
        module, exact = (cast(modules.Experts, cast(Block, one.transformer.layers[0]).mlp) for one in (talker, wide))
        model = build(OMNI, dtype, 1, 128, dependent=False, layers=1, deterministic=True)
        mixture = mixtures(model)[0]
        buffers = ExpertBuffers(mixture, max(EXPERT_TOKENS), 132)
        together = None
        for tokens in reversed(EXPERT_TOKENS):
            x = states(mixture, max(EXPERT_TOKENS))[:tokens].contiguous()
            out = torch.full((mixture.slots, tokens, mixture.hidden), torch.nan, device=DEVICE)
            buffers.run(model.launch, mixture, x, out)
            chosen = module.route(x[None])[1]
            same = (chosen[0].sort(-1).values == buffers.chosen[:tokens, : mixture.top].sort(-1).values).all(-1)
            total = out.sum(0)
            together = total if together is None else together
            found[f"{name} {tokens}"] = {
                "choice": round(float(same.float().mean()), 4),
                "kernels to float32": distance(total[same], exact(x.float()[None])[0][same]),
                "module to float32": distance(module(x[None])[0][same], exact(x.float()[None])[0][same]),
                "equal in a batch": bool(torch.equal(total, together[:tokens])),
            }
    return found


def expert_ms(model: FrameModel, tokens: int) -> float:
    """Milliseconds of one layer's experts, the mean of all layers, whose weights no cache holds."""
    layers = mixtures(model)
    x, buffers = states(layers[0], tokens), ExpertBuffers(layers[0], tokens, 132)
    out = torch.empty(layers[0].slots, tokens, layers[0].hidden, device=DEVICE)

    def call() -> None:
        for mixture in layers:
            buffers.run(model.launch, mixture, x, out)

    return median_ms(graphed(call)) / len(layers)


def expert_bytes(mixture: Experts, tokens: int) -> int:
    """Bytes of weights that a layer's experts read for these tokens."""
    buffers = ExpertBuffers(mixture, tokens, 132)
    buffers.choose(launcher(dependent=False), mixture, states(mixture, tokens))
    hit = len(set(buffers.chosen[:tokens, : mixture.top].flatten().tolist()))
    shared = (mixture.router, mixture.shared_gate_up, mixture.shared_down)
    return 2 * (hit * 3 * mixture.inner * mixture.hidden + sum(weight.numel() for weight in shared))


@torch.inference_mode()
def time_experts(model: FrameModel) -> Json:
    found: Json = {}
    for tokens in EXPERT_TOKENS:
        size = statistics.mean(expert_bytes(mixture, tokens) for mixture in mixtures(model))
        ms = expert_ms(model, tokens)
        share = size / ms / 1e9 / BANDWIDTH_TB_S
        found[str(tokens)] = {"us": round(1000 * ms, 1), "MB": round(size / 1e6, 1), "share": round(share, 3)}
    return found


@contextmanager
def tiling(weights: int, blocks: tuple[int, int, int, int]) -> Iterator[None]:
    """Gives the experts' product that reads `weights` weights another tiling."""
    usual = experts.expert_blocks
    n, k, warps, stages = blocks

    def chosen(tokens: int, depth: int, *rest: Any) -> Blocks:
        if rest[0] != weights:
            return usual(tokens, depth, *rest)
        return Blocks(experts.item_pairs(tokens), n, min(k, depth), warps, stages)

    with patch.object(experts, "expert_blocks", chosen):
        yield


@torch.inference_mode()
def tune(model: FrameModel) -> Json:
    """Microseconds of a layer's experts with other tilings of one product, by tokens."""
    found: Json = {}
    for weights, candidates in ((2, GATED_BLOCKS), (1, JOINED_BLOCKS)):
        for blocks in candidates:
            for tokens in TUNED_TOKENS:
                try:
                    with tiling(weights, blocks):
                        value: float | str = round(1000 * expert_ms(model, tokens), 1)
                except Exception as failure:
                    value = str(failure)[:80]
                found.setdefault(f"{'gated' if weights == 2 else 'joined'} {blocks}", {})[str(tokens)] = value
    return found
