"""The card that kernels run on. Tiles, pipeline stages, splits and dependent launches follow from its numbers.

Choices were measured on an H200. A card with less shared memory gets fewer stages of the same tiles, and a card with
another number of multiprocessors gets another number of programs.
"""

import logging
import os
from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
from triton.compiler import compiler

from vivavoce_engine.config import CARD_VARIABLE, card_fields

log = logging.getLogger(__name__)

RESERVE_BYTES = 2048
"""Shared memory that tiles leave free. A kernel needs it for barriers and for sums across warps."""
HOPPER = (9, 0)
"""Compute capability of the first cards with programmatic dependent launch."""
SHARED_OPERANDS = (9, 10)
"""Major capabilities whose tensor cores read operands from shared memory. There, a tile stays until its product ends.
Other tensor cores read registers, and free the tile that they work on."""


@dataclass(frozen=True, slots=True)
class Card:
    """The numbers of a card that launches depend on."""

    name: str
    capability: tuple[int, int]
    """CUDA's compute capability, major and minor."""
    shared_bytes: int
    """Shared memory that one program may have."""
    multiprocessors: int
    dependent_launch: bool
    """True if a kernel may begin while the kernel in front of it ends."""
    descriptors: bool = False
    """True if products fetch their tiles by descriptors."""
    fast_cosine: bool = False
    """True if kernels may use NVIDIA's instruction for a cosine."""

    @classmethod
    def of(cls, device: torch.device) -> "Card":
        """Returns the card of a device, with the fields that VIVAVOCE_CARD overrides. For a CPU, where Triton's
        interpreter runs the kernels, it is an H200 without dependent launch.

        Raises:
            ValueError: VIVAVOCE_CARD has an unknown field or a value that cannot be read.
        """
        card = _of_cuda(device) if device.type == "cuda" else H200
        if changes := overrides(os.environ.get(CARD_VARIABLE, "")):
            card = replace(card, name=f"{card.name}, overridden", **changes)
            if "shared_bytes" in changes:
                _limit_shared_bytes(card.shared_bytes)
            log.warning("%s overrides the card: %s", CARD_VARIABLE, card)
        return (
            card
            if device.type == "cuda"
            else replace(card, dependent_launch=False, descriptors=False, fast_cosine=False)
        )

    def held(self, stages: int) -> int:
        """Returns the number of stages whose tiles are in shared memory at the same time, of a product with `stages`
        pipeline stages."""
        return stages if self.capability[0] in SHARED_OPERANDS else max(1, stages - 1)

    def fits(self, stages: int, stage_bytes: int) -> bool:
        """True if a product with `stages` pipeline stages, `stage_bytes` of tiles each, fits the shared memory."""
        return self.held(stages) * stage_bytes <= self.shared_bytes - RESERVE_BYTES

    def stages(self, most: int, stage_bytes: int) -> int:
        """Returns the largest number of pipeline stages up to `most` that fits, or 1 if none does."""
        return next((stages for stages in range(most, 1, -1) if self.fits(stages, stage_bytes)), 1)

    def __str__(self) -> str:
        major, minor = self.capability
        dependent = "dependent launch" if self.dependent_launch else "no dependent launch"
        return (
            f"{self.name} (sm_{major}{minor}, {self.multiprocessors} multiprocessors, "
            f"{self.shared_bytes} bytes of shared memory, {dependent})"
        )


H200 = Card("NVIDIA H200", (9, 0), 232_448, 132, dependent_launch=True, descriptors=True, fast_cosine=True)
"""The card that the tables of tiles were measured on, and that stands for any where there is none. An H100 SXM has the
same numbers."""


def _of_cuda(device: torch.device) -> Card:
    found = torch.cuda.get_device_properties(device)
    capability = (found.major, found.minor)
    # PyTorch reports the larger limit, which a kernel must ask for, of NVIDIA's cards alone.
    shared_bytes = getattr(found, "shared_memory_per_block_optin", found.shared_memory_per_block)
    return Card(
        found.name,
        capability,
        shared_bytes,
        found.multi_processor_count,
        has_dependent_launch(capability),
        has_descriptors(capability),
        fast_cosine=torch.version.hip is None,
    )


def has_dependent_launch(capability: tuple[int, int]) -> bool:
    """True if kernels for this compute capability may begin early. AMD's cards count their capabilities otherwise."""
    return capability >= HOPPER and torch.version.hip is None


def has_descriptors(capability: tuple[int, int]) -> bool:
    """True if products fetch their tiles by descriptors on cards of this compute capability. Later cards than Hopper's
    could, and were not measured."""
    return capability[0] == HOPPER[0] and torch.version.hip is None


def overrides(text: str) -> dict[str, Any]:
    """Reads fields of a card from words `name=value`. A capability brings its dependent launch along.

    Raises:
        ValueError: names the field that is unknown or cannot be read.
    """
    changes = card_fields(text)
    if "capability" in changes:
        changes.setdefault("dependent_launch", has_dependent_launch(changes["capability"]))
        changes.setdefault("descriptors", has_descriptors(changes["capability"]))
    return changes


def _limit_shared_bytes(limit: int) -> None:
    """Makes Triton refuse a kernel that needs more shared memory, as on a card that has no more.

    The function that is replaced is a private part of Triton 3.6.0 and 3.7.1.
    """
    if not hasattr(compiler, "max_shared_mem"):
        raise ValueError(f"{CARD_VARIABLE} cannot limit shared_bytes with Triton {triton.__version__}")
    compiler.max_shared_mem = lambda _: limit
