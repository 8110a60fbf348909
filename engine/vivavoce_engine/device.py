"""The device and dtype of an engine, and small copies between host and device that do not block the host.

The copies go through pinned memory. PyTorch's pinned allocator does not reuse memory while a copy still reads or
writes it. Where none can be pinned, copies go through ordinary memory and block the host, which is slower but right.
"""

import os
import platform
from collections.abc import Sequence as SequenceOf
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

CPU_INFO = Path("/proc/cpuinfo")
SWITCHES = (
    "ATEN_",
    "CUBLAS_",
    "DNNL_",
    "KMP_",
    "MKL_",
    "NVIDIA_",
    "OMP_",
    "ONEDNN_",
    "TORCH_",
    "TRITON_",
    "VIVAVOCE_CARD",
)
"""Beginnings of environment variables that choose among kernels."""


def use_device(device: torch.device) -> None:
    """Makes a card the current one of this thread. Call it in every thread that computes, before anything else.

    What names no card, such as pinned memory and a library's handle, goes to the current one, which is the first card
    otherwise. There it would open a second context, of some 0.4 GB.
    """
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)


def to_device(host: Tensor, device: torch.device) -> Tensor:
    """Copies a host tensor to the device. On a CPU it returns the tensor itself."""
    if device.type != "cuda":
        return host
    with suppress(RuntimeError):
        host = host.pin_memory()
    return host.to(device, non_blocking=True)


def copy_into(target: Tensor, values: list[int] | NDArray[np.int64]) -> None:
    """Writes values [n] to the first n elements of target."""
    host = staging(np.shape(values), target)
    host.numpy()[:] = values
    target[: len(values)].copy_(host, non_blocking=True)


def to_host(source: Tensor) -> Tensor:
    """Starts a copy to the host. Read it only after the device has finished."""
    host = staging(source.shape, source)
    return host.copy_(source, non_blocking=True)


def staging(shape: SequenceOf[int], like: Tensor) -> Tensor:
    """Allocates a host tensor for a copy from or to a tensor `like` this, pinned if that is on a card."""
    if like.is_cuda:
        with suppress(RuntimeError):
            return torch.empty(shape, dtype=like.dtype, pin_memory=True)
    return torch.empty(shape, dtype=like.dtype)


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    """Resolves `auto` to bfloat16 on cards that multiply it, as the released weights are, and to float32 elsewhere.

    A CPU is faster in float32. An older card would be faster in float16, but the weights may exceed its range.
    """
    if name == "auto":
        ampere = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
        return torch.bfloat16 if ampere else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[name]


def arithmetic_of(device: torch.device) -> tuple[object, ...]:
    """All of this machine and of PyTorch that the last bits of a sum may depend on. Call it with the model loaded."""
    switches = sorted(item for item in os.environ.items() if item[0].startswith(SWITCHES))
    host = (platform.machine(), cpu_model(), torch.backends.cpu.get_cpu_capability(), torch.get_num_threads())
    build = (torch.__version__, torch.__config__.show(), switches)
    if device.type != "cuda":
        return (*build, *host)
    card = torch.cuda.get_device_properties(device)
    return (*build, *host, card.name, card.major, card.minor, card.multi_processor_count)


def cpu_model() -> str:
    """The name of the processor's model, by which libraries choose kernels. Empty where the system does not tell."""
    with suppress(OSError):
        for line in CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()
