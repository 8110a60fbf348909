"""Every launch of the released models compiles for the cards that are not here, and fits them.

Other tests run small shapes in Triton's interpreter; these compile the released shapes, in processes of their own.
"""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is imported
pytest.importorskip("triton")

import triton
from vivavoce_engine.gpu.card import H200, RESERVE_BYTES
from vivavoce_engine.gpu.lowering import shared_bytes

from tests.support.compiled import CARDS, MACHINE, compiled
from tests.support.released_launches import released_launches

GROUPS = [("8.0", "8.6", "8.9"), ("9.0", "10.0"), ("12.0",)]
"""Capabilities that one process compiles for."""
TILINGS_MIN = 50
"""Fewest launches of a card that have tiles."""
KERNELS = 26
SPILLED_BYTES = {"unit_kernel": 104, "gemm_kernel": 8, "product_kernel": 48}
"""Most bytes of a thread's registers that may be spilled. Other kernels spill nothing."""
BARRIER_BYTES = {"9.0": 128, "10.0": 32}
"""Most shared memory of barriers, beside the tiles: of tiles by descriptors, and on Blackwell's servers."""


@pytest.mark.parametrize("group", GROUPS, ids="-".join)
def test_every_launch_fits_the_shared_memory(group: tuple[str, ...]) -> None:
    """One of each tiling by the compiler, and all by the formula, which the next test compares with the compiler."""
    for capability in group:
        sizes = {text: one["shared"] for text, one in compiled(*group)[capability]["tiled"].items()}
        assert len(sizes) >= TILINGS_MIN
        limit, _ = CARDS[capability]
        assert {text: size for text, size in sizes.items() if size > limit} == {}
        assert compiled(*group)[capability]["largest"] <= limit - RESERVE_BYTES


@pytest.mark.parametrize("group", GROUPS, ids="-".join)
def test_attention_in_float32_fits_the_shared_memory(group: tuple[str, ...]) -> None:
    """Its tiles are twice as large as those of 16 bits: with all stages they do not fit 99 KB."""
    for capability in group:
        assert 0 < compiled(*group)[capability]["float32"] <= CARDS[capability][0]


@pytest.mark.parametrize("group", GROUPS, ids="-".join)
def test_the_formula_of_stages_is_the_compiler_s_size(group: tuple[str, ...]) -> None:
    for capability in group:
        barriers = BARRIER_BYTES.get(capability, 0)
        tiled = {text: one for text, one in compiled(*group)[capability]["tiled"].items() if one["tiles"] is not None}
        assert len(tiled) >= TILINGS_MIN - 5
        assert {
            text: one for text, one in tiled.items() if not 0 <= one["shared"] - (one["tiles"] or 0) <= barriers
        } == {}


@pytest.mark.parametrize(("capability", "count"), [("8.0", 0), ("12.0", 32)])
def test_launches_of_an_h200_that_a_card_cannot_hold(capability: str, count: int) -> None:
    (group,) = (group for group in GROUPS if capability in group)
    assert compiled(*group)[capability]["refused"] == count


@pytest.mark.parametrize("group", GROUPS, ids="-".join)
def test_kernels_begin_early_from_hopper_on_alone(group: tuple[str, ...]) -> None:
    for capability in group:
        assert (compiled(*group)[capability]["dependent"] > 0) == (capability in ("9.0", "10.0", "12.0"))


@pytest.mark.parametrize("group", [group for group in GROUPS if set(MACHINE) & set(group)], ids="-".join)
def test_every_kernel_becomes_machine_code_with_few_spills(group: tuple[str, ...]) -> None:
    (capability,) = set(MACHINE) & set(group)
    machine = compiled(*group)[capability]["machine"]
    assert len(machine) == KERNELS
    assert {name: one for name, one in machine.items() if one["spilled"] > SPILLED_BYTES.get(name, 0)} == {}
    limit, _ = CARDS[capability]
    assert max(one["shared"] for one in machine.values()) <= limit


@pytest.mark.skipif(torch.cuda.is_available(), reason="Triton compiles in this process")
def test_nothing_is_compiled_in_an_interpreting_process() -> None:
    with pytest.raises(RuntimeError, match="TRITON_INTERPRET is set"):
        shared_bytes(released_launches(H200, (1,))[0], H200.capability)


def test_another_triton_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its private parts may be others."""
    monkeypatch.setattr(triton, "__version__", "4.0.0")
    with pytest.raises(RuntimeError, match=r"with Triton 3\.6 or 3\.7, not 4\.0\.0"):
        shared_bytes(released_launches(H200, (1,))[0], H200.capability)
