"""Each Triton kernel against float64 arithmetic or its PyTorch twin. Without a GPU, Triton's interpreter runs them."""

import math
import os
from dataclasses import replace

import pytest
import torch
from torch import Tensor

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is imported
pytest.importorskip("triton")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

from vivavoce_engine.checkpoint.networks import RopeConfig  # noqa: E402
from vivavoce_engine.cpu.sampling import SamplingTable, uniform  # noqa: E402
from vivavoce_engine.gpu import linear as ops  # noqa: E402
from vivavoce_engine.gpu.attention import CHUNK, Cache, PagedCache, Places, Projected, attend, attend_prompt  # noqa: E402
from vivavoce_engine.gpu.card import H200, Card  # noqa: E402
from vivavoce_engine.gpu.frame_attention import attend_in_frame  # noqa: E402
from vivavoce_engine.gpu.launch import Launcher  # noqa: E402
from vivavoce_engine.gpu.linear import ADD, BIAS, GATED, GEMV_TOKENS, PARTS, Blocks, gemm, gemv, norm, splits  # noqa: E402
from vivavoce_engine.gpu.sampler import PARAMS, RowTables, draw_code_0  # noqa: E402
from vivavoce_engine.models.layers import RMSNorm, Rope, rotate  # noqa: E402
from vivavoce_engine.request import SamplingParams  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")  # Triton's interpreter
LAUNCH = Launcher(replace(Card.of(DEVICE), dependent_launch=False))
EPS = 1e-6
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 16


def near(ours: Tensor, exact: Tensor) -> bool:
    """float32 sums in another order."""
    return float((ours.double() - exact).norm()) <= 1e-5 * float(exact.norm())


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def exact_linear(x: Tensor, weight: Tensor, out: Tensor, mode: int, bias: Tensor) -> Tensor:
    product = x.double() @ weight.double().T
    if mode == ADD.value:
        return out.double() + product
    if mode == GATED.value:
        gate, up = product.chunk(2, dim=-1)
        return torch.nn.functional.silu(gate) * up
    return product + bias.double() if mode == BIAS.value else product


@pytest.mark.parametrize("tokens", [1, GEMV_TOKENS])
@pytest.mark.parametrize("mode", [0, ADD.value, GATED.value, BIAS.value])
@pytest.mark.parametrize(("n", "k"), [(24, 48), (16, 64)])
def test_gemv(tokens: int, mode: int, n: int, k: int) -> None:
    x, weight, bias = normal(tokens, k), normal(2 * n if mode == GATED.value else n, k, seed=1), normal(n, seed=2)
    out = normal(tokens, n, seed=3)
    exact = exact_linear(x, weight, out, mode, bias)
    gemv(LAUNCH, x, weight, out, mode=mode, bias=bias)
    assert near(out, exact)


WAYS = {
    "plain": None,
    "tokens are rows": Blocks(64, 16, 16, 4, 2, token_rows=True),
    "descriptors": Blocks(16, 64, 16, 4, 2, described=True),
    "tokens are rows, descriptors": Blocks(64, 16, 16, 4, 2, token_rows=True, described=True),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("tokens", [1, 5, 70])
@pytest.mark.parametrize("mode", [0, GATED.value, BIAS.value])
def test_gemm(tokens: int, mode: int, way: str) -> None:
    n, k = 24, 48
    x, weight, bias = normal(tokens, k), normal(2 * n if mode == GATED.value else n, k, seed=1), normal(n, seed=2)
    out = torch.full((tokens, n), math.nan, device=DEVICE)
    gemm(LAUNCH, x, weight, out, mode=mode, bias=bias, blocks=WAYS[way])
    assert near(out, exact_linear(x, weight, out, mode, bias))


def test_a_norm_adds_split_sums_up_and_keeps_its_result() -> None:
    tokens, n, k = 5, 32, 1024
    count = splits(n, k, H200.multiprocessors)
    assert count > 1
    inner, weight, x, norm_weight = (
        normal(tokens, k),
        normal(n, k, seed=1),
        normal(tokens, n, seed=2),
        normal(n, seed=3),
    )
    exact = x.double() + inner.double() @ weight.double().T
    parts = torch.full((count, tokens, n), math.nan, device=DEVICE)
    gemm(LAUNCH, inner, weight, parts, mode=PARTS.value)
    out, table, rows = torch.empty_like(x), torch.zeros(9, n, device=DEVICE), torch.tensor([7, 0, 3, 8, 1])
    norm(LAUNCH, x, norm_weight, EPS, out, parts=parts, keep=(rows.int().to(DEVICE), table))
    assert near(x, exact)
    assert near(out, exact * torch.rsqrt(exact.square().mean(-1, keepdim=True) + EPS) * norm_weight.double())
    assert torch.equal(table[rows], out)


@pytest.mark.parametrize("tokens", [1, 5])
def test_norms_are_the_modules_norms(tokens: int) -> None:
    k = 48
    module = RMSNorm(k, EPS).to(DEVICE).requires_grad_(False)
    module.weight.data = normal(k, seed=1)
    x, weight = normal(tokens, k), normal(16, k, seed=2)
    out = torch.empty_like(x)
    norm(LAUNCH, x, module.weight, EPS, out)
    torch.testing.assert_close(out, module(x), rtol=1e-6, atol=1e-6)
    if tokens <= GEMV_TOKENS:
        product = torch.empty(tokens, 16, device=DEVICE)
        gemv(LAUNCH, x, weight, product, norm=(module.weight, EPS))
        assert near(product, module(x).double() @ weight.double().T)


class Attention:
    """Some tokens of a few rows, and what plain attention makes of them."""

    def __init__(self, rows: int, length: int) -> None:
        self.rope = Rope(RopeConfig(1e4, HEAD_DIM))
        cos, sin = (x.view(length, HEAD_DIM).to(DEVICE) for x in self.rope(torch.arange(length)[None]))
        k = torch.full((1, rows, length, KV_HEADS, HEAD_DIM), math.nan, device=DEVICE)
        self.cache = Cache(k, k.clone(), cos, sin, HEADS)
        self.norm = RMSNorm((HEADS + KV_HEADS, HEAD_DIM), EPS).to(DEVICE).requires_grad_(False)
        self.norm.weight.data = normal(HEADS + KV_HEADS, HEAD_DIM, seed=9)

    def paged(self, order: Tensor) -> PagedCache:
        """The same, empty, in a cache of one page more: `order` [rows * chunks] are its pages, row after row."""
        k = torch.full((1, len(order) + 1, CHUNK, KV_HEADS, HEAD_DIM), math.nan, device=DEVICE)
        rows = self.cache.k.shape[1]
        paged = PagedCache(replace(self.cache, k=k, v=k.clone()), rows, tokens=8, split_tokens=2)
        paged.pages[:] = order.view(rows, -1)
        return paged

    def split(self, qkv: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """qkv [T, …] of tokens at positions [T] → q, k, v [T, heads, D], normed and rotated."""
        heads = qkv.view(len(qkv), -1, HEAD_DIM)
        cos, sin = self.rope(positions.cpu()[None])
        qk = rotate(self.norm(heads[:, : HEADS + KV_HEADS])[None], cos.to(DEVICE), sin.to(DEVICE))[0]
        return qk[:, :HEADS], qk[:, HEADS:], heads[:, HEADS + KV_HEADS :]

    def exact(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """One token's q [heads, D] over k, v [L, kv_heads, D] → [heads * D]."""
        k, v = (x.double().repeat_interleave(HEADS // KV_HEADS, dim=1) for x in (k, v))
        weights = torch.einsum("hd,lhd->hl", q.double(), k).div(math.sqrt(HEAD_DIM)).softmax(-1)
        return torch.einsum("hl,lhd->hd", weights, v).flatten()


class Told:
    """Rows of a paged cache, each with a prompt of its own length, in one call, and then a token, in another."""

    def __init__(self, plain: Attention, paged: PagedCache, lengths: list[int]) -> None:
        self.told = [normal(n + 1, (HEADS + 2 * KV_HEADS) * HEAD_DIM, seed=20 + row) for row, n in enumerate(lengths)]
        norm_of = (plain.norm.weight, EPS)
        self.rows = torch.tensor([row for row, n in enumerate(lengths) for _ in range(n)], dtype=torch.int32).to(DEVICE)
        self.at = torch.tensor([p for n in lengths for p in range(n)], device=DEVICE)
        self.of_prompts = torch.full((len(self.rows), HEADS * HEAD_DIM), math.nan, device=DEVICE)
        if len(self.rows):
            qkv = torch.cat([told[:-1] for told in self.told])
            places = Places(paged, self.rows, self.at, by_row=False)
            attend_prompt(LAUNCH, places, Projected(0, qkv, norm_of, self.of_prompts))
        self.of_tokens = torch.full((len(lengths), HEADS * HEAD_DIM), math.nan, device=DEVICE)
        some = torch.arange(len(lengths), dtype=torch.int32, device=DEVICE)
        positions = torch.tensor([*lengths, 0], device=DEVICE)
        last = torch.stack([told[-1] for told in self.told])
        attend(LAUNCH, Places(paged, some, positions, by_row=True), Projected(0, last, norm_of, self.of_tokens))


@pytest.mark.parametrize("tokens", [2, 3])  # shared by several programs, or not
@pytest.mark.parametrize("prompt", [0, 5, CHUNK - 1, CHUNK, 2 * CHUNK + 3])
def test_attention_of_a_prompt_and_of_the_token_after_it(tokens: int, prompt: int) -> None:
    """In pages that lie anywhere, beside short prompts; where they lie changes no bit."""
    chunks, lengths = 3, [prompt, *range(2, 2 * tokens, 2)]
    plain = Attention(tokens + 1, chunks * CHUNK)
    count = (tokens + 1) * chunks
    paged = plain.paged(torch.randperm(count + 1, generator=torch.Generator().manual_seed(prompt))[:count])
    ours = Told(plain, paged, lengths)
    for token in {0, prompt - 1, len(ours.rows) - 1} if prompt else ():
        row, position = int(ours.rows[token]), int(ours.at[token])
        q, k, v = plain.split(ours.told[row][: position + 1], torch.arange(position + 1))
        assert near(ours.of_prompts[token], plain.exact(q[-1], k, v))
    for row, n in enumerate(lengths):
        q, k, v = plain.split(ours.told[row], torch.arange(n + 1))
        assert near(ours.of_tokens[row], plain.exact(q[-1], k, v))
        kept = paged.cache.k[0, paged.pages[row].long()].flatten(0, 1)[: n + 1]
        torch.testing.assert_close(kept, k, rtol=1e-6, atol=1e-6)
    assert not paged.arrived.any()
    in_a_row = Told(plain, plain.paged(torch.arange(count)), lengths)
    assert torch.equal(ours.of_tokens, in_a_row.of_tokens)
    assert torch.equal(ours.of_prompts, in_a_row.of_prompts)


def test_attention_within_a_frame() -> None:
    batch, groups, width = 3, 8, (HEADS + 2 * KV_HEADS) * HEAD_DIM
    plain = Attention(batch, groups)
    told = normal(groups, batch, width)
    for position in range(1, groups):
        qkv = told[:2].flatten(0, 1) if position == 1 else told[position]
        out = torch.full((len(qkv), HEADS * HEAD_DIM), math.nan, device=DEVICE)
        attend_in_frame(LAUNCH, plain.cache, batch, position, Projected(0, qkv, (plain.norm.weight, EPS), out))
        for row in range(batch):
            q, k, v = plain.split(told[: position + 1, row], torch.arange(position + 1))
            assert near(out[len(qkv) - batch + row], plain.exact(q[-1], k, v))
            if position == 1:
                assert near(out[row], plain.exact(q[0], k[:1], v[:1]))


VOCAB, SPEECH, END = 96, 64, 70
PARAMS_TABLE = {
    "reference": SamplingParams(0.9, 50, 1.0, 1.05),
    "greedy": SamplingParams(0.0, 50, 1.0, 1.3),
    "no limit": SamplingParams(1.3, 0, 1.0, 1.0),
    "nucleus": SamplingParams(1.1, 0, 0.7, 1.0),
    "one": SamplingParams(1.0, 1, 1.0, 1.0),
    "few and nucleus": SamplingParams(0.7, 5, 0.8, 1.2),
    "more than there are": SamplingParams(1.0, 600, 1.0, 1.0),
}


@pytest.mark.parametrize("name", PARAMS_TABLE)
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("vocab", [VOCAB, 700])  # within one of the rows that the sampler counts, or in several
def test_the_sampler_draws_what_its_twin_draws(name: str, ties: bool, vocab: int) -> None:
    params, batch, speech, end = PARAMS_TABLE[name], 6, vocab - VOCAB + SPEECH, vocab - VOCAB + END
    tables = RowTables.allocate(batch, 4, vocab, 8, 4, 2, like=torch.empty(0, device=DEVICE))
    twin = SamplingTable(batch, DEVICE)
    logits = 3 * normal(batch, vocab)
    if ties:
        logits = logits.round()
    rows = torch.tensor([3, 0, 5, 1, 4, 2], device=DEVICE)
    tables.seeds[:batch] = torch.arange(batch, device=DEVICE) * 2**60 + 11
    tables.frames[:batch] = torch.arange(batch, device=DEVICE) - 1
    tables.min_frames[:batch] = 2
    tables.seen[:batch, ::3] = 1
    assert tables.params.shape[2] == PARAMS
    tables.params[:, 0] = torch.tensor([params.temperature, params.top_k, params.top_p, params.repetition_penalty])
    for row in range(batch):
        twin.set(row, params)
    sampling = twin.select(rows.tolist(), rows)
    frame = tables.frames[rows] + 1
    scores = sampling.penalise(logits, tables.seen[rows].bool())
    forbidden = torch.zeros(batch, vocab, dtype=torch.bool, device=DEVICE)
    forbidden[:, speech:] = True
    forbidden[:, end] = frame < 2
    expected = sampling.draw(scores.masked_fill(forbidden, -torch.inf), uniform(tables.seeds[rows], frame, 0))
    ended = torch.full((batch,), -1, dtype=torch.int32, device=DEVICE)
    draw_code_0(LAUNCH, logits, rows.int(), tables, ended, end, speech)
    if params.top_p == 1 or not ties:  # at the edge of top-p the twin keeps some of several equal codes
        assert tables.code_0[rows].tolist() == expected.tolist()
    assert ended.tolist() == (tables.code_0[rows] == end).int().tolist()
    assert tables.frames[rows].tolist() == frame.tolist()
    assert all(tables.seen[row, code] for row, code in zip(rows, tables.code_0[rows], strict=True))


def test_the_dummy_row_stands_still() -> None:
    tables = RowTables.allocate(2, 4, VOCAB, 8, 4, 2, like=torch.empty(0, device=DEVICE))
    rows = torch.full((2,), tables.dummy_row, dtype=torch.int32, device=DEVICE)
    tables.params[:] = torch.tensor([0.9, 50, 1.0, 1.05])
    draw_code_0(LAUNCH, normal(2, VOCAB), rows, tables, torch.zeros(2, dtype=torch.int32, device=DEVICE), END, SPEECH)
    assert tables.positions[tables.dummy_row] == tables.frames[tables.dummy_row] == 0


def test_sums_are_split_where_the_outputs_are_few() -> None:
    assert splits(1024, 2048, 132) == splits(1024, 3072, 132) == 8
    assert splits(2048, 6144, 132) == 4
    assert splits(6144, 2048, 132) == 1
    assert [splits(1024, 2048, count) for count in (28, 58, 82, 108, 128, 170)] == [1, 2, 4, 4, 8, 8]
    assert ops.largest_block(3072, 128) == 128
    assert ops.largest_block(48, 128) == 16
    assert ops.largest_block(128, 128) == 64, "a sum of one step has another order"
    assert ops.largest_block(16, 128) == 16


RELEASED = [  # outputs, summands, mode of the products of both sizes
    *((4096, k, 0) for k in (1024, 2048)),
    *((k, 2048, ADD.value) for k in (1024, 2048)),
    *((3 * k, k, GATED.value) for k in (1024, 2048)),
    *((k, 3 * k, ADD.value) for k in (1024, 2048)),
    *((n, k, 0) for n in (2048, 3072) for k in (1024, 2048)),
]


@pytest.mark.parametrize(("n", "k", "mode"), RELEASED)
def test_products_of_the_released_models_fit_the_card(n: int, k: int, mode: int) -> None:
    weights = 2 if mode == GATED.value else 1
    alone = ops.gemv_blocks(n, k, mode)
    assert weights * alone.n * math.ceil(k / 1024) * 1024 <= 32 * alone.warps * ops.VALUES_MAX
    for tokens in (1, 16, 17, 32, 33, 64, 65, 512):
        for itemsize in (2, 4):
            blocks = ops.gemm_blocks(tokens, k, mode, itemsize, H200)
            assert blocks.t >= min(tokens, 128)
            assert blocks.stages * (weights * blocks.n + blocks.t) * blocks.k * itemsize <= H200.shared_bytes


def test_two_tokens_are_for_tensor_cores_where_the_weights_are_wide() -> None:
    assert (ops.gemv_tokens(1024), ops.gemv_tokens(2048)) == (2, 1)
