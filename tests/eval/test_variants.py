"""The patches of the numerics study have the effect that their names state, and no other."""

from functools import partial
from typing import cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from vivavoce_engine.checkpoint.networks import RopeConfig
from vivavoce_engine.models.layers import RMSNorm, Rope
from vivavoce_eval.numerics import equal_share, first_difference
from vivavoce_eval.variants import (
    VARIANTS,
    cast_folded,
    patch_int8,
    patch_norms,
    patch_rope,
    rounded_rope,
    to_fp8,
    to_whole,
    variance_in_dtype,
)


@pytest.fixture
def norm() -> RMSNorm:
    norm = RMSNorm(256, 1e-6)
    norm.weight.data = torch.linspace(0.2, 2, 256)
    return norm


@pytest.fixture
def x() -> Tensor:
    return torch.randn(32, 256, generator=torch.Generator().manual_seed(3)) * 5


@torch.no_grad()
@pytest.mark.parametrize("forward", [variance_in_dtype, cast_folded])
def test_norms_are_the_same_in_float32_and_differ_in_bfloat16(
    forward: "partial[Tensor]", norm: RMSNorm, x: Tensor
) -> None:
    exact = norm(x)
    rounded = norm.bfloat16()(x.bfloat16())
    patched = RMSNorm(256, 1e-6)
    patched.load_state_dict(norm.state_dict())
    patch_norms(forward, patched)
    torch.testing.assert_close(patched.float()(x), norm.float()(x), atol=1e-5, rtol=1e-5)
    other = patched.bfloat16()(x.bfloat16())
    assert not torch.equal(other, rounded)
    torch.testing.assert_close(other.float(), exact, atol=0.1, rtol=0.03)


@torch.no_grad()
def test_a_norm_whose_variance_is_rounded_is_less_exact(norm: RMSNorm, x: Tensor) -> None:
    exact, norm = norm(x), norm.bfloat16()
    right = (norm(x.bfloat16()).float() - exact).square().mean()
    folded = (cast_folded(norm, x.bfloat16()).float() - exact).square().mean()
    wrong = (variance_in_dtype(norm, x.bfloat16()).float() - exact).square().mean()
    assert folded < right < wrong


def test_a_patch_of_rope_stays_on_its_network() -> None:
    patched, other = (Rope(RopeConfig(theta=10_000.0, factor=1.0, head_dim=64)) for _ in range(2))
    patch_rope(rounded_rope, patched)
    positions = torch.arange(300)[None]
    (cos, sin), (exact_cos, exact_sin) = patched(positions), other(positions)
    assert cos.dtype == sin.dtype == torch.bfloat16
    assert exact_cos.dtype == torch.float32
    assert torch.equal(cos, exact_cos.bfloat16())
    assert torch.equal(sin, exact_sin.bfloat16())


def test_fp8_has_three_bits_behind_the_first() -> None:
    x = torch.randn(8, 64, generator=torch.Generator().manual_seed(1))
    rounded = to_fp8(x)
    assert torch.equal(rounded.abs().amax(1), x.abs().amax(1))
    large = x.abs() > x.abs().amax(1, keepdim=True) / 16
    assert ((rounded - x).abs() / x.abs())[large].max() <= 1 / 16 + 1e-6
    assert torch.equal(to_fp8(torch.zeros(1, 4)), torch.zeros(1, 4))


def test_the_first_variant_is_what_others_are_compared_with() -> None:
    assert (VARIANTS[0].dtype, VARIANTS[0].patch) == ("float32", None)


def test_codes_are_compared_place_by_place() -> None:
    truth = np.arange(12).reshape(6, 2)
    other = truth.copy()
    other[4, 1] += 1
    assert first_difference(other, truth) == 4
    assert first_difference(truth, truth) == 6
    assert first_difference(truth[:3], truth) == 3
    assert equal_share([other], [truth]) == pytest.approx(11 / 12)
    assert equal_share([truth[:3]], [truth]) == pytest.approx(0.5)


def test_int8_has_a_scale_for_each_output_and_64_inputs() -> None:
    weight = torch.randn(5, 192, generator=torch.Generator().manual_seed(1))
    weight[0, :64] *= 100
    rounded = to_whole(weight, 127)
    for first in (0, 64, 128):
        block, given = rounded[:, first : first + 64], weight[:, first : first + 64]
        step = given.abs().amax(1, keepdim=True) / 127
        assert ((block - given).abs() <= step / 2 + 1e-6).all()
        torch.testing.assert_close(block / step, (block / step).round(), atol=1e-3, rtol=0)
        torch.testing.assert_close(block.abs().amax(1), given.abs().amax(1))
    assert torch.equal(to_whole(torch.zeros(2, 64), 127), torch.zeros(2, 64))


def test_int8_rounds_every_product_and_no_norm() -> None:
    network = nn.ModuleDict({"head": nn.Linear(64, 8), "norm": RMSNorm(64, 1e-6), "codes": nn.Embedding(9, 4)})
    before = {name: value.clone() for name, value in network.state_dict().items()}
    patch_int8(network)
    changed = [name for name, value in network.state_dict().items() if not torch.equal(value, before[name])]
    assert changed == ["head.weight", "codes.weight"]
    codes = cast("nn.Embedding", network["codes"])
    assert torch.equal(codes.weight, before["codes.weight"].bfloat16().float())


def test_int8_rounds_the_inputs_of_a_product_to_16_bits() -> None:
    linear = nn.Linear(128, 8)
    patch_int8(nn.ModuleList([linear]))
    x = torch.randn(3, 128, generator=torch.Generator().manual_seed(2))
    x[:, 64:] *= 1e-3
    rounded = to_whole(x, 32767)
    for part in (slice(0, 64), slice(64, 128)):
        error = (rounded - x)[:, part].abs().amax()
        assert 0 < error <= x[:, part].abs().amax() / 32767 / 2 * 1.01
    assert torch.equal(linear(x), nn.Linear.forward(linear, rounded))
    assert not torch.equal(linear(x), nn.Linear.forward(linear, x))
