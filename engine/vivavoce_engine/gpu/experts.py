"""A mixture of experts in kernels: the router's choice, the tokens of each expert, and the experts' products.

Which experts a token takes is data on the device, so one CUDA graph serves any choice. A token has SLOTS pairs with an
expert: those that the router chose, best first, then the pieces of the shared expert. The pairs are sorted by expert
into items, each of up to BLOCK_T pairs of one expert, so a weight is read once for all of its tokens in a block. Each
pair is a product of its own and the next norm adds a token's pairs up in the order of its slots, so a token's result
depends neither on the others nor on the order of the items.
"""

# Triton reads the annotations of a kernel, so its pointers carry none.
# ruff: noqa: ANN001, ANN201
# mypy: disable-error-code="untyped-decorator,no-untyped-def"

from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from vivavoce_engine.gpu.card import Card
from vivavoce_engine.gpu.launch import Launcher
from vivavoce_engine.gpu.linear import PARTS, TOKENS_MIN, Blocks, gemm, largest_block, silu_product, splits

BINS_MIN = 128
"""Fewest bins of a histogram: one for each thread."""
NO_PAIR = tl.constexpr(-1)
"""A place of an item that no pair fills."""
NO_EXPERT = tl.constexpr(-1)
"""The expert of an item that there is not."""
BLOCK_OUTPUTS = 64
"""Outputs of a block of the experts' products. They are the same for any number of tokens, so that a sum is always made
by the same instructions. Blocks were measured on an H200 (vivavoce_bench/cards/omni_experts.py)."""
MANY_TOKENS = 128
"""Tokens beyond which an item holds twice as many pairs: an expert then has more than a handful of them."""


@triton.jit(do_not_specialize=["split_stride"])
def choose_experts_kernel(
    x_ptr,
    parts_ptr,
    shared_gate_ptr,
    chosen_ptr,
    shares_ptr,
    split_stride,
    SPLITS: tl.constexpr,
    EXPERTS: tl.constexpr,
    BLOCK_E: tl.constexpr,
    TOP: tl.constexpr,
    SLOTS: tl.constexpr,
    BLOCK_S: tl.constexpr,
    NORMALISED: tl.constexpr,
    K: tl.constexpr,
    BLOCK_K: tl.constexpr,
    DEPENDENT: tl.constexpr = False,
) -> None:
    """Chooses each token's TOP experts from parts [SPLITS, tokens, EXPERTS] float32 of its logits. Grid [tokens].

    chosen [tokens, SLOTS] int32 are the experts, the likeliest first, and behind them the pieces of the shared expert,
    numbered from EXPERTS on. shares [tokens, SLOTS] float32 are the factors of their results: the probabilities, which
    sum to 1 with NORMALISED, and sigmoid(shared_gate · x) for the shared expert, with x [tokens, K].
    """
    token = tl.program_id(0).to(tl.int64)
    e, k, s = tl.arange(0, BLOCK_E), tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_S)
    inside, exists = e < EXPERTS, k < K
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    gate = tl.load(shared_gate_ptr + k, mask=exists, other=0.0).to(tl.float32)
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    logits = tl.zeros((BLOCK_E,), tl.float32)
    for split in tl.static_range(SPLITS):
        logits += tl.load(parts_ptr + split * split_stride + token * EXPERTS + e, mask=inside, other=0.0)
    logits = tl.where(inside, logits.to(dtype).to(tl.float32), float("-inf"))  # rounded as in the PyTorch module
    p = tl.exp(logits - tl.max(logits, axis=0))
    left = tl.where(inside, p / tl.sum(p, axis=0), -1.0)
    chosen = EXPERTS - TOP + s
    share = tl.zeros((BLOCK_S,), tl.float32)
    total = 0.0
    for rank in tl.static_range(TOP):
        best, highest = tl.argmax(left, axis=0), tl.max(left, axis=0)
        chosen = tl.where(s == rank, best, chosen)
        share = tl.where(s == rank, highest, share)
        total += highest
        left = tl.where(e == best, -1.0, left)
    if NORMALISED:
        share = share / total
    x = tl.load(x_ptr + token * K + k, mask=exists, other=0.0).to(tl.float32)
    shared = tl.sum(x * gate, axis=0).to(dtype).to(tl.float32)
    share = tl.where(s < TOP, share, 1.0 / (1.0 + tl.exp(-shared))).to(dtype).to(tl.float32)
    tl.store(chosen_ptr + token * SLOTS + s, chosen.to(tl.int32), mask=s < SLOTS)
    tl.store(shares_ptr + token * SLOTS + s, share, mask=s < SLOTS)


@triton.jit(do_not_specialize=["pairs", "items"])
def sort_pairs_kernel(
    chosen_ptr,
    order_ptr,
    item_experts_ptr,
    pairs,
    items,
    EXPERTS: tl.constexpr,
    BINS: tl.constexpr,
    BLOCK_PAIRS: tl.constexpr,
    BLOCK_ITEMS: tl.constexpr,
    BLOCK_T: tl.constexpr,
    DEPENDENT: tl.constexpr = False,
) -> None:
    """Sorts pairs by expert: chosen [pairs] int32 → item_experts [items] int32 and order [items, BLOCK_T] int32.

    A program writes the items of one expert, whose places follow from the counts of all. Items that are not needed get
    NO_EXPERT, and places without a pair NO_PAIR. Grid [EXPERTS], with the pieces of the shared expert.
    """
    expert = tl.program_id(0)
    i, bins, b, t = tl.arange(0, BLOCK_PAIRS), tl.arange(0, BINS), tl.arange(0, BLOCK_ITEMS), tl.arange(0, BLOCK_T)
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    chosen = tl.load(chosen_ptr + i, mask=i < pairs, other=BINS - 1)
    needed = (tl.histogram(chosen, BINS) + BLOCK_T - 1) // BLOCK_T
    needed = tl.where(bins < EXPERTS, needed, 0)
    first = tl.sum(tl.where(bins < expert, needed, 0), axis=0)
    mine = chosen == expert
    rank = tl.cumsum(mine.to(tl.int32), axis=0) - 1
    tl.store(order_ptr + first * BLOCK_T + rank, i, mask=mine)
    count = tl.sum(mine.to(tl.int32), axis=0)
    own = (count + BLOCK_T - 1) // BLOCK_T
    empty = tl.full((BLOCK_T,), NO_PAIR, tl.int32)
    tl.store(order_ptr + first * BLOCK_T + count + t, empty, mask=count + t < own * BLOCK_T)
    tl.store(item_experts_ptr + first + b, tl.zeros((BLOCK_ITEMS,), tl.int32) + expert, mask=b < own)
    if expert == EXPERTS - 1:
        none = tl.full((BLOCK_ITEMS,), NO_EXPERT, tl.int32)
        tl.store(item_experts_ptr + first + own + b, none, mask=first + own + b < items)


@triton.jit
def load_item(order_ptr, item_experts_ptr, item, BLOCK_T: tl.constexpr, SORTED: tl.constexpr):
    """Loads an item → its expert and its pairs [BLOCK_T]. Unless the pairs are SORTED, each is an item of its own:
    item_experts are the experts of a single token's slots."""
    expert = tl.load(item_experts_ptr + item)
    t = tl.arange(0, BLOCK_T)
    if SORTED:
        pairs = tl.load(order_ptr + item * BLOCK_T + t, mask=(t >= 0) & (expert >= 0), other=NO_PAIR)
    else:
        pairs = tl.where(t == 0, item, NO_PAIR)
    return expert, pairs


@triton.jit
def gated_experts_kernel(
    x_ptr,
    w_ptr,
    shared_ptr,
    order_ptr,
    item_experts_ptr,
    out_ptr,
    EXPERTS: tl.constexpr,
    SLOTS: tl.constexpr,
    N: tl.constexpr,
    SHARED_N: tl.constexpr,
    K: tl.constexpr,
    SORTED: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
    DEPENDENT: tl.constexpr = False,
) -> None:
    """out [pairs, N] = silu(x · Wgateᵀ) * (x · Wupᵀ) for the token and the expert of each pair. Grid [N / BLOCK_N,
    items].

    x [tokens, K], w [EXPERTS, 2N, K], shared [2 SHARED_N, K], whose pieces have N outputs each, the last one perhaps
    fewer.
    """
    item = tl.program_id(1)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    expert, pairs = load_item(order_ptr, item_experts_ptr, item, BLOCK_T, SORTED)
    if expert < 0:
        return
    alive = pairs >= 0
    token = tl.where(alive, pairs, 0).to(tl.int64) // SLOTS
    routed = expert < EXPERTS
    piece = (expert - EXPERTS).to(tl.int64)
    weights = tl.where(routed, w_ptr + expert.to(tl.int64) * (2 * N * K), shared_ptr + piece * (N * K))
    up_at = tl.where(routed, N * K, SHARED_N * K)
    inside = n < N
    if SHARED_N % N != 0:
        inside = inside & (routed | (piece * N + n < SHARED_N))
    rows = tl.where(inside, n, 0).to(tl.int64)[:, None] * K
    gate = tl.zeros((BLOCK_N, BLOCK_T), tl.float32)
    up = tl.zeros((BLOCK_N, BLOCK_T), tl.float32)
    for step in range(0, K, BLOCK_K):
        at = step + k
        x = tl.load(x_ptr + token[None, :] * K + at[:, None], mask=alive[None, :], other=0.0)
        gate = tl.dot(tl.load(weights + rows + at[None, :]), x, gate, input_precision=PRECISION)
        up = tl.dot(tl.load(weights + up_at + rows + at[None, :]), x, up, input_precision=PRECISION)
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    out = tl.where(inside[:, None], silu_product(gate, up, dtype), 0.0).to(dtype)
    where = out_ptr + pairs.to(tl.int64)[None, :] * N + n[:, None]
    tl.store(where, out, mask=(n < N)[:, None] & alive[None, :])


@triton.jit(do_not_specialize=["tokens"])
def joined_experts_kernel(
    x_ptr,
    w_ptr,
    shared_ptr,
    order_ptr,
    item_experts_ptr,
    shares_ptr,
    out_ptr,
    tokens,
    EXPERTS: tl.constexpr,
    SLOTS: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    SHARED_K: tl.constexpr,
    SORTED: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
    DEPENDENT: tl.constexpr = False,
) -> None:
    """out [SLOTS, tokens, N] float32 = share * (x · Wᵀ) for the slot and the expert of each pair. Grid [N / BLOCK_N,
    items].

    x [pairs, K], w [EXPERTS, N, K], shared [N, SHARED_K], whose pieces have K inputs each, the last one perhaps fewer;
    shares [pairs] float32.
    """
    item = tl.program_id(1)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    expert, pairs = load_item(order_ptr, item_experts_ptr, item, BLOCK_T, SORTED)
    if expert < 0:
        return
    alive = pairs >= 0
    pair = tl.where(alive, pairs, 0).to(tl.int64)
    routed = expert < EXPERTS
    piece = (expert - EXPERTS).to(tl.int64)
    weights = tl.where(routed, w_ptr + expert.to(tl.int64) * (N * K), shared_ptr + piece * K)
    stride = tl.where(routed, K, SHARED_K).to(tl.int64)
    inside = n < N
    rows = tl.where(inside, n, 0)[:, None] * stride
    share = tl.load(shares_ptr + pair, mask=alive, other=0.0)
    acc = tl.zeros((BLOCK_N, BLOCK_T), tl.float32)
    for step in range(0, K, BLOCK_K):
        at = step + k
        x = tl.load(x_ptr + pair[None, :] * K + at[:, None], mask=alive[None, :], other=0.0)
        if SHARED_K % K == 0:
            w = tl.load(weights + rows + at[None, :])
        else:
            w = tl.load(weights + rows + at[None, :], mask=(routed | (piece * K + at < SHARED_K))[None, :], other=0.0)
        acc = tl.dot(w, x, acc, input_precision=PRECISION)
    where = out_ptr + (pair % SLOTS * tokens + pair // SLOTS)[None, :] * N + n[:, None]
    tl.store(where, acc * share[None, :], mask=inside[:, None] & alive[None, :])


@dataclass(frozen=True, slots=True)
class Experts:
    """The weights of one mixture of experts, as the loaded module holds them.

    router [experts, hidden], gate_up [experts, 2 inner, hidden], down [experts, hidden, inner]; the shared expert's
    shared_gate_up [2 width, hidden], shared_down [hidden, width] and shared_gate [1, hidden]. A token takes `top`
    experts, whose shares sum to 1 if they are `normalised`.
    """

    router: Tensor
    gate_up: Tensor
    down: Tensor
    shared_gate_up: Tensor
    shared_down: Tensor
    shared_gate: Tensor
    top: int
    normalised: bool

    def __post_init__(self) -> None:
        experts, hidden, inner, width = len(self.router), self.hidden, self.inner, self.shared_down.shape[1]
        assert self.gate_up.shape == (experts, 2 * inner, hidden)
        assert self.down.shape == (experts, hidden, inner)
        assert self.shared_gate_up.shape == (2 * width, hidden)
        assert self.shared_down.shape == (hidden, width)
        assert self.shared_gate.shape == (1, hidden)
        assert 1 <= self.top <= experts

    @property
    def hidden(self) -> int:
        return self.router.shape[1]

    @property
    def inner(self) -> int:
        return self.down.shape[2]

    @property
    def pieces(self) -> int:
        """Pieces of the shared expert, each as wide as a routed one."""
        return -(-self.shared_down.shape[1] // self.inner)

    @property
    def slots(self) -> int:
        """Pairs of a token."""
        return self.top + self.pieces

    @property
    def kinds(self) -> int:
        """Experts and pieces of the shared one."""
        return len(self.router) + self.pieces

    def items(self, tokens: int, block: int) -> int:
        """Returns the most items of `tokens` tokens, with `block` pairs in each."""
        pairs = tokens * self.slots
        return min(pairs, self.kinds + pairs // block)


def item_pairs(tokens: int) -> int:
    """Returns the pairs of an item, in a call of `tokens` tokens."""
    return TOKENS_MIN if tokens <= MANY_TOKENS else 2 * TOKENS_MIN


class ExpertBuffers:
    """Buffers that the layers of a stack share, for at most `tokens` tokens: the choice of each token, the order of
    pairs by expert, and the inner values."""

    def __init__(self, experts: Experts, tokens: int, multiprocessors: int) -> None:
        like, slots = experts.router, experts.slots
        self._splits = splits(len(like), experts.hidden, multiprocessors)
        sizes = [(min(tokens, most), item_pairs(min(tokens, most))) for most in (1, MANY_TOKENS, tokens)]
        items = max(experts.items(count, block) for count, block in sizes)
        order = max(experts.items(count, block) * block for count, block in sizes)

        def ints(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=like.device)

        self.chosen, self._item_experts, self._order = ints(tokens, slots), ints(items), ints(order)
        self.shares = torch.zeros(tokens, slots, dtype=torch.float32, device=like.device)
        self._logits = self.shares.new_empty(self._splits * tokens * len(like))
        self._inner = like.new_empty(tokens * slots, experts.inner)

    def run(self, launch: Launcher, experts: Experts, x: Tensor, out: Tensor) -> None:
        """x [T, hidden], already normed → out [slots, T, hidden] float32, whose sum over the slots is the result."""
        tokens, slots = len(x), experts.slots
        assert x.shape == (tokens, experts.hidden)
        assert out.shape == (slots, tokens, experts.hidden)
        assert out.dtype == torch.float32
        assert tokens <= len(self.chosen)
        self.choose(launch, experts, x)
        block, chosen = item_pairs(tokens), self.chosen[:tokens]
        items, order = chosen[0], self._order
        if tokens > 1:
            items = self._item_experts[: experts.items(tokens, block)]
            self._sort(launch, experts, chosen, items, block)
        inner = self._inner[: tokens * slots]
        self._gated(launch, experts, x, items, order, inner)
        self._joined(launch, experts, inner, items, order, out)

    def choose(self, launch: Launcher, experts: Experts, x: Tensor) -> None:
        """Chooses the experts of x [T, hidden]: `chosen` and `shares`."""
        tokens, (count, k) = len(x), experts.router.shape
        parts = self._logits[: self._splits * tokens * count].view(self._splits, tokens, count)
        gemm(launch, x, experts.router, parts, mode=PARTS.value)
        launch(
            choose_experts_kernel,
            (tokens,),
            x,
            parts,
            experts.shared_gate,
            self.chosen,
            self.shares,
            parts.stride(0),
            SPLITS=len(parts),
            EXPERTS=count,
            BLOCK_E=triton.next_power_of_2(count),
            TOP=experts.top,
            SLOTS=experts.slots,
            BLOCK_S=triton.next_power_of_2(experts.slots),
            NORMALISED=experts.normalised,
            K=k,
            BLOCK_K=triton.next_power_of_2(k),
            num_warps=1,
        )

    def _sort(self, launch: Launcher, experts: Experts, chosen: Tensor, items: Tensor, block: int) -> None:
        pairs = chosen.numel()
        launch(
            sort_pairs_kernel,
            (experts.kinds,),
            chosen,
            self._order,
            items,
            pairs,
            len(items),
            EXPERTS=experts.kinds,
            BINS=max(BINS_MIN, triton.next_power_of_2(experts.kinds + 1)),
            BLOCK_PAIRS=max(BINS_MIN, triton.next_power_of_2(pairs)),
            BLOCK_ITEMS=triton.next_power_of_2(len(items)),
            BLOCK_T=block,
            num_warps=4,
        )

    def _gated(self, launch: Launcher, experts: Experts, x: Tensor, items: Tensor, order: Tensor, out: Tensor) -> None:
        blocks = expert_blocks(len(x), experts.hidden, 2, x.itemsize, launch.card)
        launch(
            gated_experts_kernel,
            (triton.cdiv(experts.inner, blocks.n), len(items)),
            x,
            experts.gate_up,
            experts.shared_gate_up,
            order,
            items,
            out,
            EXPERTS=len(experts.router),
            SLOTS=experts.slots,
            N=experts.inner,
            SHARED_N=experts.shared_down.shape[1],
            K=experts.hidden,
            SORTED=len(x) > 1,
            **tile_meta(blocks, x.dtype),
        )

    def _joined(self, launch: Launcher, experts: Experts, x: Tensor, items: Tensor, order: Tensor, out: Tensor) -> None:
        tokens = out.shape[1]
        blocks = expert_blocks(tokens, experts.inner, 1, x.itemsize, launch.card)
        launch(
            joined_experts_kernel,
            (triton.cdiv(experts.hidden, blocks.n), len(items)),
            x,
            experts.down,
            experts.shared_down,
            order,
            items,
            self.shares,
            out,
            tokens,
            EXPERTS=len(experts.router),
            SLOTS=experts.slots,
            N=experts.hidden,
            K=experts.inner,
            SHARED_K=experts.shared_down.shape[1],
            SORTED=tokens > 1,
            **tile_meta(blocks, x.dtype),
        )


def expert_blocks(tokens: int, k: int, weights: int, itemsize: int, card: Card) -> Blocks:
    """Returns the tiling of an experts' product that reads `weights` weights, with as many pipeline stages as the
    card's memory holds."""
    block, depth = item_pairs(tokens), largest_block(k, 256 // itemsize)
    blocks = Blocks(block, BLOCK_OUTPUTS, depth, 4, min(4, triton.cdiv(k, depth)))
    return replace(blocks, stages=card.stages(blocks.stages, (weights * blocks.n + block) * blocks.k * itemsize))


def tile_meta(blocks: Blocks, dtype: torch.dtype) -> dict[str, int | str]:
    """A kernel's constants and options for its tiling."""
    return {
        "BLOCK_T": blocks.t,
        "BLOCK_N": blocks.n,
        "BLOCK_K": blocks.k,
        "PRECISION": "ieee" if dtype == torch.float32 else "tf32",
        "num_warps": blocks.warps,
        "num_stages": blocks.stages,
    }
