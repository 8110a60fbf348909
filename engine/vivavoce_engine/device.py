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


def resolve_device(name: str) -> str:
    """Resolves `auto` to the first CUDA card, or to the CPU if there is none."""
    return ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """Resolves `auto` to bfloat16 on a GPU, as the released weights are, and to float32, which is faster, on a CPU."""
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if name not in dtypes:
        raise ValueError(f"dtype must be auto, {', '.join(dtypes)}; not {name!r}")
    return dtypes[name]
