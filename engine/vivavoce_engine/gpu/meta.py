"""Networks and tables of meta tensors, which have shapes and no memory, and the bytes that they would take."""

from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vivavoce_engine.checkpoint.networks import CodecDecoderConfig, TalkerConfig
from vivavoce_engine.models.code_predictor import CodePredictor
from vivavoce_engine.models.codec_decoder import Code2Wav, decoder_of
from vivavoce_engine.models.loader import SkipInit
from vivavoce_engine.models.talker import Talker


def _stack(tensors: list[Tensor], dim: int = 0) -> tuple[int, ...]:
    shape = tensors[0].shape
    return (*shape[:dim], len(tensors), *shape[dim:])


def _cat(tensors: list[Tensor], dim: int = 0) -> tuple[int, ...]:
    shape = tensors[0].shape
    return (*shape[:dim], sum(tensor.shape[dim] for tensor in tensors), *shape[dim + 1 :])


def _mul(one: Tensor, other: Tensor | float) -> tuple[int, ...]:
    if not isinstance(other, Tensor):
        return tuple(one.shape)
    longest = max(one.dim(), other.dim())
    sides = [(1,) * (longest - side.dim()) + tuple(side.shape) for side in (one, other)]
    return tuple(max(pair) for pair in zip(*sides, strict=True))


def _matmul(one: Tensor, other: Tensor) -> tuple[int, ...]:
    return (*one.shape[:-1], *other.shape[1:])


def _repeat(one: Tensor, *times: int) -> tuple[int, ...]:
    shape = (1,) * (len(times) - one.dim()) + tuple(one.shape)
    return tuple(size * count for size, count in zip(shape, times, strict=True))


def _same(one: Tensor) -> tuple[int, ...]:
    return tuple(one.shape)


def _flatten(one: Tensor, first: int = 0, last: int = -1) -> tuple[int, ...]:
    shape, end = one.shape, last % one.dim() + 1
    return (*shape[:first], shape[first:end].numel(), *shape[end:])


SHAPES: dict[Callable[..., Any], Callable[..., tuple[int, ...]]] = {
    torch.stack: _stack,
    torch.cat: _cat,
    Tensor.mul: _mul,
    Tensor.matmul: _matmul,
    Tensor.repeat: _repeat,
    Tensor.flatten: _flatten,
    Tensor.contiguous: _same,
    torch.zeros_like: _same,
}
"""Operation → the shape of its result."""
VIEWS = (Tensor.flatten, Tensor.contiguous)
"""Operations that copy only if they must."""


class ShapesAlone(TorchFunctionMode):
    """Computes shapes of meta tensors itself, for operations for which PyTorch imports its compiler or SymPy first.

    Those imports take 2 to 5 s.
    """

    def __torch_function__(
        self,
        function: Callable[..., object],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        shape = SHAPES.get(function)
        if shape is not None:
            first = args[0][0] if isinstance(args[0], list | tuple) else args[0]
            if first.is_meta and not (function in VIEWS and first.is_contiguous()):
                return first.new_empty(shape(*args, **(kwargs or {})))
        return function(*args, **(kwargs or {}))


def networks_without_storage(
    config: TalkerConfig, codec: CodecDecoderConfig, dtype: torch.dtype
) -> tuple[Talker, CodePredictor, Code2Wav]:
    """Makes the networks as the loader leaves them, of meta tensors: in `dtype`, and Code2Wav in float32."""
    with torch.device("meta"), SkipInit():
        talker, predictor, decoder = Talker(config), CodePredictor(config), decoder_of(codec)
    for network in (talker, predictor, decoder):
        network.requires_grad_(False)
    for parameter in (*talker.parameters(), *predictor.parameters()):  # leaves out rotations, which stay float32
        parameter.data = parameter.data.to(dtype)
    if not config.has_projection:  # the code predictor's inputs are the embeddings themselves
        tables = [talker.codec_embedding, *predictor.codec_embedding]
        for table, inputs in zip(tables, predictor.input_embedding, strict=False):
            inputs.weight = table.weight
    return talker, predictor, decoder


def tensor_bytes(*things: object) -> int:
    """Returns the bytes of all tensors that `things` hold at any depth. Tensors that share memory count once."""
    found: dict[int, int] = {}
    seen: set[int] = set()
    todo = list(things)
    while todo:
        thing = todo.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, Tensor):
            storage = thing.untyped_storage()
            found[storage._cdata] = storage.nbytes()
        else:
            todo += _parts_of(thing)
    return sum(found.values())


def _parts_of(thing: object) -> list[object]:
    """Contents of a container, a module or an object of this package."""
    if isinstance(thing, list | tuple):
        return list(thing)
    if isinstance(thing, dict):
        return list(thing.values())
    if isinstance(thing, nn.Module):
        return [*thing.parameters(), *thing.buffers()]
    if not type(thing).__module__.startswith("vivavoce_engine."):
        return []
    if is_dataclass(thing) and not isinstance(thing, type):
        return [getattr(thing, field.name) for field in fields(thing)]
    return list(vars(thing).values()) if hasattr(thing, "__dict__") else []
