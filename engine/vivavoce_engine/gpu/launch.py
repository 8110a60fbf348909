"""The one way to launch a kernel.

Programmatic dependent launch (PDL), on cards of compute capability 9.0 and above, lets a kernel begin while the kernel
before it ends. Kernels that make use of it have a constant DEPENDENT, False by default. With it they first load what
no kernel writes meanwhile, then wait for the kernel before them. A Launcher alone decides whether they do.
"""

from typing import Any

import torch
from triton.runtime import JITFunction

DEPENDENT = "DEPENDENT"
CAPABILITY = (9, 0)
"""Compute capability of the first cards that have programmatic dependent launch (Hopper)."""


class Launcher:
    """Launches kernels, compiled or in Triton's interpreter.

    `dependent`: whether kernels that can are launched dependent on the one before; never so in the interpreter.
    """

    def __init__(self, *, dependent: bool = False) -> None:
        self.dependent = dependent

    @classmethod
    def of(cls, device: torch.device) -> "Launcher":
        """The launcher for a device: dependent wherever its hardware can."""
        return cls(dependent=device.type == "cuda" and torch.cuda.get_device_capability(device) >= CAPABILITY)

    def __call__(self, kernel: Any, grid: tuple[int, ...], *arguments: Any, **meta: Any) -> None:  # noqa: ANN401
        """Launches `kernel` on `grid`. `meta`: its constants by name, and Triton's options, such as num_warps."""
        if self.dependent and isinstance(kernel, JITFunction) and DEPENDENT in kernel.arg_names:
            meta |= {DEPENDENT: True, "launch_pdl": True}
        kernel[grid](*arguments, **meta)
