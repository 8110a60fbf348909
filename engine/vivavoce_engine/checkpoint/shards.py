"""The safetensors files of a folder: one file, or several that an index lists. Torch-free."""

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
