"""CUDA streams, and events in them that other streams wait for."""

import contextlib
from collections.abc import Iterator

import torch


class DeviceEvent:
    """A point in a stream's work that can be waited for. On a CPU all work before it is already done."""

    def __init__(self, event: "torch.cuda.Event | None") -> None:
        self.event = event

    def synchronize(self) -> None:
        if self.event is not None:
            self.event.synchronize()


class DeviceStream:
    """Work that the device does in the order of its requests, concurrently with other streams: a CUDA stream. On a CPU
    it does nothing."""

    def __init__(self, device: torch.device, priority: int) -> None:
        self._device = device
        self.stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self.stream = torch.cuda.Stream(device, priority)  # type: ignore[no-untyped-call]
            self.stream.wait_stream(torch.cuda.default_stream(device))  # the weights were made on it

    @contextlib.contextmanager
    def current(self, after: DeviceEvent | None = None) -> Iterator[None]:
        """Puts all launches of this context on the stream, after an event of another stream."""
        if self.stream is None:
            yield
            return
        if after is not None and after.event is not None:
            self.stream.wait_event(after.event)
        with torch.cuda.device(self._device), torch.cuda.stream(self.stream):
            yield

    def record_event(self) -> DeviceEvent:
        """Returns an event behind all work that the stream has so far."""
        return DeviceEvent(None if self.stream is None else self.stream.record_event())

    def synchronize(self) -> None:
        if self.stream is not None:
            self.stream.synchronize()
