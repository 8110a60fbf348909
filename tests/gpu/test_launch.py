"""One launcher decides for every kernel whether it begins before the one in front of it has ended."""

import ast
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is imported
pytest.importorskip("triton")

from triton.runtime import JITFunction
from triton.runtime.interpreter import InterpretedFunction
from vivavoce_engine.gpu.card import H200, Card
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


@pytest.mark.parametrize("kind", [JITFunction, InterpretedFunction])
def test_a_kernel_that_can_is_told_to_begin_early(launched: list[Launch], kind: type) -> None:
    launch = Launcher(H200)
    launch(kind(dependent_kernel), (2, 3), "x", SIZE=4, num_warps=1)
    launch(kind(patient_kernel), (1,), "y", SIZE=5)
    meta = {"grid": (2, 3), "warmup": False, "SIZE": 4, "num_warps": 1, "DEPENDENT": True, "launch_pdl": True}
    assert launched == [(("x",), meta), (("y",), {"grid": (1,), "warmup": False, "SIZE": 5})]


@pytest.mark.parametrize("card", [replace(H200, dependent_launch=False), Card.of(torch.device("cpu"))])
def test_nothing_is_added_where_the_card_cannot(launched: list[Launch], card: Card) -> None:
    Launcher(card)(JITFunction(dependent_kernel), (2,), "x", SIZE=4)
    assert launched == [(("x",), {"grid": (2,), "warmup": False, "SIZE": 4})]


def test_a_device_s_launcher_has_its_card() -> None:
    device = torch.device("cpu")
    assert Launcher.of(device).card == Card.of(device)


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
