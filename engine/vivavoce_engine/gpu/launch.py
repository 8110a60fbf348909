"""The launcher of every kernel.

With programmatic dependent launch (PDL), on cards of compute capability 9.0 and above, a kernel begins while the kernel
in front of it ends. Kernels that support this have a constant DEPENDENT, False by default. If it is set, they first
load values that the kernel in front does not write, and then wait for its end. Only the launcher sets it.
"""

from typing import Any

import torch
from triton.runtime import JITFunction

DEPENDENT = "DEPENDENT"
CAPABILITY = (9, 0)
"""Compute capability of the first cards with programmatic dependent launch (Hopper)."""


class Launcher:
    """Launches kernels, compiled or in Triton's interpreter.

    `dependent`: whether kernels that support it begin while the kernel in front of them ends. The interpreter ignores
    it.
    """

    def __init__(self, *, dependent: bool = False) -> None:
        self.dependent = dependent

    @classmethod
    def of(cls, device: torch.device) -> "Launcher":
        """Returns the launcher of a device, dependent if the hardware supports it."""
        return cls(dependent=device.type == "cuda" and torch.cuda.get_device_capability(device) >= CAPABILITY)

    def __call__(self, kernel: Any, grid: tuple[int, ...], *arguments: Any, **meta: Any) -> None:  # noqa: ANN401
        """Launches `kernel` on `grid`. `meta` has its constants by name, and Triton's options, such as num_warps."""
        if self.dependent and isinstance(kernel, JITFunction) and DEPENDENT in kernel.arg_names:
            meta |= {DEPENDENT: True, "launch_pdl": True}
        kernel[grid](*arguments, **meta)
