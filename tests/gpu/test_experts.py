"""The kernels of a mixture of experts against float64 arithmetic: any number of tokens, any choice.

Without a GPU, Triton's interpreter runs them.
"""

import os
from dataclasses import replace

import pytest
import torch
from torch import Tensor

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is imported
pytest.importorskip("triton")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

from vivavoce_engine.gpu.card import H200, Card  # noqa: E402
from vivavoce_engine.gpu.experts import ExpertBuffers, Experts  # noqa: E402
from vivavoce_engine.gpu.launch import Launcher  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")  # Triton's interpreter
LAUNCH = Launcher(replace(Card.of(DEVICE), dependent_launch=False))
EXPERTS, TOP, HIDDEN, INNER = 8, 3, 32, 16


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def experts(width: int, *, normalised: bool = True) -> Experts:
    """Random weights. `width`: inner values of the shared expert."""
    return Experts(
        router=normal(EXPERTS, HIDDEN, seed=1),
        gate_up=normal(EXPERTS, 2 * INNER, HIDDEN, seed=2) * HIDDEN**-0.5,
        down=normal(EXPERTS, HIDDEN, INNER, seed=3) * INNER**-0.5,
        shared_gate_up=normal(2 * width, HIDDEN, seed=4) * HIDDEN**-0.5,
        shared_down=normal(HIDDEN, width, seed=5) * width**-0.5,
        shared_gate=normal(1, HIDDEN, seed=6),
        top=TOP,
        normalised=normalised,
    )


def gated(x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    gate, up = (x @ gate_up.double().T).chunk(2, dim=-1)
    return (torch.nn.functional.silu(gate) * up) @ down.double().T


def exact(mixture: Experts, x: Tensor) -> tuple[list[list[int]], Tensor]:
    """The experts of each token, the likeliest first, and the result [T, hidden]."""
    wide = x.double()
    shares, chosen = (wide @ mixture.router.double().T).softmax(-1).topk(TOP)
    if mixture.normalised:
        shares = shares / shares.sum(-1, keepdim=True)
    shared = (wide @ mixture.shared_gate.double().T).sigmoid()
    out = shared * gated(wide, mixture.shared_gate_up, mixture.shared_down)
    for token, (some, factors) in enumerate(zip(chosen.tolist(), shares, strict=True)):
        for expert, share in zip(some, factors, strict=True):
            out[token] += share * gated(wide[token], mixture.gate_up[expert], mixture.down[expert])
    return chosen.tolist(), out


def run(mixture: Experts, x: Tensor, room: int | None = None) -> tuple[ExpertBuffers, Tensor]:
    buffers = ExpertBuffers(mixture, room or len(x), H200.multiprocessors)
    out = torch.full((mixture.slots, len(x), HIDDEN), torch.nan, device=DEVICE)
    buffers.run(LAUNCH, mixture, x, out)
    return buffers, out


@pytest.mark.parametrize("width", [INNER, 2 * INNER, INNER + 8, 8])
@pytest.mark.parametrize("tokens", [1, 2, 17, 150])
def test_each_token_gets_its_experts_and_the_shared_one(tokens: int, width: int) -> None:
    """Shared experts that are a whole number of pieces as wide as a routed expert, and others."""
    mixture, x = experts(width), normal(tokens, HIDDEN, seed=7)
    buffers, out = run(mixture, x)
    chosen, result = exact(mixture, x)
    assert [line[:TOP] for line in buffers.chosen.tolist()] == chosen
    torch.testing.assert_close(out.sum(0).double(), result, rtol=1e-4, atol=1e-5)


def test_shares_need_not_sum_to_one() -> None:
    mixture, x = experts(INNER, normalised=False), normal(3, HIDDEN, seed=7)
    torch.testing.assert_close(run(mixture, x)[1].sum(0).double(), exact(mixture, x)[1], rtol=1e-4, atol=1e-5)


def test_a_token_s_result_depends_on_no_other_and_on_no_room() -> None:
    mixture, x = experts(2 * INNER), normal(40, HIDDEN, seed=8)
    together = run(mixture, x, room=300)[1]
    for some in (slice(5, 6), slice(3, 9), slice(0, 33)):
        assert torch.equal(run(mixture, x[some], room=300)[1], together[:, some])


def test_all_tokens_may_choose_the_same_experts() -> None:
    """One expert then has more pairs than an item holds, and most experts have none."""
    mixture, x = experts(2 * INNER), normal(1, HIDDEN, seed=9).expand(70, -1).contiguous()
    out = run(mixture, x)[1]
    assert torch.equal(out, out[:, :1].expand_as(out))
    torch.testing.assert_close(out.sum(0).double(), exact(mixture, x)[1], rtol=1e-4, atol=1e-5)


def test_equal_experts_are_chosen_in_their_order() -> None:
    mixture = replace(experts(INNER), router=torch.zeros(EXPERTS, HIDDEN, device=DEVICE))
    assert run(mixture, normal(2, HIDDEN))[0].chosen.tolist() == [[0, 1, 2, EXPERTS]] * 2
