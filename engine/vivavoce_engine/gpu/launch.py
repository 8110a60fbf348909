"""The launcher of every kernel.

With programmatic dependent launch (PDL), which a card has or has not (card.py), a kernel begins while the kernel in
front of it ends. Kernels that support this have a constant DEPENDENT, False by default. If it is set, they first
load values that the kernel in front does not write, and then wait for its end. Only the launcher sets it.
"""

from typing import Any

import torch

from vivavoce_engine.gpu.card import Card

DEPENDENT = "DEPENDENT"


class Launcher:
    """Launches kernels on `card`, compiled or in Triton's interpreter.

    Kernels that support it begin while the kernel in front of them ends, if the card can do that.
    """

    def __init__(self, card: Card) -> None:
        self.card = card

    @classmethod
    def of(cls, device: torch.device) -> "Launcher":
        """Returns the launcher of a device. Raises as Card.of."""
        return cls(Card.of(device))

    def __call__(self, kernel: Any, grid: tuple[int, ...], *arguments: Any, **meta: Any) -> None:  # noqa: ANN401
        """Launches `kernel` on `grid`. `meta` has its constants by name, and Triton's options, such as num_warps."""
        if self.card.dependent_launch and DEPENDENT in kernel.arg_names:
            meta |= {DEPENDENT: True, "launch_pdl": True}
        kernel[grid](*arguments, **meta)
