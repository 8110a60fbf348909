"""Ledger: what all fronts of a server count together, in memory that they share.

It holds the running requests and the requests a minute of each key, and the open live connections. Each front writes
its places into a section of its own, which the supervisor clears when that front dies. A file lock guards the memory:
the system frees it when a process dies. Nobody holds it for longer than some microseconds, so the event loop waits for
it. A server of one process has the same ledger in memory of its own, without a lock.
"""

import fcntl
import math
import mmap
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

SLOTS = 2**16
"""Places for keys in the table, of which a key that has nothing running and nothing spent needs none."""
MAX_KEYS = SLOTS // 4
"""Most keys of a server."""
PROBES = 64
"""Slots behind the one that a key's digest names, in which the key may lie."""
FIRST_SPEECH_S = 1.0
"""Assumed duration of a key's speech before any has ended."""
SMOOTHING = 0.2
"""Weight of the duration of the latest speech."""
SECONDS_A_MINUTE = 60.0
Numbers = TypeVar("Numbers", bound=np.generic)


class NoPlace(Exception):
    """A key has as many requests running as it may. `next_end_s`: estimated seconds until one of them has ended."""

    def __init__(self, next_end_s: float) -> None:
        super().__init__(next_end_s)
        self.next_end_s = next_end_s


class NoTokens(Exception):
    """A key has made as many requests as it may. `wait_s`: seconds until it may make this one."""

    def __init__(self, wait_s: float) -> None:
        super().__init__(wait_s)
        self.wait_s = wait_s


def create_memory(fronts: int) -> int:
    """The descriptor of zeroed memory for the ledger of this many fronts. It has no name, and goes with its holders."""
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("vivavoce-ledger")
    else:
        with tempfile.TemporaryFile() as temporary:
            file = os.dup(temporary.fileno())
    os.ftruncate(file, _layout(fronts).itemsize)
    return file


def _layout(fronts: int) -> np.dtype[np.void]:
    return np.dtype(
        [
            ("sessions", "u4", (fronts,)),
            ("keyless", "u4", (fronts,)),
            ("connections", "u4", (fronts,)),
            ("keys", "u8", (SLOTS,)),
            ("per_minute", "u4", (SLOTS,)),
            ("tokens", "f8", (SLOTS,)),
            ("filled_s", "f8", (SLOTS,)),
            ("speech_s", "f8", (SLOTS,)),
            ("running", "u4", (fronts, SLOTS)),
            ("oldest_s", "f8", (fronts, SLOTS)),
        ],
        align=True,
    )


class Ledger:
    """The ledger as one front sees it. Only that front's event loop uses it. Times are of time.monotonic."""

    def __init__(self, fronts: int = 1, front: int = 0, file: int | None = None) -> None:
        """`front` is the number of the own section, of `fronts`. `file` is that of `create_memory`; None: private."""
        layout = _layout(fronts)
        table = np.zeros((), layout) if file is None else np.ndarray((), layout, mmap.mmap(file, layout.itemsize))
        self.front = front
        self._file = file
        self._sessions: NDArray[np.uint32] = table["sessions"]
        self._keyless: NDArray[np.uint32] = table["keyless"]
        self._connections: NDArray[np.uint32] = table["connections"]
        """Open connections of each front, and one more; 0 for a front that accepts none."""
        self._keys: NDArray[np.uint64] = table["keys"]
        """Digests of the keys; 0 where there was none yet."""
        self.per_minute: NDArray[np.uint32] = table["per_minute"]
        """Limit for which `tokens` are counted; 0 for none."""
        self.tokens: NDArray[np.float64] = table["tokens"]
        self.filled_s: NDArray[np.float64] = table["filled_s"]
        """Time at which `tokens` were right."""
        self.speech_s: NDArray[np.float64] = table["speech_s"]
        """Mean duration of the speech that has ended lately."""
        self.running: NDArray[np.uint32] = table["running"]
        """[fronts, slots]"""
        self.oldest_s: NDArray[np.float64] = table["oldest_s"]
        """[fronts, slots] Beginning of the oldest request that runs; what it is without one says nothing."""

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps all other processes out."""
        if self._file is None:
            yield
            return
        fcntl.lockf(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)

    def account(self, digest: bytes) -> "Account":
        """The account of a key with this digest."""
        return Account(self, int.from_bytes(digest[:8], "little") or 1)

    def clear(self, front: int) -> None:
        """Gives back whatever a front held that has died."""
        with self.locked():
            self._sessions[front] = 0
            self._keyless[front] = 0
            self._connections[front] = 0
            self.running[front] = 0

    # ---- connections ------------------------------------------------------------------------------------------

    def count_connections(self, connections: int | None) -> None:
        """Sets the number of own connections of any kind; None while none is accepted."""
        self._connections[self.front] = 0 if connections is None else connections + 1

    @property
    def is_ahead(self) -> bool:
        """True if another front that accepts has fewer connections, by more than a sixteenth."""
        counts = self._connections[self._connections > 0]
        least = int(counts.min()) if len(counts) else 0
        return int(self._connections[self.front]) > least + least // 16

    # ---- live connections -------------------------------------------------------------------------------------

    @property
    def sessions(self) -> int:
        """Number of open live connections of all fronts whose key is known, if there are keys."""
        return int(self._sessions.sum())

    @property
    def keyless(self) -> int:
        """Number of open live connections of all fronts that have not sent a key yet."""
        return int(self._keyless.sum())

    def take_session(self, most: int) -> bool:
        """Counts one more live connection unless `most` are open."""
        with self.locked():
            if self.sessions >= most:
                return False
            self._sessions[self.front] += 1
            return True

    def give_session(self) -> None:
        with self.locked():
            self._sessions[self.front] -= 1

    def count_keyless(self, connections: int) -> None:
        """Sets the number of own live connections that have not sent a key yet."""
        self._keyless[self.front] = connections

    # ---- for accounts, with the lock held ---------------------------------------------------------------------

    def slot_of(self, key: int, now_s: float) -> int:
        """The slot of a key. One that has none takes a slot that was never used, or one that says nothing any more."""
        free: int | None = None
        for probe in range(PROBES):
            slot = (key + probe) % SLOTS
            holder = int(self._keys[slot])
            if holder == key:
                return slot
            if holder == 0:
                free = slot
                break
            if free is None and self._is_idle(slot, now_s):
                free = slot
        assert free is not None, "there are four times as many slots as keys"
        self._keys[free] = key
        self.per_minute[free] = 0
        self.speech_s[free] = FIRST_SPEECH_S
        self.running[:, free] = 0
        return free

    def _is_idle(self, slot: int, now_s: float) -> bool:
        """True if a key with nothing running has spent nothing that a full bucket would not have by now."""
        per_minute = float(self.per_minute[slot])
        refilled = (now_s - self.filled_s[slot]) * per_minute / SECONDS_A_MINUTE
        return not self.running[:, slot].any() and bool(self.tokens[slot] + refilled >= per_minute)


class Account:
    """One key's use of its limits, over all fronts. Further keys with the same digest would share it."""

    def __init__(self, ledger: Ledger, key: int) -> None:
        self._ledger = ledger
        self._key = key
        self._started_s: list[float] = []
        """Beginnings of the own front's requests that run, in order."""

    def running(self, now_s: float) -> int:
        """Number of requests that run."""
        with self._ledger.locked():
            return int(self._ledger.running[:, self._ledger.slot_of(self._key, now_s)].sum())

    def begin(self, most: int | None, per_minute: int | None, requests: int, now_s: float) -> None:
        """Counts one more running request, which costs as many tokens as `requests`.

        Raises:
            NoPlace: `most` run already.
            NoTokens: the bucket of `per_minute` tokens has too few of them.
        """
        with self._ledger.locked():
            slot = self._ledger.slot_of(self._key, now_s)
            if most is not None and int(self._ledger.running[:, slot].sum()) >= most:
                raise NoPlace(self._next_end_s(slot, now_s))
            self._take_tokens(slot, per_minute or 0, requests, now_s)
            self._started_s.append(now_s)
            self._count(slot, 1)

    def end(self, started_s: float, now_s: float) -> None:
        """Ends the request that began at `started_s`."""
        with self._ledger.locked():
            slot = self._ledger.slot_of(self._key, now_s)
            self._started_s.remove(started_s)
            self._count(slot, -1)
            self._ledger.speech_s[slot] += SMOOTHING * (now_s - started_s - self._ledger.speech_s[slot])

    def occupy(self, places: int, now_s: float) -> None:
        """Counts further parts of requests that run; below 0, parts that have ended."""
        with self._ledger.locked():
            self._count(self._ledger.slot_of(self._key, now_s), places)

    def _count(self, slot: int, places: int) -> None:
        front = self._ledger.front
        self._ledger.running[front, slot] = int(self._ledger.running[front, slot]) + places
        self._ledger.oldest_s[front, slot] = self._started_s[0] if self._started_s else math.inf

    def _next_end_s(self, slot: int, now_s: float) -> float:
        """Estimated seconds until the oldest request that runs has ended."""
        speaks = self._ledger.running[:, slot] > 0
        oldest_s = float(self._ledger.oldest_s[speaks, slot].min())
        return float(self._ledger.speech_s[slot]) - (now_s - oldest_s)

    def _take_tokens(self, slot: int, per_minute: int, requests: int, now_s: float) -> None:
        ledger = self._ledger
        if ledger.per_minute[slot] != per_minute:
            # A token bucket: it holds one minute's requests and refills at a constant rate.
            ledger.per_minute[slot] = per_minute
            ledger.tokens[slot] = per_minute
            ledger.filled_s[slot] = now_s
        if not per_minute:
            return
        per_s = per_minute / SECONDS_A_MINUTE
        tokens = min(float(per_minute), float(ledger.tokens[slot] + (now_s - ledger.filled_s[slot]) * per_s))
        ledger.tokens[slot] = tokens
        ledger.filled_s[slot] = now_s
        # A full bucket lets a batch through that is larger than the bucket. The batch then owes the rest.
        needed = min(requests, per_minute)
        if tokens < needed:
            raise NoTokens((needed - tokens) / per_s)
        ledger.tokens[slot] = tokens - requests
