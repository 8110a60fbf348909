"""Attention scores of one head of the talker, which a frame keeps for the host.

The layer's attention writes a row's scores of all positions to `table`, and the kernel that ends the frame takes those
of the row's window out of it. Both kernels do so beside their work: no sum depends on it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from vivavoce_engine.batching.text_paths import WINDOW


@dataclass(frozen=True, slots=True)
class Scores:
    """Scores q · k / sqrt(D) of query head `head` of layer `layer`, of the token that a row's frame has added."""

    layer: int
    head: int
    table: Tensor
    """[rows, positions] float32: a row's line is valid up to the position of its last token."""
    first: Tensor
    """[batch] int64: position of the first score that is taken of each row of the next step."""
    window: Tensor
    """[batch, WINDOW] float32: the scores taken, -inf for positions behind the row's last token."""

    def __post_init__(self) -> None:
        assert all(part.is_contiguous() for part in (self.table, self.first, self.window))
        assert self.table.dtype == self.window.dtype == torch.float32
        assert self.first.dtype == torch.int64
        assert self.window.shape == (len(self.first), WINDOW)

    @classmethod
    def allocate(cls, layer: int, head: int, rows: int, positions: int, batch: int, device: torch.device) -> "Scores":
        return cls(
            layer,
            head,
            table=torch.zeros(rows, positions, dtype=torch.float32, device=device),
            first=torch.zeros(batch, dtype=torch.int64, device=device),
            window=torch.zeros(batch, WINDOW, dtype=torch.float32, device=device),
        )
