"""A row's state of Code2Wav: the last inputs of each of its modules, in one array, and where they lie in it."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Activation(Protocol):
    """A function of each value alone, which can write into memory that is given."""

    def __call__(self, x: Tensor, out: Tensor | None = None) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class Slot:
    """A module's place in a row's state: its last `keep` inputs of `channels` values.

    Its inputs begin at number `begins` of the row's first frame. Those before it do not exist, and count as zeros.
    """

    offset: int
    channels: int
    keep: int
    begins: int


class StateLayout:
    """Collects the slots while the decoder is built, from its input on. A row's state then has `size` values.

    If `trims_start` is true, an upsampling module gives no output that lacks one of its inputs, so those of a row's
    first frame `begins` later behind it.
    """

    def __init__(self, trims_start: bool = False) -> None:
        self.size = 0
        self.begins = 0
        self._trims_start = trims_start

    def add(self, channels: int, keep: int) -> Slot:
        slot = Slot(self.size, channels, keep, self.begins)
        self.size += channels * keep
        return slot

    def upsample(self, taps: int, stride: int) -> None:
        """Goes on behind a module of which each input, with the `taps` - 1 before it, gives `stride` outputs."""
        missing = taps - 1 if self._trims_start else 0
        self.begins = (self.begins + missing) * stride


class StreamState:
    """The state of a batch of rows during one call: gathered before it, scattered after it.

    flat [B, layout.size]; `position` [B] int64 counts the frames that each row has decoded before. `moved` is the state
    after the call, complete once every module has joined. The call's steps are computed as `items` products of one
    shape: one for each frame of each row, or fewer.
    """

    def __init__(self, flat: Tensor, position: Tensor, items: int) -> None:
        assert position.shape == flat.shape[:1]
        assert items % len(flat) == 0
        self.position = position
        self.items = items
        self.moved = torch.empty_like(flat)
        self._flat = flat

    def join(self, slot: Slot, x: Tensor, snake: Activation | None = None) -> Tensor:
        """Puts the slot's history in front of x [B, T, channels], or of snake(x), and keeps the new end.

        Returns [B, keep + T, channels].
        """
        if slot.keep == 0:
            return snake(x) if snake else x
        joined = x.new_empty(x.shape[0], slot.keep + x.shape[1], slot.channels)
        joined[:, : slot.keep] = self._part(self._flat, slot)
        new = joined[:, slot.keep :]
        if snake:
            snake(x, out=new)
        else:
            new.copy_(x)
        if slot.begins:
            new[:, : slot.begins].masked_fill_((self.position == 0)[:, None, None], 0)
        self._part(self.moved, slot).copy_(joined[:, -slot.keep :])
        return joined

    @staticmethod
    def _part(flat: Tensor, slot: Slot) -> Tensor:
        end = slot.offset + slot.keep * slot.channels
        return flat[:, slot.offset : end].view(-1, slot.keep, slot.channels)


def item_windows(joined: Tensor, items: int, steps: int) -> Tensor:
    """joined [B, keep + T, channels], of which each of `items` has `steps` of the T and what stands before them →
    [items, keep + steps, channels]."""
    keep = joined.shape[1] - items // len(joined) * steps
    return joined.unfold(1, keep + steps, steps).transpose(2, 3).reshape(items, keep + steps, -1)
