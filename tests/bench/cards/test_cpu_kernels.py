"""Random weights of the kernels' benchmark: the structures of a loaded checkpoint, in shape, kind and size."""

import ctypes
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from vivavoce_bench.cards import cpu_kernels as benchmark
from vivavoce_engine.checkpoint.files import Checkpoint, read_checkpoint
from vivavoce_engine.cpu import library as c
from vivavoce_engine.cpu.packing import Packer, WeightsDtype, pack
from vivavoce_engine.models.loader import load_models

from tests.support.cpu_runners import skip_without_kernels
from tests.support.tiny_checkpoints import write_checkpoint


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    skip_without_kernels()
    folder: Path = write_checkpoint(tmp_path_factory.mktemp("checkpoint"), "tiny", "custom_voice")
    return read_checkpoint(folder)


def numbers_of(structure: ctypes.Structure) -> Iterator[tuple[str, object]]:
    """Every field of a structure but its addresses: sizes, kinds and counts."""
    for field, kind in structure._fields_:  # type: ignore[misc]
        value = getattr(structure, field)
        if isinstance(value, ctypes.Structure):
            yield from ((f"{field}.{name}", number) for name, number in numbers_of(value))
        elif kind is not ctypes.c_void_p and not isinstance(value, (ctypes.Array, float)):
            yield field, value


@pytest.mark.parametrize("dtype", ["int8", "bfloat16"])
def test_random_weights_have_the_shapes_of_loaded_ones(checkpoint: Checkpoint, dtype: WeightsDtype) -> None:
    modules = load_models(checkpoint, torch.device("cpu"), torch.float32)
    loaded = pack(checkpoint, modules, benchmark.POSITIONS, Packer(dtype))
    made = benchmark.Kernels(checkpoint.talker, checkpoint.codec, dtype, 1).networks
    for name in ("talker", "predictor", "codec"):
        expected, found = (dict(numbers_of(getattr(networks, name))) for networks in (loaded, made))
        assert found | {"pad_id": 0} == expected | {"pad_id": 0}
    layers = [ctypes.cast(each.talker.stack.layers, ctypes.POINTER(c.Layer))[0] for each in (loaded, made)]
    assert dict(numbers_of(layers[0])) == dict(numbers_of(layers[1]))


def test_streams_speak_and_every_pair_of_threads_and_streams_has_a_figure(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benchmark, "LEAST_S", 0.0)
    kernels = benchmark.Kernels(checkpoint.talker, checkpoint.codec, "int8", 3)
    runs = list(benchmark.runs_of(kernels, [1, 2], [1, 3]))
    assert [(run["threads"], run["streams"]) for run in runs] == [(1, 1), (1, 3), (2, 1), (2, 3)]
    assert all(np.isfinite(run["rtf"]) and run["rtf"] > 0 for run in runs)
