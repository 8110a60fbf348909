"""Checkpoints that several tests read. Each is written once in a session."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from vivavoce_bench.cards.layout import Kind, ShapeName

from tests.support.cpu_runners import RUNNERS, MakeRunner, runner_class
from tests.support.tiny_checkpoints import write_checkpoint

Checkpoints = Callable[[ShapeName, Kind], Path]


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Tiny matrices are slower on several threads."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    """(shape, kind) → a folder to read and not to change."""
    root = tmp_path_factory.mktemp("checkpoints")

    @cache
    def folder(shape: ShapeName, kind: Kind) -> Path:
        return write_checkpoint(root / f"{kind}-{shape}", shape, kind)

    return folder


@pytest.fixture(scope="module", params=RUNNERS)
def make_runner(request: pytest.FixtureRequest) -> MakeRunner:
    """Both runners of a CPU, one after the other."""
    return runner_class(request.param)
