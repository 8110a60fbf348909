"""A cache with a limit in bytes."""

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, Protocol, TypeVar


class Sized(Protocol):
    @property
    def nbytes(self) -> int: ...


KeyT = TypeVar("KeyT", bound=Hashable)
ValueT = TypeVar("ValueT", bound=Sized)


class ByteLimitedCache(Generic[KeyT, ValueT]):
    """Drops the least recently used values while all values together hold more than `max_bytes`. Thread-safe.

    A value that is larger than the limit by itself is not kept.
    """

    def __init__(self, max_bytes: int) -> None:
        assert max_bytes >= 0
        self.max_bytes = max_bytes
        self.nbytes = 0
        self._values: OrderedDict[KeyT, ValueT] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: KeyT) -> ValueT | None:
        with self._lock:
            value = self._values.get(key)
            if value is not None:
                self._values.move_to_end(key)
            return value

    def put(self, key: KeyT, value: ValueT) -> None:
        with self._lock:
            self._forget(key)
            self._values[key] = value
            self.nbytes += value.nbytes
            while self.nbytes > self.max_bytes:
                self._forget(next(iter(self._values)))
            assert self.nbytes >= 0

    def forget(self, key: KeyT) -> None:
        with self._lock:
            self._forget(key)

    def _forget(self, key: KeyT) -> None:
        value = self._values.pop(key, None)
        if value is not None:
            self.nbytes -= value.nbytes
