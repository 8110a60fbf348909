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


def resolve_device(name: str) -> str:
    """`auto` is the first CUDA card, or the CPU."""
    return ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """`auto` is what the released weights are in on a GPU, and float32 on a CPU, which computes it faster."""
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if name not in dtypes:
        raise ValueError(f"dtype must be auto, {', '.join(dtypes)}; not {name!r}")
    return dtypes[name]
