"""Searches for the best blocks of gpu/linear.py for the matrix products of a frame, on a GPU.

    python -m vivavoce_bench.cards.tune --out FILE [--sizes 0.6b 1.7b] [--batches 1 8] [--context 200]

The products are given other blocks one at a time, and the whole frame is timed, because a kernel that is faster alone
may prevent the next one from prefetching its weights. The best blocks stay while the next product is tried.
"""

import argparse
import itertools
import json
import multiprocessing
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from vivavoce_engine.gpu import stack
from vivavoce_engine.gpu.card import Card
from vivavoce_engine.gpu.frame import FrameModel
from vivavoce_engine.gpu.graphs import Graphs
from vivavoce_engine.gpu.launch import Launcher
from vivavoce_engine.gpu.linear import ADD, BIAS, GATED, GEMV_TOKENS, PARTS, Blocks, block_tokens, gemm, gemv, splits

from vivavoce_bench.cards.frame import DEVICE, build, launcher
from vivavoce_bench.cards.timing import median_ms

Product = tuple[int, int, int]
"""Outputs, summands, and the mode of the kernel's epilogue."""
SMALL = [  # products of the code predictor, and of the 0.6B talker
    (4096, 1024, 0),
    (1024, 2048, ADD.value),
    (3072, 1024, GATED.value),
    (1024, 3072, ADD.value),
    (2048, 1024, 0),
]
PRODUCTS: dict[str, list[Product]] = {
    "0.6b": [*SMALL, (3072, 1024, 0)],
    "1.7b": [
        (4096, 2048, 0),
        (2048, 2048, ADD.value),
        (6144, 2048, GATED.value),
        (2048, 6144, ADD.value),
        (3072, 2048, 0),
        (1024, 2048, BIAS.value),
    ],
}
GEMM_BLOCKS = [
    (64, 128, 4, 4), (64, 128, 8, 4), (64, 128, 4, 6), (64, 64, 4, 6), (64, 256, 4, 3), (64, 256, 8, 3),
    (32, 128, 4, 4), (32, 128, 4, 6), (32, 256, 4, 3), (32, 256, 4, 4), (16, 256, 4, 4), (128, 64, 8, 4),
]  # fmt: skip
"""Tuples (outputs, summands, warps, stages)."""
DESCRIBED_BLOCKS = [
    (0, 64, 128, 4, 6), (0, 64, 128, 4, 4), (0, 64, 64, 4, 6), (0, 64, 128, 8, 3), (0, 128, 64, 8, 4),
    (64, 16, 128, 4, 6), (64, 32, 128, 4, 6), (64, 32, 128, 4, 4), (64, 64, 64, 4, 5), (64, 128, 64, 4, 4),
    (128, 32, 128, 4, 4), (128, 64, 64, 4, 5), (128, 64, 128, 4, 3), (128, 128, 64, 8, 4), (256, 64, 64, 8, 4),
]  # fmt: skip
"""Tuples (tokens, outputs, summands, warps, stages) for tiles by descriptors. Tokens are a tile's rows, unless their
number is 0: then they are its columns, all at once up to 128."""
COLUMNS_MAX = 128
VALUES = range(16, 257)
"""Numbers of weight values that a thread of a matrix-vector kernel may hold."""


def candidates(product: Product, tokens: int, card: Card) -> list[Blocks]:
    """Blocks to try, those whose stages fit the card's shared memory."""
    _, k, mode = product
    if tokens > GEMV_TOKENS:
        block_t = min(COLUMNS_MAX, block_tokens(tokens))
        all_blocks = [Blocks(block_t, n, block_k, warps, stages) for n, block_k, warps, stages in GEMM_BLOCKS]
        if card.descriptors:
            all_blocks += [
                Blocks(t or block_t, n, block_k, warps, stages, token_rows=t > 0, described=True, prefetch=prefetch)
                for t, n, block_k, warps, stages in DESCRIBED_BLOCKS
                for prefetch in (True, False)
                if t <= max(64, block_tokens(tokens))
            ]
        itemsize = torch.bfloat16.itemsize
        return [blocks for blocks in all_blocks if card.fits(blocks.stages, blocks.stage_bytes(mode, itemsize))]
    width = triton.next_power_of_2(k) * (2 if mode == GATED.value else 1)
    return [
        Blocks(1, rows, k, warps, 1)
        for rows, warps in itertools.product((1, 2, 4, 8, 16), (1, 2, 4, 8))
        if rows * width // (32 * warps) in VALUES
    ]


def compile_ahead(job: tuple[Product, int, Blocks]) -> bool:
    """Compiles one kernel, in a process of its own. Returns False if it cannot be compiled."""
    (n, k, mode), tokens, blocks = job
    kind: dict[str, Any] = {"dtype": torch.bfloat16, "device": DEVICE}
    x, weight = torch.zeros(tokens, k, **kind), torch.zeros(2 * n if mode == GATED.value else n, k, **kind)
    out, bias = torch.zeros(tokens, n, **kind), torch.zeros(n, **kind)
    launch = launcher(dependent=True)
    try:
        if tokens <= GEMV_TOKENS:
            norm = None if mode in (ADD.value, BIAS.value) else (torch.ones(k, **kind), 1e-6)
            gemv(launch, x, weight, out, mode=mode, bias=bias, norm=norm, blocks=blocks)
        elif mode == ADD.value:
            parts = torch.zeros(splits(n, k, launch.card.multiprocessors), tokens, n, device=DEVICE)
            gemm(launch, x, weight, parts, mode=PARTS.value, blocks=blocks)
        else:
            gemm(launch, x, weight, out, mode=mode, bias=bias, blocks=blocks)
        torch.cuda.synchronize()
    except Exception as failure:
        print(job, str(failure)[:100], flush=True)
        return False
    return True


class Chosen:
    """Overrides the blocks of the products that are tried. The others keep those of gpu/linear.py."""

    def __init__(self, tokens: int) -> None:
        self.tokens, self.blocks = tokens, dict[Product, Blocks]()
        for name in ("gemv", "gemm"):
            setattr(stack, name, getattr(self, name))

    def gemv(self, launch: Launcher, x: Tensor, weight: Tensor, out: Tensor, *, mode: int = 0, **rest: Any) -> None:
        gemv(launch, x, weight, out, mode=mode, blocks=self.blocks.get((out.shape[1], x.shape[1], mode)), **rest)

    def gemm(self, launch: Launcher, x: Tensor, weight: Tensor, out: Tensor, *, mode: int = 0, **rest: Any) -> None:
        product = (out.shape[-1], x.shape[1], ADD.value if mode == PARTS.value else mode)
        # A frame begins with two tokens per row.
        blocks = self.blocks.get(product) if len(x) == self.tokens else None
        gemm(launch, x, weight, out, mode=mode, blocks=blocks, **rest)


def time_frame(model: FrameModel, batch: int, context: int) -> float:
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    graphs = Graphs(stream, eager=False)
    with torch.cuda.stream(stream):
        graphs.record(batch, lambda: model.frame(batch))
        model.tables.frames[:], model.tables.positions[:] = 0, context
        return median_ms(partial(graphs.replay, batch))


def tune(size: str, batch: int, context: int, chosen: Chosen, works: Callable[[Any], bool]) -> dict[str, Any]:
    """Maps each product to pairs (blocks, milliseconds per frame), best first."""
    model = build(size, torch.bfloat16, batch, context + 200, dependent=True)
    model.rows[:] = torch.arange(batch, device=DEVICE)
    card = model.launch.card
    result: dict[str, Any] = {"before": round(time_frame(model, batch, context), 4)}
    for product in PRODUCTS[size]:
        times = []
        for blocks in candidates(product, batch, card):
            if works((product, batch, blocks)):
                chosen.blocks[product] = blocks
                times.append((round(time_frame(model, batch, context), 4), blocks))
        times.sort(key=lambda pair: pair[0])
        chosen.blocks[product] = times[0][1]
        result[str(product)] = [(str(blocks), ms) for ms, blocks in times]
        print(size, batch, product, [(ms, blocks.n, blocks.k, blocks.warps, blocks.stages) for ms, blocks in times[:6]])
    result["after"] = round(time_frame(model, batch, context), 4)
    print(size, batch, "before", result["before"], "after", result["after"], flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sizes", nargs="+", choices=list(PRODUCTS), default=list(PRODUCTS))
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--context", type=int, default=200)
    args = parser.parse_args()
    began_s = time.perf_counter()
    card = Card.of(DEVICE)
    jobs = [
        (product, batch, blocks)
        for size in args.sizes
        for batch in args.batches
        for product in PRODUCTS[size]
        for blocks in candidates(product, batch, card)
    ]
    with multiprocessing.get_context("spawn").Pool(16) as pool:
        compiled = dict(zip(jobs, pool.map(compile_ahead, jobs, chunksize=4), strict=True))
    print(f"compiled {len(jobs)} in {time.perf_counter() - began_s:.0f} s", flush=True)
    result: dict[str, Any] = {"card": torch.cuda.get_device_name(), "torch": torch.__version__}
    with torch.inference_mode():
        for batch in args.batches:
            chosen = Chosen(batch)
            for size in args.sizes:
                result[f"{size} {batch}"] = tune(size, batch, args.context, chosen, lambda job: compiled[job])
                args.out.write_text(json.dumps(result, indent=1))
    print(f"done in {time.perf_counter() - began_s:.0f} s", flush=True)


if __name__ == "__main__":
    main()
