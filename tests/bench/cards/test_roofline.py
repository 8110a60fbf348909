"""The bytes and FLOPs that the table of kernels counts."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is imported
pytest.importorskip("triton")

from vivavoce_bench.cards.roofline import NOTES, product_of_tokens, product_of_windows, row, unit
from vivavoce_engine.gpu.card import H200
from vivavoce_engine.gpu.linear import GATED, PARTS

from tests.support.released_launches import released_launches


def test_products_count_weights_inputs_and_outputs_once() -> None:
    given = {"tokens": 8, "N": 3072, "K": 1024, "MODE": GATED.value, "SPLITS": 1}
    weights = 2 * 3072 * 1024
    assert product_of_tokens((), given) == (
        "gate, up, silu 3072x1024, 8 tokens",
        2 * weights + 8 * 2 * (1024 + 3072),
        2 * weights * 8,
    )
    given |= {"MODE": PARTS.value, "SPLITS": 4}
    assert product_of_tokens((), given)[1:] == (weights + 8 * (2 * 1024 + 4 * 4 * 3072), weights * 8)


def test_code2wav_counts_what_is_read_and_written_beside_the_product() -> None:
    given = {"row_count": 10, "N": 96, "CHANNELS": 192, "TAPS": 2, "ACTIVATION": "none", "residual": None, "raw": 1}
    size, flops = product_of_windows((), given)[1:]
    assert size == 2 * (96 * 384 + 10 * (192 + 96 + 96))
    assert flops == 2 * 10 * 96 * 384
    given = {"row_count": 10, "WIDTH": 96, "TAPS": 7, "raw": None}
    assert unit((), given) == ("96", 2 * 10 * 96 * 3, 2 * 10 * 96 * 96 * 8)


def test_a_bound_is_the_larger_of_bytes_and_flops() -> None:
    assert row("", 20.0, 2, (4.8e6, 0.0))["bound_us_each"] == 1.0
    assert row("", 20.0, 2, (4.8e6, 1.98e9)) == {
        "kernel": "",
        "launches": 2,
        "us": 20.0,
        "us_each": 10.0,
        "bound_us_each": 2.0,
        "mbytes_each": 4.8,
        "gflop_each": 1.98,
    }


def test_every_counted_kernel_is_launched() -> None:
    assert set(NOTES) <= {launch.name for launch in released_launches(H200, (8,))}
