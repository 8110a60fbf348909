"""Every launch of the released models is known, so that a change of tiles shows which launches it changes."""

import os
from collections import Counter
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is imported
pytest.importorskip("triton")

from vivavoce_engine.gpu.card import H200
from vivavoce_engine.gpu.launches import KernelLaunch, Recorder

from tests.support.released_launches import released_launches

MEASURED = Path(__file__).with_name("launches_h200.txt")


@pytest.fixture(scope="module")
def on_h200() -> list[KernelLaunch]:
    return released_launches(H200)


def test_an_h200_launches_what_it_launched_when_it_was_measured(on_h200: list[KernelLaunch]) -> None:
    assert [str(launch) for launch in on_h200] == MEASURED.read_text("utf-8").splitlines()


def test_the_kernels_of_talker_and_predictor_alone_begin_early(on_h200: list[KernelLaunch]) -> None:
    assert Counter(launch.name for launch in on_h200 if launch.dependent) == {
        "gemm_kernel": 64,
        "gemv_kernel": 22,
        "norm_kernel": 8,
        "draw_code_kernel": 6,
        "choose_experts_kernel": 1,
        "sort_pairs_kernel": 10,
        "gated_experts_kernel": 3,
        "joined_experts_kernel": 3,
        "attention_kernel": 18,
        "frame_attention_kernel": 2,
        "write_kv_kernel": 2,
        "draw_code_0_kernel": 2,
    }


def test_launches_are_told_apart_by_what_triton_compiles() -> None:
    """A change of a type, a constant or an option is another program. A change of a number or of the grid is none."""

    class Kernel:
        arg_names = ("x", "bias", "count", "SIZE", "DEPENDENT")

        @staticmethod
        def fn() -> None: ...

    recorder = Recorder(H200)
    x = torch.empty(3, dtype=torch.bfloat16, device="meta")
    for grid, count in ((1, 2), (7, 16)):
        recorder(Kernel, (grid,), x, None, count, SIZE=4)
    assert [str(launch) for launch in recorder.launches] == ["fn(*bf16 none i32; SIZE=4) 4 warps, 3 stages, dependent"]
    recorder(Kernel, (1,), x, x, 2, SIZE=4)
    recorder(Kernel, (1,), x, None, 2, SIZE=8)
    recorder(Kernel, (1,), x, None, 2.0, SIZE=4)
    recorder(Kernel, (1,), x, None, 2, SIZE=4, num_warps=8)
    recorder(Kernel, (1,), x, None, 2, SIZE=4, num_stages=2)
    assert len(recorder.launches) == 6
