"""The safetensors files of a folder: one file, or several that an index lists. Torch-free."""

import json
from collections.abc import Iterable
from pathlib import Path

from vivavoce_engine.checkpoint.json_file import JsonFile
from vivavoce_engine.errors import CheckpointError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


def shards_of(folder: Path, prefixes: Iterable[str] = ("",)) -> tuple[Path, ...]:
    """The files that hold a folder's tensors whose names begin with one of `prefixes`, in the order of their names.

    Without an index that is one file, whether it exists or not.

    Raises:
        CheckpointError: the index is broken, or names a file outside of the folder.
    """
    if not (folder / INDEX).is_file():
        return (folder / SINGLE,)
    index, wanted = JsonFile(folder / INDEX), tuple(prefixes)
    files = index.value("weight_map", dict)
    for tensor, name in files.items():
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
            raise CheckpointError(f"{index.where('weight_map')}.{tensor} is {name!r}, which is no file of this folder")
    return tuple(folder / name for name in sorted({files[tensor] for tensor in files if tensor.startswith(wanted)}))


def tensor_bytes_in(paths: Iterable[Path], prefixes: Iterable[str] = ("",)) -> int:
    """Bytes of the tensors in whole safetensors files whose names begin with one of `prefixes`, by their headers."""
    total, wanted = 0, tuple(prefixes)
    for path in paths:
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        chosen = (entry for name, entry in header.items() if name.startswith(wanted) and name != "__metadata__")
        total += sum(end - begin for begin, end in (entry["data_offsets"] for entry in chosen))
    return total
