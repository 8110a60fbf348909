"""The attention head of a talker that follows the text it speaks, from which the times of words are read."""

from dataclasses import dataclass
from math import isfinite

from vivavoce_engine.checkpoint.json_file import JsonFile
from vivavoce_engine.errors import CheckpointError
from vivavoce_engine.request import ALIGNMENT_OFFSET_MAX_MS


@dataclass(frozen=True, slots=True)
class Alignment:
    """Head `head` of layer `layer`, both counted from 0, looks at the text token that sounds at the time.

    `offset_ms` is its constant error: the head's time minus the true time. It is negative if the head is early.
    """

    layer: int
    head: int
    offset_ms: float

    def error(self, layers: int, heads: int) -> str | None:
        """The reason for which a talker of this size has no such head; None if it has."""
        if self.layer < layers and self.head < heads:
            return None
        return (
            f"there is no head {self.layer}.{self.head}: the talker has {layers} layers of {heads} heads, "
            f"counted from 0.0 to {layers - 1}.{heads - 1}"
        )


def read_alignment(file: JsonFile, layers: int, heads: int) -> Alignment | None:
    """Reads `alignment_heads` ([[layer, head]]) and `alignment_offset_ms`; None if neither is there.

    Raises:
        CheckpointError: one of them is missing or wrong, or the talker has no such head.
    """
    pair, offset = "alignment_heads", "alignment_offset_ms"
    if not file.has(pair) and not file.has(offset):
        return None
    for key, other in ((pair, offset), (offset, pair)):
        if not file.has(key):
            raise CheckpointError(f"{file.where(key)} is missing; it belongs to {other}")
    value = file.value(pair, list)
    if len(value) != 1 or not is_pair(value[0]):
        raise CheckpointError(f"{file.where(pair)} must be one pair [[layer, head]], such as [[3, 4]], not {value!r}")
    offset_ms = file.value(offset, float)
    if not isfinite(offset_ms) or abs(offset_ms) > ALIGNMENT_OFFSET_MAX_MS:
        limits = f"from {-ALIGNMENT_OFFSET_MAX_MS} to {ALIGNMENT_OFFSET_MAX_MS}"
        raise CheckpointError(f"{file.where(offset)} must be {limits}, not {offset_ms}")
    alignment = Alignment(value[0][0], value[0][1], offset_ms)
    if error := alignment.error(layers, heads):
        raise CheckpointError(f"{file.where(pair)}: {error}")
    return alignment


def is_pair(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(type(item) is int and item >= 0 for item in value)
