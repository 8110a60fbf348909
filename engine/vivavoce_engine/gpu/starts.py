"""What rows begin with, and their prompts' tokens: told to the device in a copy each, and put in place by kernels.

An idle engine's first audio waits for the host to start a row; each small copy or operation costs it some 10 µs.
"""

# Triton reads the annotations of a kernel, so its pointers carry none.
# ruff: noqa: ANN001, ANN201
# mypy: disable-error-code="untyped-decorator,no-untyped-def"

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from vivavoce_engine.device import copy_into
from vivavoce_engine.gpu.frame import FrameModel
from vivavoce_engine.gpu.sampler import PARAMS, block
from vivavoce_engine.models.talker import Talker
from vivavoce_engine.text.prompt import NO_ID, Prompt

NO_ROW = -1
ROW_FIELDS = 5 + 2 * PARAMS
"""Of what is told of a row: row, seed, position, min_frames, text_count, two samplers' parameters; then its pages."""
TOKEN_FIELDS = 5
"""Of what is told of a token: text id, codec id, row, position, and whether there is more to add."""
ABSENT = tl.constexpr(NO_ID)


@triton.jit
def set_rows_kernel(
    told_ptr,
    seeds_ptr,
    frames_ptr,
    positions_ptr,
    min_frames_ptr,
    text_counts_ptr,
    params_ptr,
    seen_ptr,
    pages_ptr,
    FIELDS: tl.constexpr,
    PARAMS: tl.constexpr,
    CHUNKS: tl.constexpr,
    BLOCK_CHUNKS: tl.constexpr,
    V: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """told [rows, FIELDS + CHUNKS] int64 → the tables of the rows that it names. Grid [rows].

    Their prompt's end moves frames, from -1, and positions on to their first values.
    """
    told = told_ptr + tl.program_id(0) * (FIELDS + CHUNKS)
    row = tl.load(told)
    if row >= 0:
        tl.store(seeds_ptr + row, tl.load(told + 1))
        tl.store(frames_ptr + row, row * 0 - 1)
        tl.store(positions_ptr + row, tl.load(told + 2))
        tl.store(min_frames_ptr + row, tl.load(told + 3))
        tl.store(text_counts_ptr + row, tl.load(told + 4))
        i = tl.arange(0, 2 * PARAMS)
        params = tl.load(told + FIELDS - 2 * PARAMS + i).to(tl.int32).to(tl.float32, bitcast=True)
        tl.store(params_ptr + row * 2 * PARAMS + i, params)
        chunk = tl.arange(0, BLOCK_CHUNKS)
        pages = tl.load(told + FIELDS + chunk, mask=chunk < CHUNKS)
        tl.store(pages_ptr + row * CHUNKS + chunk, pages.to(tl.int32), mask=chunk < CHUNKS)
        v = tl.arange(0, BLOCK_V)
        tl.store(seen_ptr + row * V + v, tl.zeros((BLOCK_V,), tl.uint8), mask=v < V)


@triton.jit(do_not_specialize=["tokens", "dummy_row"])
def embed_tokens_kernel(
    told_ptr,
    text_embedding_ptr,
    codec_embedding_ptr,
    x_ptr,
    token_rows_ptr,
    token_positions_ptr,
    rows_ptr,
    last_tokens_ptr,
    tokens,
    dummy_row,
    BATCH: tl.constexpr,
    FIELDS: tl.constexpr,
    H: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """told: how many tokens there are; BATCH pairs of a row whose prompt ends and its last token; FIELDS a token.

    → x [tokens, H], token_rows, token_positions [tokens]; rows, last_tokens [BATCH]. Grid [at least tokens and BATCH].
    What lies behind the tokens that there are is the dummy row's.
    """
    at = tl.program_id(0)
    if at < BATCH:
        tl.store(rows_ptr + at, tl.load(told_ptr + 1 + 2 * at).to(tl.int32))
        tl.store(last_tokens_ptr + at, tl.load(told_ptr + 2 + 2 * at))
    here = at < tokens
    exists = here & (at < tl.load(told_ptr))
    token = told_ptr + 1 + 2 * BATCH + at * FIELDS
    text = tl.load(token, mask=exists, other=ABSENT)
    codec = tl.load(token + 1, mask=exists, other=ABSENT)
    tl.store(token_rows_ptr + at, tl.load(token + 2, mask=exists, other=dummy_row).to(tl.int32), mask=here)
    tl.store(token_positions_ptr + at, tl.load(token + 3, mask=exists, other=0), mask=here)
    more = tl.load(token + 4, mask=exists, other=0) != 0
    h = tl.arange(0, BLOCK_H)
    inside = here & (h < H)
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    x = tl.load(text_embedding_ptr + text * H + h, mask=inside & (text != ABSENT), other=0.0).to(tl.float32)
    x += tl.load(codec_embedding_ptr + codec * H + h, mask=inside & (codec != ABSENT), other=0.0).to(tl.float32)
    # Rounded between the sums, as prompts.py rounds.
    x = x.to(dtype).to(tl.float32)
    x += tl.load(x_ptr + at * H + h, mask=inside & more, other=0.0).to(tl.float32)
    tl.store(x_ptr + at * H + h, x.to(dtype), mask=inside)


@dataclass(frozen=True, slots=True)
class RowStart:
    """What a row begins with. `position` is its prompt's last, `pages` of the cache those that it has so far."""

    row: int
    seed: int
    position: int
    min_frames: int
    text_count: int
    params: SequenceOf[float]
    """Of the talker's sampler and the code predictor's, PARAMS each."""
    pages: SequenceOf[int]


class Starts:
    """Sets up to `batch` rows of a model at once, and embeds their prompts' tokens. What is told goes to the device in
    one copy; the rest are launches that can be captured."""

    def __init__(self, model: FrameModel, talker: Talker, batch: int) -> None:
        self._model, self._batch = model, batch
        self._text, self._codec = talker.text_embedding.weight, talker.codec_embedding.weight
        self._no_page = model.cache.last_page
        device = self._text.device
        self._rows = torch.full((batch, ROW_FIELDS + model.cache.chunks), NO_ROW, device=device)
        tokens = len(model.token_rows)
        self._tokens = torch.zeros(1 + 2 * batch + TOKEN_FIELDS * tokens, dtype=torch.int64, device=device)
        self.tell_tokens(np.empty((0, TOKEN_FIELDS), np.int64), {})  # before anybody starts, the dummy row does

    def tell_rows(self, starts: SequenceOf[RowStart]) -> None:
        told = np.full(self._rows.shape, NO_ROW, np.int64)
        for line, start in zip(told, starts, strict=False):
            params = np.array(start.params, np.float32).view(np.int32)
            line[:ROW_FIELDS] = start.row, start.seed, start.position, start.min_frames, start.text_count, *params
            line[ROW_FIELDS:] = self._no_page
            line[ROW_FIELDS : ROW_FIELDS + len(start.pages)] = start.pages
        copy_into(self._rows, told)

    def set_rows(self) -> None:
        tables, pages = self._model.tables, self._model.cache.pages
        chunks, vocab = pages.shape[1], tables.seen.shape[1]
        set_rows_kernel[(self._batch,)](
            self._rows,
            tables.seeds,
            tables.frames,
            tables.positions,
            tables.min_frames,
            tables.text_counts,
            tables.params,
            tables.seen,
            pages,
            FIELDS=ROW_FIELDS,
            PARAMS=PARAMS,
            CHUNKS=chunks,
            BLOCK_CHUNKS=block(chunks),
            V=vocab,
            BLOCK_V=block(vocab),
        )

    def tell_tokens(self, tokens: NDArray[np.int64], last: Mapping[int, int]) -> None:
        """tokens [T, TOKEN_FIELDS]; `last`: row → which of them ends its prompt."""
        told = np.zeros(1 + 2 * self._batch + tokens.size, np.int64)
        told[0] = len(tokens)
        ends = told[1 : 1 + 2 * self._batch].reshape(-1, 2)
        ends[:, 0] = self._model.tables.dummy_row
        for line, end in zip(ends, last.items(), strict=False):
            line[:] = end
        told[1 + 2 * self._batch :] = tokens.reshape(-1)
        copy_into(self._tokens[: len(told)], told)

    def embed_tokens(self) -> None:
        """Fills the model up for a `prefill` of what was told."""
        model = self._model
        tokens, hidden = len(model.token_rows), model.talker.hidden
        embed_tokens_kernel[(max(tokens, self._batch),)](
            self._tokens,
            self._text,
            self._codec,
            model.talker.x,
            model.token_rows,
            model.token_positions,
            model.rows,
            model.last_tokens,
            tokens,
            model.tables.dummy_row,
            BATCH=self._batch,
            FIELDS=TOKEN_FIELDS,
            H=hidden,
            BLOCK_H=block(hidden),
        )


def told_tokens(prompt: Prompt, row: int, more: Iterable[tuple[int, int]]) -> NDArray[np.int64]:
    """A prompt's tokens as they are told [T, TOKEN_FIELDS]; `more`: (first, last + 1) of those with more to add."""
    told = np.zeros((prompt.prefill_tokens, TOKEN_FIELDS), np.int64)
    told[:, 0], told[:, 1], told[:, 2], told[:, 3] = prompt.text_ids, prompt.codec_ids, row, np.arange(len(told))
    for first, end in more:
        told[first:end, 4] = 1
    return told
