"""Numbered slots that utterances own while they run: rows of the runner's tables, and pages of its KV cache."""

import heapq
from collections.abc import Iterable


class Slots:
    """Hands out the lowest free slot first, so that running rows stay together and a slice can replace a gather."""

    def __init__(self, name: str, count: int) -> None:
        self.name = name
        self.count = count
        self._free = list(range(count))
        self._used: set[int] = set()

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self) -> int:
        assert self._free, f"no {self.name} is free"
        slot = heapq.heappop(self._free)
        self._used.add(slot)
        return slot

    def release(self, slot: int) -> None:
        assert slot in self._used, f"{self.name} {slot} is not in use"
        self._used.remove(slot)
        heapq.heappush(self._free, slot)

    def check_integrity(self, expected_used: Iterable[int]) -> None:
        """Raises AssertionError if a slot leaked or has two owners."""
        used, owned = sorted(self._used), sorted(expected_used)
        assert used == owned, f"{self.name}s in use {used}, owned by utterances {owned}"
        assert len(self._free) + len(used) == self.count, f"a {self.name} is lost"
