"""CUDA graphs by bucket size. A step's launches are recorded once, at start-up, and replayed as one launch
afterwards."""

import gc
from collections.abc import Callable, Hashable, Iterable

import torch

BATCHES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Numbers of rows that have a graph of their own. A smaller batch is padded with the dummy row."""

Launch = Callable[[], None]


def bucket_of(size: int, sizes: Iterable[int]) -> int:
    """Returns the smallest of the ascending `sizes` that holds `size`."""
    return next(bucket for bucket in sizes if bucket >= size)


def buckets(largest: int, sizes: Iterable[int] = BATCHES) -> tuple[int, ...]:
    """Returns the sizes below `largest`, and `largest` itself."""
    return (*(size for size in sizes if size < largest), largest)


class Graphs:
    """Recorded steps. With `eager`, or without a stream, steps are not captured: their kernels are launched one by one.

    A recorded step must use tensors that stay in place, and must not synchronise with the device.
    """

    def __init__(self, stream: "torch.cuda.Stream | None", eager: bool) -> None:
        self._stream = stream
        self._eager = eager or stream is None
        self._steps: dict[Hashable, Launch] = {}
        self._pool = None if self._eager else torch.cuda.graph_pool_handle()

    def record(self, key: Hashable, launch: Launch) -> None:
        """Runs `launch` once, which compiles its kernels, and records it under `key`, which runs it once more.

        Record the largest step first: the others then fit into its memory.
        """
        assert key not in self._steps
        launch()
        self._steps[key] = launch if self._eager else self._capture(launch)

    def _capture(self, launch: Launch) -> Launch:
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        # A garbage collection during the capture would free other graphs' memory, which is an error there. To collect
        # before each capture instead would take 0.2 s each.
        collecting = gc.isenabled()
        gc.disable()
        try:
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                launch()
        finally:
            if collecting:
                gc.enable()
        graph.replay()  # its first replay uploads the graph, and takes memory that another process may have later
        return graph.replay

    def __len__(self) -> int:
        return len(self._steps)

    def replay(self, key: Hashable) -> None:
        self._steps[key]()

    def launch(self, key: Hashable, otherwise: Launch) -> None:
        """Runs the step that was recorded under `key`, or `otherwise` if there is none."""
        self._steps.get(key, otherwise)()
