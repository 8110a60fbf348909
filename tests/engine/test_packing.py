"""Packed products against the weights that they were made of: how far whole numbers are off, what cannot be whole."""

import ctypes

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from vivavoce_engine.cpu import library as c
from vivavoce_engine.cpu.packing import WHOLE_MAX, Packer, WeightsDtype, address

from tests.support.cpu_runners import skip_without_kernels


def multiplied(matrix: c.Matrix, x: NDArray[np.float32], taps: int = 1) -> NDArray[np.float32]:
    """x [rows + taps - 1, inputs of a tap] → [rows, outputs], by the kernels."""
    rows = len(x) - taps + 1
    out = np.zeros((rows, matrix.outputs), np.float32)
    library = c.load_library()
    library.check(
        library.functions.vivavoce_product(
            ctypes.addressof(matrix),
            None,
            address(x),
            x.shape[1],
            rows,
            taps,
            x.shape[1],
            None,
            address(out),
            matrix.outputs,
        )
    )
    return out


@pytest.mark.parametrize(("rounds", "kind"), [(True, c.INT8), (False, c.INT11)])
@pytest.mark.parametrize(("inputs", "outputs", "taps"), [(128, 70, 1), (96, 33, 3), (6, 32, 1)])
def test_whole_numbers_are_off_by_half_a_step(rounds: bool, kind: int, inputs: int, outputs: int, taps: int) -> None:
    skip_without_kernels()
    weight: Tensor = torch.randn(taps * inputs, outputs, generator=torch.Generator().manual_seed(1))
    bias = torch.arange(outputs, dtype=torch.float32)
    packer = Packer("int8")
    matrix = packer.matrix(weight, bias, rounds, taps)
    assert matrix.kind == kind
    x = np.random.default_rng(2).standard_normal((4 + taps - 1, inputs), np.float32)
    windows = np.stack([x[row : row + taps].reshape(-1) for row in range(4)]).astype(np.float64)
    step = float(weight.abs().max()) / WHOLE_MAX[kind]
    largest = np.abs(windows).sum(1, keepdims=True) * (step / 2 + float(weight.abs().max()) * 2e-4)
    off = np.abs(multiplied(matrix, x, taps) - (windows @ weight.double().numpy() + bias.numpy()))
    assert (off <= largest).all()
    assert off.max() > largest.max() / 1000, "they are rounded"


@pytest.mark.parametrize(
    ("dtype", "rounds", "bits", "kind"),
    [
        ("float32", False, 24, c.FLOAT32),
        ("float32", False, 8, c.BFLOAT16),
        ("bfloat16", False, 24, c.INT11),
        ("bfloat16", False, 8, c.BFLOAT16),
        ("bfloat16", True, 24, c.BFLOAT16),
        ("int8", False, 8, c.INT11),
    ],
)
def test_a_dtype_changes_no_more_weights_than_it_has_to(
    dtype: WeightsDtype, rounds: bool, bits: int, kind: int
) -> None:
    weight = torch.randn(64, 32, generator=torch.Generator().manual_seed(3))
    weight = weight.bfloat16().float() if bits == 8 else weight
    assert Packer(dtype).matrix(weight, None, rounds).kind == kind


def test_11_bits_are_nearer_to_a_weight_than_bfloat16() -> None:
    skip_without_kernels()
    weight = torch.randn(512, 64, generator=torch.Generator().manual_seed(3))
    x = np.random.default_rng(2).standard_normal((16, 512), np.float32)
    exact = x.astype(np.float64) @ weight.double().numpy()
    packer = Packer("bfloat16")
    off = np.square(multiplied(packer.matrix(weight, None), x) - exact).sum()
    rounded = np.square(x.astype(np.float64) @ weight.bfloat16().double().numpy() - exact).sum()
    assert 0 < off < rounded / 2


def test_an_odd_number_of_inputs_cannot_be_whole() -> None:
    skip_without_kernels()
    packer = Packer("int8")
    weight = torch.full((5, 32), 0.5)
    matrix = packer.matrix(weight, None, rounds=True)
    assert matrix.kind == c.BFLOAT16
    assert multiplied(matrix, np.ones((1, 5), np.float32)).tolist() == [[2.5] * 32]


def test_what_does_not_fit_is_refused() -> None:
    skip_without_kernels()
    packer = Packer("int8")
    matrix = packer.matrix(torch.ones(64, 32), None, rounds=True)
    for block in (0, 1, 3, 48, 128):
        matrix.block = block
        with pytest.raises(c.Refused, match="a shape does not fit"):
            multiplied(matrix, np.ones((1, 64), np.float32))
