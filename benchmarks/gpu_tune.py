"""Times ways to cut up the matrix products of a step on a GPU: which block sizes gpu/linear.py should choose.

    python benchmarks/gpu_tune.py --out FILE

Weights come from memory, not from the L2 cache: each timing streams through copies of the weight.
"""

import argparse
import itertools
import json
import multiprocessing
import time
import traceback
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import triton
from timing import median_ms
from vivavoce_engine.gpu.graphs import Graphs
from vivavoce_engine.gpu.linear import ADD, GATED, GEMV_TOKENS, PARTS, Blocks, gemm, gemv, splits

SHAPES = {
    "predictor qkv": (4096, 1024, 0, True),
    "predictor o": (1024, 2048, 1, False),
    "predictor gate_up": (3072, 1024, 2, True),
    "predictor down": (1024, 3072, 1, False),
    "predictor head": (2048, 1024, 0, True),
    "1.7b qkv": (4096, 2048, 0, True),
    "1.7b o": (2048, 2048, 1, False),
    "1.7b gate_up": (6144, 2048, 2, True),
    "1.7b down": (2048, 6144, 1, False),
}
COPIES_BYTES = 200_000_000
DEVICE = "cuda"


def candidates(name: str, tokens: int) -> list[tuple[Blocks, bool]]:
    """(blocks, programmatic dependent launch)."""
    _, k, mode, _ = SHAPES[name]
    if tokens <= GEMV_TOKENS:
        grid = itertools.product((4, 8, 16), (4, 8, 16), (False, True))
        wide = triton.next_power_of_2(k) * (2 if mode == GATED.value else 1)
        return [
            (Blocks(1, rows, k, warps, 1), pdl) for rows, warps, pdl in grid if 32 <= rows * wide // warps // 32 <= 160
        ]
    block_t = (64,) if tokens <= 64 else (64, 128, 256)
    blocks = itertools.product(block_t, (64, 128), (64, 128) if tokens <= 64 else (64,), (4, 8), (3, 4))
    return [(Blocks(*choice), False) for choice in blocks]


class Case:
    def __init__(self, name: str, tokens: int, copies: int | None = None) -> None:
        self.n, self.k, self.mode, self.normed = SHAPES[name]
        size = (2 * self.n if self.mode == GATED.value else self.n) * self.k
        copies = copies or max(4, COPIES_BYTES // (2 * size))
        self.bytes = 2 * size
        self.weights = [torch.randn(size // self.k, self.k, device=DEVICE).bfloat16() for _ in range(copies)]
        self.tokens = tokens
        self.x = torch.randn(tokens, self.k, device=DEVICE).bfloat16()
        self.out = torch.zeros(tokens, self.n, device=DEVICE).bfloat16()
        self.parts = torch.zeros(splits(self.n, self.k), tokens, self.n, device=DEVICE)
        self.norm = (torch.ones(self.k, device=DEVICE).bfloat16(), 1e-6) if self.normed else None

    def ours(self, blocks: Blocks, pdl: bool) -> None:
        for weight in self.weights:
            if self.tokens <= GEMV_TOKENS:
                gemv(self.x, weight, self.out, mode=self.mode, norm=self.norm, blocks=blocks, pdl=pdl)
            elif self.mode == ADD.value:
                gemm(self.x, weight, self.parts, mode=PARTS.value, blocks=blocks)
            else:
                gemm(self.x, weight, self.out, mode=self.mode, blocks=blocks)

    def library(self) -> None:
        for weight in self.weights:
            F.linear(self.x, weight)

    def time_us(self, run: Any) -> float:
        graphs = Graphs(torch.cuda.Stream(), eager=False)  # type: ignore[no-untyped-call]
        graphs.record(0, run)
        return 1000 * median_ms(lambda: graphs.replay(0), 7) / len(self.weights)


def compile_ahead(job: tuple[str, int, Blocks, bool]) -> None:
    name, tokens, blocks, pdl = job
    try:
        Case(name, tokens, copies=1).ours(blocks, pdl)
    except Exception as error:
        print(job, repr(error)[:200])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 64, 256])
    args = parser.parse_args()
    began_s = time.perf_counter()
    jobs = [(name, tokens, *how) for name in SHAPES for tokens in args.tokens for how in candidates(name, tokens)]
    with multiprocessing.get_context("spawn").Pool(16) as pool:
        pool.map(compile_ahead, jobs, chunksize=8)
    print(f"compiled {len(jobs)} in {time.perf_counter() - began_s:.0f} s", flush=True)
    result: dict[str, Any] = {"card": torch.cuda.get_device_name()}
    for name in SHAPES:
        for tokens in args.tokens:
            case = Case(name, tokens)
            timed = []
            for blocks, pdl in candidates(name, tokens):
                try:
                    timed.append(
                        (round(case.time_us(lambda c=case, b=blocks, p=pdl: c.ours(b, p)), 3), f"{blocks} pdl={pdl}")
                    )
                except Exception:
                    traceback.print_exc(limit=1)
            timed.sort()
            library_us = case.time_us(case.library)
            result[f"{name} {tokens}"] = {"library_us": library_us, "best": timed[:8], "worst": timed[-1:]}
            print(f"{name} x{tokens}: memory {case.bytes / 3.0e6:.2f} us, library {library_us:.2f}", flush=True)
            for line in timed[:4]:
                print("   ", *line, flush=True)
            args.out.write_text(json.dumps(result, indent=1))
    print(f"done in {time.perf_counter() - began_s:.0f} s", flush=True)


if __name__ == "__main__":
    main()
