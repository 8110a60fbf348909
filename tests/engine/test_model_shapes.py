"""The modules refuse what does not fit together, where PyTorch would broadcast it or cut it short."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from vivavoce_bench.cards.random_codec import random_decoder
from vivavoce_engine.checkpoint.networks import CodecDecoderConfig, RopeConfig, TransformerConfig
from vivavoce_engine.models.codec_decoder import CodecRows
from vivavoce_engine.models.layers import FrameView, KVCache, RowView

SHAPE = TransformerConfig(32, 48, 1, 2, 2, 1e-5, RopeConfig(1e4, 16))
CODEC = CodecDecoderConfig(SHAPE, 4, 32, 32, 32, 3, 1, 32, (2,), (2, 2), 24000, 8)
ROWS, LENGTH = 3, 8


def refused(call: Callable[..., Any], *arguments: Any) -> None:
    with pytest.raises(AssertionError):
        call(*arguments)


def test_positions_have_a_place_in_the_cache() -> None:
    cache = KVCache(SHAPE, ROWS, LENGTH, torch.empty(0))
    RowView(cache, [0, 2], [0, LENGTH - 2], 2)
    refused(RowView, cache, [0, 2], [0, LENGTH - 1], 2)
    refused(RowView, cache, [0, 2], [0, -1], 1)
    refused(RowView, cache, [0, ROWS], [0, 0], 1)
    refused(RowView, cache, [0], [0, 0], 1)
    refused(RowView, cache, [0], [0], 0)
    FrameView(cache, ROWS, 0, LENGTH)
    refused(FrameView, cache, ROWS + 1, 0, LENGTH)
    refused(FrameView, cache, ROWS, 0, LENGTH + 1)
    refused(FrameView, cache, ROWS, 2, 2)


def test_code2wav_s_rows_are_rows_that_there_are() -> None:
    rows = CodecRows(random_decoder(CODEC, torch.device("cpu")), ROWS, torch.empty(0))
    codes = torch.zeros(2, 1, CODEC.num_quantizers, dtype=torch.int64)
    refused(rows.decode, torch.tensor([0]), codes)
    refused(rows.decode, torch.tensor([0, 1]), codes[..., :1])
    refused(rows.prime, ROWS, codes[0])
    refused(rows.prime, 0, codes)
