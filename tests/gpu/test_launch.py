"""One launcher decides for every kernel whether it begins before the one in front of it has ended."""

import ast
import os
from pathlib import Path
from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is imported
pytest.importorskip("triton")

from triton.runtime import JITFunction
from triton.runtime.interpreter import InterpretedFunction
from vivavoce_engine.gpu.launch import Launcher

GPU = Path(__file__).parents[2] / "engine/vivavoce_engine/gpu"
Launch = tuple[tuple[Any, ...], dict[str, Any]]


def dependent_kernel(x, SIZE, DEPENDENT=False) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    """Can begin early."""


def patient_kernel(x, SIZE) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    """Cannot."""


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[Launch]:
    """The arguments of the kernels that have run, compiled or interpreted."""
    seen: list[Launch] = []
    for kind in (JITFunction, InterpretedFunction):
        monkeypatch.setattr(kind, "run", lambda _, *args, **meta: seen.append((args, meta)))
    return seen


def test_a_kernel_that_can_is_told_to_begin_early(launched: list[Launch]) -> None:
    launch = Launcher(dependent=True)
    launch(JITFunction(dependent_kernel), (2, 3), "x", SIZE=4, num_warps=1)
    launch(JITFunction(patient_kernel), (1,), "y", SIZE=5)
    meta = {"grid": (2, 3), "warmup": False, "SIZE": 4, "num_warps": 1, "DEPENDENT": True, "launch_pdl": True}
    assert launched == [(("x",), meta), (("y",), {"grid": (1,), "warmup": False, "SIZE": 5})]


@pytest.mark.parametrize(
    ("kind", "dependent"), [(JITFunction, False), (InterpretedFunction, False), (InterpretedFunction, True)]
)
def test_nothing_is_added_otherwise(launched: list[Launch], kind: type, dependent: bool) -> None:
    Launcher(dependent=dependent)(kind(dependent_kernel), (2,), "x", SIZE=4)
    assert launched == [(("x",), {"grid": (2,), "warmup": False, "SIZE": 4})]


@pytest.mark.parametrize(
    ("capability", "dependent"), [((8, 0), False), ((8, 9), False), ((9, 0), True), ((12, 0), True)]
)
def test_cards_from_hopper_on_launch_dependent_kernels(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], dependent: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert Launcher.of(torch.device("cuda")).dependent is dependent
    assert not Launcher.of(torch.device("cpu")).dependent


def test_kernels_are_launched_in_one_file() -> None:
    """And it alone knows the option's name."""
    named, subscripted = set(), set()
    for path in GPU.rglob("*.py"):
        text = path.read_text("utf-8")
        if "pdl" in text.lower():
            named.add(path.name)
        for node in ast.walk(ast.parse(text)):
            match node:
                case ast.Call(func=ast.Subscript(value=ast.Name(id=name))) if name.endswith("kernel"):
                    subscripted.add(path.name)
    assert named == subscripted == {"launch.py"}
