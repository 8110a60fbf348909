"""A tensor of a wrong shape or type is refused before any kernel sees it: a kernel would read other memory."""

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is imported
pytest.importorskip("triton")

from vivavoce_bench.cards.random_codec import random_decoder
from vivavoce_engine.checkpoint.alignment import Alignment
from vivavoce_engine.gpu.attention import CHUNK, Cache, PagedCache, Places, Projected, attend
from vivavoce_engine.gpu.card import H200
from vivavoce_engine.gpu.codec.decoder import GpuCodec
from vivavoce_engine.gpu.codec.layers import Buffers, Product, Shape
from vivavoce_engine.gpu.frame import FrameModel
from vivavoce_engine.gpu.frame_attention import attend_in_frame
from vivavoce_engine.gpu.launch import Launcher
from vivavoce_engine.gpu.linear import GEMV_TOKENS, PARTS, gemm, gemv, norm
from vivavoce_engine.gpu.sampler import PARAMS, RowTables, draw_code_0
from vivavoce_engine.gpu.scores import Scores
from vivavoce_engine.gpu.starts import CODEC_ID, TEXT_ID, TOKEN_FIELDS, RowStart, Starts
from vivavoce_engine.pages import PAGE_POSITIONS

from tests.gpu.test_codec import WIDE
from tests.gpu.test_frame import PAD, POSITIONS, ROWS, Plain

HEADS, KV_HEADS, D = 4, 2, 16
WIDTH = (HEADS + 2 * KV_HEADS) * D


class NoLaunch(Launcher):
    def __call__(self, kernel: Any, grid: tuple[int, ...], *arguments: Any, **meta: Any) -> None:
        pytest.fail(f"{kernel} was launched")


LAUNCH = NoLaunch(H200)


def refused(call: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    with pytest.raises(AssertionError):
        call(*arguments, **options)


def ints(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.zeros(shape, dtype=dtype)


def long(*shape: int) -> Tensor:
    return ints(*shape, dtype=torch.int64)


def paged_cache() -> PagedCache:
    k, turns = torch.zeros(1, 3, CHUNK, KV_HEADS, D), torch.zeros(2 * CHUNK, D)
    return PagedCache(Cache(k, k.clone(), turns, turns, HEADS), rows=3, tokens=2, split_tokens=2)


def test_keys_and_values() -> None:
    k, turns = torch.zeros(1, 3, CHUNK, KV_HEADS, D), torch.zeros(CHUNK, D)
    refused(Cache, k, k[:, :2], turns, turns, HEADS)
    refused(Cache, k.transpose(3, 4), k, turns, turns, HEADS)
    refused(Cache, k, k, turns.double(), turns, HEADS)
    refused(Cache, k, k, turns, turns, heads=3)
    short = torch.zeros(1, 3, CHUNK // 2, KV_HEADS, D)
    refused(PagedCache, Cache(short, short, turns, turns, HEADS), 3, 2, 2)


def test_the_tokens_of_attention() -> None:
    paged = paged_cache()
    refused(Places, paged, long(2), long(3), by_row=True)
    refused(Places, paged, ints(2), ints(3), by_row=True)
    refused(Places, paged, ints(2), long(2), by_row=True)
    refused(Places, paged, ints(2), long(3), by_row=False)
    places, norm_of = Places(paged, ints(2), long(3), by_row=True), (torch.ones(HEADS + KV_HEADS, D), 1e-6)
    qkv, out = torch.zeros(2, WIDTH), torch.zeros(2, HEADS * D)
    for bad_qkv, bad_out in ((qkv[:1], out), (qkv[:, 1:], out), (qkv, out[:1]), (qkv, out[:, 1:])):
        refused(attend, LAUNCH, places, Projected(0, bad_qkv, norm_of, bad_out))
    for batch, position in ((2, 1), (1, 0), (2, CHUNK), (4, 2)):
        refused(attend_in_frame, LAUNCH, paged.cache, batch, position, Projected(0, qkv, norm_of, out))


def test_kept_scores() -> None:
    good = Scores.allocate(0, 0, 3, 2 * CHUNK, 2, torch.device("cpu"))
    for bad in ({"table": good.table.double()}, {"first": ints(2)}, {"first": long(3)}, {"window": torch.zeros(2, 4)}):
        refused(replace, good, **bad)
    places = Places(paged_cache(), ints(2), long(3), by_row=True)
    norm_of = (torch.ones(HEADS + KV_HEADS, D), 1e-6)
    given = Projected(0, torch.zeros(2, WIDTH), norm_of, torch.zeros(2, HEADS * D))
    for table, head in ((good.table[:2], 0), (torch.zeros(3, CHUNK), 0), (good.table, HEADS)):
        refused(attend, LAUNCH, places, given, replace(good, table=table, head=head))
    tables = RowTables.allocate(2, 4, 96, 8, 4, 2, like=torch.empty(0))
    for count, scores in ((2, replace(good, table=good.table[:2])), (3, good)):
        refused(draw_code_0, LAUNCH, torch.zeros(count, 96), ints(count), tables, ints(count), 70, 64, scores)


def test_products_and_norms() -> None:
    x, weight, out = torch.zeros(2, 64), torch.zeros(32, 64), torch.zeros(2, 32)
    refused(gemv, LAUNCH, x, weight.T, out)
    refused(gemv, LAUNCH, torch.zeros(GEMV_TOKENS + 1, 64), weight, torch.zeros(GEMV_TOKENS + 1, 32))
    refused(gemm, LAUNCH, x, weight, out[:1])
    refused(gemm, LAUNCH, x, weight, torch.zeros(3, 2, 32), mode=PARTS.value)
    refused(gemm, LAUNCH, x, weight, torch.zeros(4, 2, 32, dtype=torch.float16), mode=PARTS.value)
    refused(norm, LAUNCH, x, torch.ones(32), 1e-6, x)
    refused(norm, LAUNCH, x, torch.ones(64), 1e-6, x, parts=torch.zeros(4, 1, 64))
    refused(norm, LAUNCH, x, torch.ones(64), 1e-6, x, keep=(long(2), torch.zeros(9, 64)))


def test_the_sampler() -> None:
    tables = RowTables.allocate(2, 4, 96, 8, 4, 2, like=torch.empty(0))
    logits = torch.zeros(2, 96)
    refused(draw_code_0, LAUNCH, logits[:, :64], ints(2), tables, ints(2), 70, 64)
    refused(draw_code_0, LAUNCH, logits, long(2), tables, ints(2), 70, 64)
    refused(draw_code_0, LAUNCH, logits, ints(2), tables, ints(2), 10, 64)
    refused(RowTables.allocate, 2, 4, 96, 8, 1, 2, like=logits)


def model(**changes: Any) -> FrameModel:
    plain = Plain(projected=False)
    sizes = {"rows": ROWS, "batch": 4, "prompt_tokens": 6, "positions": POSITIONS, "ring": 2, "pad_id": PAD} | changes
    return FrameModel(plain.talker, plain.predictor, plain.config, launch=LAUNCH, **sizes)


def test_a_frame() -> None:
    refused(model, pages=1, positions=2 * PAGE_POSITIONS)
    refused(model, pad_id=1 << 20)
    refused(model, alignment=Alignment(1 << 20, 0, 0.0))
    made = model()
    for batch in (0, 5):
        refused(made.frame, batch)
    refused(made.prefill, 4, 7)


def test_what_rows_begin_with() -> None:
    params = (0.0,) * 2 * PARAMS
    refused(RowStart, 0, 1, PAGE_POSITIONS, 0, 0, params, [0])
    refused(RowStart, 0, 1, 3, 0, 0, params[1:], [0])
    made = model()
    starts = Starts(made, Plain(projected=False).talker, 2)
    row = RowStart(0, 1, 3, 0, 0, params, [0])
    refused(starts.upload_rows, [row] * 3)
    refused(starts.upload_rows, [RowStart(ROWS, 1, 3, 0, 0, params, [0])])
    refused(starts.upload_rows, [RowStart(0, 1, 3, 0, 0, params, [made.cache.last_page])])
    tokens = np.zeros((3, TOKEN_FIELDS), np.int64)
    refused(starts.upload_tokens, tokens[:, 1:], {})
    refused(starts.upload_tokens, tokens.astype(np.int32), {})
    refused(starts.upload_tokens, np.zeros((7, TOKEN_FIELDS), np.int64), {})
    for field in (TEXT_ID.value, CODEC_ID.value):
        tokens[:] = 0
        tokens[1, field] = 1 << 20
        refused(starts.upload_tokens, tokens, {})


def test_code2wav() -> None:
    codec = GpuCodec(random_decoder(WIDE, torch.device("cpu")), 2, 3, launch=LAUNCH)
    codes = long(2, 1, WIDE.num_quantizers)
    refused(codec.decode, ints(2), codes)
    refused(codec.decode, long(1), codes)
    refused(codec.decode, long(2), codes[..., :1])
    refused(codec.reset, 3)
    buffers = Buffers(4)
    x, out = buffers.add(8, 1, keep=2), buffers.add(16, 1)
    buffers.allocate(torch.empty(0))
    call = (LAUNCH, Shape(1, 1), x, out)
    refused(Product(weight=torch.zeros(16, 8)), *call)
    refused(Product(weight=torch.zeros(16, 16), taps=2), *call)
    refused(Product(weight=torch.zeros(8, 24), taps=3), *call)
    refused(Product, weight=torch.zeros(16, 8), bias=torch.zeros(8))
