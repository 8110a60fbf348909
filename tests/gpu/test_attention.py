"""A token's attention depends on its row alone, bit for bit: neither on the call nor on what the pages held before."""

import math
import os
from dataclasses import replace

import pytest
import torch
from torch import Tensor

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is imported
pytest.importorskip("triton")

from vivavoce_engine.gpu.attention import (
    CHUNK,
    STAGES_MAX,
    STAGES_MIN,
    Cache,
    Places,
    Projected,
    attend,
    attend_prompt,
    held_bytes,
    tile_stages,
)
from vivavoce_engine.gpu.card import H200

from tests.gpu.test_kernels import DEVICE, EPS, HEAD_DIM, HEADS, KV_HEADS, LAUNCH, Attention, normal

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")  # Triton's interpreter
LENGTHS = (0, 1, CHUNK // 2 - 1, CHUNK // 2 + 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 3)
"""Positions of the new tokens. A page ends in front of one, at one and behind one."""
CHUNKS = 4


class Rows:
    """Rows of random keys and values. Positions from LENGTHS on hold `stale`."""

    def __init__(self, stale: float = math.nan) -> None:
        count = len(LENGTHS)
        self.plain = Attention(count, CHUNKS * CHUNK)
        order = torch.randperm(count * CHUNKS, generator=torch.Generator().manual_seed(1))
        self.paged = self.plain.paged(order)
        for seed, cached in enumerate((self.paged.cache.k, self.paged.cache.v)):
            filled = normal(count, CHUNKS * CHUNK, KV_HEADS, HEAD_DIM, seed=30 + seed)
            for row, length in enumerate(LENGTHS):
                filled[row, length:] = stale
            cached[0, self.paged.pages.long()] = filled.view(count, CHUNKS, CHUNK, KV_HEADS, HEAD_DIM)
        self.qkv = normal(count, (HEADS + 2 * KV_HEADS) * HEAD_DIM, seed=32)
        self.positions = torch.tensor(LENGTHS, device=DEVICE)
        self.rows = torch.arange(count, dtype=torch.int32, device=DEVICE)

    def frames(self, some: slice = slice(None)) -> Tensor:
        """Attention of a frame's tokens of `some` rows."""
        qkv, out = self.given(some)
        attend(LAUNCH, Places(self.paged, self.rows[some], self.positions, by_row=True), qkv)
        assert not self.paged.arrived.any()
        return out

    def prompts(self) -> Tensor:
        """Attention of the same tokens, as the last ones of prompts."""
        qkv, out = self.given(slice(None))
        attend_prompt(LAUNCH, Places(self.paged, self.rows, self.positions, by_row=False), qkv)
        return out

    def given(self, some: slice) -> tuple[Projected, Tensor]:
        qkv = self.qkv[some]
        out = torch.full((len(qkv), HEADS * HEAD_DIM), math.nan, device=DEVICE)
        return Projected(0, qkv, (self.plain.norm.weight, EPS), out), out


def test_a_token_is_the_same_alone_and_in_a_batch_and_in_a_prompt() -> None:
    ours = Rows()
    batch = ours.frames()
    assert ours.paged.splits(len(LENGTHS)) == 1
    assert ours.paged.splits(1) == CHUNKS
    for row in range(len(LENGTHS)):
        assert torch.equal(ours.frames(slice(row, row + 1))[0], batch[row])
    assert torch.equal(ours.frames(slice(6, 8)), batch[6:])
    assert torch.equal(ours.prompts(), batch)


@pytest.mark.parametrize("stale", [math.nan, math.inf, 0.0])
def test_what_a_page_held_before_changes_nothing(stale: float) -> None:
    """Nor does a frame write anything but its token's key and value."""
    ours, untouched = Rows(stale), Rows(-1.0)
    assert torch.equal(ours.frames(), untouched.frames())
    for row in (3, 7):
        assert torch.equal(ours.frames(slice(row, row + 1)), untouched.frames(slice(row, row + 1)))
    assert torch.equal(ours.prompts(), untouched.prompts())
    for cached in (ours.paged.cache.k, ours.paged.cache.v):
        for row, length in enumerate(LENGTHS):
            behind = cached[0, ours.paged.pages[row].long()].flatten(0, 1)[length + 1 :]
            torch.testing.assert_close(behind, torch.full_like(behind, stale), rtol=0, atol=0, equal_nan=True)


def released(dtype: torch.dtype, heads: int = 16, kv_heads: int = 8) -> Cache:
    """A cache of the released models' heads, without memory."""
    k, turns = torch.empty(1, 1, CHUNK, kv_heads, 128, dtype=dtype, device="meta"), torch.empty(1, 128, device="meta")
    return Cache(k, k.clone(), turns, turns, heads)


def test_stages_are_few_where_the_card_cannot_hold_all_programs() -> None:
    """An H200 holds four programs of three tiles on each multiprocessor, or three with the queries of 16 heads."""
    cache, small = released(torch.bfloat16), replace(H200, shared_bytes=99 << 10)
    assert [tile_stages(H200, programs, cache) for programs in (8, 4 * 132, 4 * 132 + 1)] == [7, 7, 3]
    assert [tile_stages(small, programs, cache) for programs in (132, 133)] == [7, 3]
    wide = released(torch.bfloat16, heads=32, kv_heads=2)
    assert [tile_stages(H200, programs, wide) for programs in (3 * 132, 3 * 132 + 1)] == [7, 3]


@pytest.mark.parametrize(("heads", "kv_heads", "wanted"), [(16, 8, 102_412), (32, 2, 106_508)])
def test_float32_has_few_stages_where_shared_memory_is_small(heads: int, kv_heads: int, wanted: int) -> None:
    """Triton 3.7 gives seven stages `wanted` bytes: three tiles of 32 KB alone would fit 99 KB."""
    cache, small = released(torch.float32, heads, kv_heads), replace(H200, shared_bytes=99 << 10)
    assert held_bytes(STAGES_MAX, cache) == wanted
    assert tile_stages(H200, 1, cache) == STAGES_MAX
    assert tile_stages(small, 1, cache) == STAGES_MIN
