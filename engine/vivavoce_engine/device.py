"""The device and dtype of an engine, and small copies between host and device that do not block the host.

The copies go through pinned memory. PyTorch's pinned allocator does not reuse memory while a copy still reads or
writes it.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def to_device(host: Tensor, device: torch.device) -> Tensor:
    """Copies a host tensor to the device. On a CPU it returns the tensor itself."""
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host


def copy_into(target: Tensor, values: list[int] | NDArray[np.int64]) -> None:
    """Writes values [n] to the first n elements of target."""
    host = torch.empty(np.shape(values), dtype=target.dtype, pin_memory=target.is_cuda)
    host.numpy()[:] = values
    target[: len(values)].copy_(host, non_blocking=True)


def to_host(source: Tensor) -> Tensor:
    """Starts a copy to the host. Read it only after the device has finished."""
    host = torch.empty(source.shape, dtype=source.dtype, pin_memory=source.is_cuda)
    return host.copy_(source, non_blocking=True)


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """Resolves `auto` to bfloat16 on cards that multiply it, as the released weights are, and to float32 elsewhere.

    A CPU is faster in float32. An older card would be faster in float16, but the weights may exceed its range.
    """
    if name == "auto":
        ampere = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
        return torch.bfloat16 if ampere else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[name]
