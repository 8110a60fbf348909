"""Small copies between host and device that nobody waits for: they go through pinned memory.

PyTorch's pinned allocator does not give memory away while a copy from or to it is under way.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def to_device(host: Tensor, device: torch.device) -> Tensor:
    """A copy on the device; on a CPU the tensor itself."""
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host


def copy_into(target: Tensor, values: list[int] | NDArray[np.int64]) -> None:
    """values → the first of target."""
    host = torch.empty(np.shape(values), dtype=target.dtype, pin_memory=target.is_cuda)
    host.numpy()[:] = values
    target[: len(values)].copy_(host, non_blocking=True)


def to_host(source: Tensor) -> Tensor:
    """A copy on the host, to be read once the device is done."""
    host = torch.empty(source.shape, dtype=source.dtype, pin_memory=source.is_cuda)
    return host.copy_(source, non_blocking=True)
