"""Both runners of a CPU, for tests of what both must do."""

from typing import Protocol

import pytest
from vivavoce_engine.checkpoint.files import Checkpoint
from vivavoce_engine.config import EngineConfig
from vivavoce_engine.cpu.library import why_no_library
from vivavoce_engine.cpu.native_runner import NativeRunner
from vivavoce_engine.cpu.runner import TorchRunner

CpuRunner = TorchRunner | NativeRunner
RUNNERS: dict[str, type[TorchRunner] | type[NativeRunner]] = {"torch": TorchRunner, "native": NativeRunner}


class MakeRunner(Protocol):
    def __call__(self, name: str, checkpoint: Checkpoint, config: EngineConfig) -> CpuRunner: ...


def runner_class(name: str) -> type[TorchRunner] | type[NativeRunner]:
    """The class of a runner by the name that the setting `runner` has. Skips the test if this machine lacks it."""
    if name == "native":
        skip_without_kernels()
    return RUNNERS[name]


def skip_without_kernels() -> None:
    if lack := why_no_library():
        pytest.skip(lack)
