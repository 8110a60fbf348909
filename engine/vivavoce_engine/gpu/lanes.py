"""CUDA streams, and points in their work that others wait for."""

import contextlib
from collections.abc import Iterator

import torch


class Mark:
    """A point in a lane's work that can be waited for; on a CPU all before it is done at once."""

    def __init__(self, event: "torch.cuda.Event | None") -> None:
        self.event = event

    def synchronize(self) -> None:
        if self.event is not None:
            self.event.synchronize()


class Lane:
    """Work on the device that is done in the order in which it is asked for, beside other lanes: a CUDA stream."""

    def __init__(self, device: torch.device, priority: int) -> None:
        self._device = device
        self.stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self.stream = torch.cuda.Stream(device, priority)  # type: ignore[no-untyped-call]
            self.stream.wait_stream(torch.cuda.default_stream(device))  # on which the weights were made

    @contextlib.contextmanager
    def used(self, after: Mark | None = None) -> Iterator[None]:
        """What is asked of the device in here goes on this lane, after a mark of another."""
        if self.stream is None:
            yield
            return
        if after is not None and after.event is not None:
            self.stream.wait_event(after.event)
        with torch.cuda.device(self._device), torch.cuda.stream(self.stream):
            yield

    def mark(self) -> Mark:
        return Mark(None if self.stream is None else self.stream.record_event())

    def synchronize(self) -> None:
        if self.stream is not None:
            self.stream.synchronize()
