"""The tensors of safetensors files, with a record of which were taken."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from vivavoce_engine.errors import CheckpointError

NAMED_IN_ERROR = 5


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """Opens a safetensors file. Raises CheckpointError if it is broken."""
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is no complete safetensors file: {error}") from error


class Weights:
    """The tensors of some safetensors files of one folder, with a record of which were taken.

    A tensor goes to the device only when it is taken. On a GPU, temporary tensors between permanent ones would leave
    holes too small for anything else. Missing names are collected, and `check` reports all of them at once.

    With dtype None each tensor stays as it is in its file. It is then opened by itself, so that a CPU that does not
    copy it gives its pages back as soon as it is dropped.
    """

    def __init__(
        self, paths: Sequence[Path], device: torch.device, dtype: torch.dtype | None, prefixes: Iterable[str] = ("",)
    ) -> None:
        """Maps the tensors whose names begin with one of `prefixes` into memory; a page is read when it is used."""
        self._places: dict[str, Path] = {}
        self._mapped: dict[str, Tensor] = {}
        wanted = tuple(prefixes)
        for path in paths:
            with opened(path) as file:
                names = [name for name in file.keys() if name.startswith(wanted)]  # noqa: SIM118 (no mapping)
                self._places |= dict.fromkeys(names, path)
                if dtype is not None:
                    self._mapped |= {name: file.get_tensor(name) for name in names}
        self._path = paths[0] if len(paths) == 1 else paths[0].parent
        self._device = device
        self._dtype = dtype
        self._asked: set[str] = set()

    def take(self, *names: str) -> Tensor:
        """Returns one tensor, or several joined along their first axis, on the device and in `dtype`. Empty if one of
        them is missing."""
        self._asked.update(names)
        if not self._places.keys() >= set(names):
            return torch.empty(0)
        parts = [self.in_dtype(self._read(name)) for name in names]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def in_dtype(self, values: Tensor) -> Tensor:
        """Returns values on the device and in the dtype of what is taken."""
        return values.to(self._device, self._dtype or values.dtype)

    def take_stacked(self, names: Sequence[Sequence[str]]) -> Tensor:
        """Returns [len(names), ...]: each element holds the tensors of its names, joined along their first axis, on the
        device and in `dtype`. Empty if one of them is missing."""
        every = {name for some in names for name in some}
        self._asked.update(every)
        if not self._places.keys() >= every:
            return torch.empty(0)
        first = [self._read(name) for name in names[0]]
        shape = (len(names), sum(len(part) for part in first), *first[0].shape[1:])
        out = torch.empty(shape, dtype=self._dtype or first[0].dtype, device=self._device)
        for place, some in zip(out, names, strict=True):
            parts = [self._read(name) for name in some]
            for target, part in zip(place.split([len(part) for part in parts]), parts, strict=True):
                if target.shape != part.shape:
                    raise CheckpointError(f"{self._path}: {some[0]} and its like differ in shape")
                target.copy_(part)
        return out

    def take_as_it_is(self, name: str) -> Tensor:
        """Returns a tensor on the host and in the file's dtype. Empty if it is missing."""
        self._asked.add(name)
        return self._read(name) if name in self._places else torch.empty(0)

    def take_float32(self, name: str) -> Tensor:
        """Returns a tensor in float32, for arithmetic that must not be rounded to `dtype`. Empty if it is missing."""
        return self.take_as_it_is(name).to(self._device, torch.float32)

    def take_to_compute(self, name: str) -> Tensor:
        """Returns a tensor with which loading computes: in float32 where others stay as they are in the file."""
        return self.take(name) if self._dtype else self.take_float32(name)

    def _read(self, name: str) -> Tensor:
        if name in self._mapped:
            return self._mapped[name]
        with opened(self._places[name]) as file:
            return cast("Tensor", file.get_tensor(name))

    def check(self, unused: Iterable[str]) -> None:
        """Raises CheckpointError if a taken tensor does not exist, or if a tensor was not taken and its name does not
        begin with one of `unused`."""
        known = self._places.keys()
        missing = sorted(self._asked - known)
        unexpected = sorted(name for name in known - self._asked if not name.startswith(tuple(unused)))
        for kind, names in (("lacks", missing), ("has unexpected", unexpected)):
            if names:
                more = f" and {len(names) - NAMED_IN_ERROR} more" if len(names) > NAMED_IN_ERROR else ""
                raise CheckpointError(f"{self._path} {kind} tensors: {', '.join(names[:NAMED_IN_ERROR])}{more}")
