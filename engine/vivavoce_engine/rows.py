"""Row slots: every table of the runner has `count` rows, and an utterance owns one of them while it runs."""

import heapq


class Rows:
    """Hands out the lowest free row first, so that running rows stay close together (a slice instead of a gather)."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = list(range(count))
        self._used: set[int] = set()

    def can_admit(self) -> bool:
        return bool(self._free)

    def admit(self) -> int:
        assert self.can_admit(), "ask can_admit first"
        row = heapq.heappop(self._free)
        self._used.add(row)
        return row

    def release(self, row: int) -> None:
        assert row in self._used, f"row {row} is not in use"
        self._used.remove(row)
        heapq.heappush(self._free, row)

    def check_integrity(self, expected_used: set[int]) -> None:
        """Raises AssertionError if a row leaked or is owned twice."""
        assert self._used == expected_used, f"rows in use {self._used}, owned by utterances {expected_used}"
        assert len(self._free) + len(self._used) == self.count, "a row is lost"
