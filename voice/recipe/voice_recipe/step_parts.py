"""A training step in parts: one first, several that do not need each other, one last. On a GPU each is a CUDA graph.

A step of the decoder has about three thousand small kernels, most of them in its critics. In one graph they run one
after the other, and each leaves most of the card idle. As graphs of their own, the critics run side by side.
"""

# Some of torch's own methods carry no types.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch.cuda import _POOL_HANDLE

Work = Callable[[], None]
WARM_UP_ROUNDS, TIMED_ROUNDS = 3, 10


class StepParts:
    """The parts of a step. They exchange data in buffers that stay where they are.

    The first part may leave an autograd graph behind, which the last one uses up.
    """

    def __init__(self, first: Work, beside: Sequence[Work], last: Work) -> None:
        self.first, self.beside, self.last = first, list(beside), last
        self.graphs: list[torch.cuda.CUDAGraph] = []  # of the first part, the last one, and those in between
        self.streams: list[torch.cuda.Stream] = []  # empty: one after the other

    def run(self, beside: int) -> None:
        """Run the first part, the given number of parts in between, and the last one."""
        if not self.graphs:
            for work in (self.first, *self.beside[:beside], self.last):
                work()
            return
        first, last, *between = self.graphs
        first.replay()
        home = torch.cuda.current_stream()
        for stream, graph in zip(self.streams or [home] * len(between), between[:beside], strict=False):
            stream.wait_stream(home)
            with torch.cuda.stream(stream):
                graph.replay()
        for stream in self.streams[:beside]:
            home.wait_stream(stream)
        last.replay()

    def capture(self) -> None:
        """Capture every part in a stream of its own, because parts in one stream would share the workspace of cuBLAS.

        First and last part share a stream and their memory: autograd runs backward where forward ran.
        """
        home, main = torch.cuda.current_stream(), torch.cuda.Stream()
        own = [torch.cuda.Stream() for _ in self.beside]
        places = [main, *own, main]
        for _ in range(WARM_UP_ROUNDS):  # a capture needs its kernels chosen and its workspaces allocated
            for stream, work in zip(places, (self.first, *self.beside, self.last), strict=True):
                with torch.cuda.stream(stream):
                    work()
                torch.cuda.synchronize()
        pool, made = torch.cuda.graph_pool_handle(), []
        try:
            for stream, work in zip(places, (self.first, *self.beside, self.last), strict=True):
                made.append(_recorded(work, stream, pool if stream is main else None))
        finally:
            torch.cuda.set_stream(home)
        self.graphs, self.streams = [made[0], made[-1], *made[1:-1]], own

    def milliseconds(self) -> list[float]:
        """Time of the first part, of the last one, of each in between alone, and of a whole step.

        The best of three means, because other stages may share the card.
        """
        runs: list[Work] = [graph.replay for graph in self.graphs]
        return [_milliseconds(run) for run in (*runs, lambda: self.run(len(self.beside)))]


def _recorded(work: Work, stream: torch.cuda.Stream, pool: _POOL_HANDLE | None) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, stream=stream):
        work()
    return graph


def _milliseconds(run: Work) -> float:
    best = float("inf")
    for _ in range(3):
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(TIMED_ROUNDS):
            run()
        torch.cuda.synchronize()
        best = min(best, (time.perf_counter() - started) * 1e3 / TIMED_ROUNDS)
    return best
