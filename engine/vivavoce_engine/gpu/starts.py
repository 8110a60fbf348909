"""Starts rows: the state that a row begins with, and its prompt's tokens.

Each is packed into one array, uploaded in one copy, and put in place by a kernel. An idle engine's first audio waits
for the host to start a row, and every small copy or operation costs the host about 10 µs.
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
from vivavoce_engine.gpu.heads import AXES
from vivavoce_engine.gpu.sampler import PARAMS
from vivavoce_engine.models.talker import Talker
from vivavoce_engine.pages import PAGE_POSITIONS
from vivavoce_engine.text.prompt import NO_ID, Prompt

NO_ROW = -1
ABSENT = tl.constexpr(NO_ID)

# Fields of a row's start record, int64; the row's pages follow.
ROW = tl.constexpr(0)
SEED = tl.constexpr(1)
POSITION = tl.constexpr(2)
MIN_FRAMES = tl.constexpr(3)
TEXT_COUNT = tl.constexpr(4)
SHIFT = tl.constexpr(5)
FIRST_PARAM = tl.constexpr(6)
"""The parameters of two samplers, PARAMS each, as the bits of float32."""
ROW_FIELDS = FIRST_PARAM.value + 2 * PARAMS

# Fields of a prompt token's record, int64.
TEXT_ID = tl.constexpr(0)
CODEC_ID = tl.constexpr(1)
TOKEN_ROW = tl.constexpr(2)
TOKEN_POSITION = tl.constexpr(3)
HAS_MORE = tl.constexpr(4)
"""Not 0 if x already holds an embedding that is to be added."""
TOKEN_FIELDS = HAS_MORE.value + 1
"""The token's rotary positions follow, if they have several axes."""


@triton.jit
def set_rows_kernel(
    packed_ptr,
    seeds_ptr,
    frames_ptr,
    positions_ptr,
    min_frames_ptr,
    text_counts_ptr,
    params_ptr,
    seen_ptr,
    pages_ptr,
    shifts_ptr,
    FIELDS: tl.constexpr,
    PARAMS: tl.constexpr,
    CHUNKS: tl.constexpr,
    BLOCK_CHUNKS: tl.constexpr,
    V: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """Writes start records, packed [rows, FIELDS + CHUNKS] int64, to the tables of their rows. Grid [rows].

    Frames begin at -1, and positions at the last of the prompt. The end of the prompt moves both on to their first
    values.
    """
    packed = packed_ptr + tl.program_id(0) * (FIELDS + CHUNKS)
    row = tl.load(packed + ROW)
    if row >= 0:
        tl.store(seeds_ptr + row, tl.load(packed + SEED))
        tl.store(frames_ptr + row, row * 0 - 1)
        tl.store(positions_ptr + row, tl.load(packed + POSITION))
        tl.store(min_frames_ptr + row, tl.load(packed + MIN_FRAMES))
        tl.store(text_counts_ptr + row, tl.load(packed + TEXT_COUNT))
        if shifts_ptr is not None:
            tl.store(shifts_ptr + row, tl.load(packed + SHIFT))
        i = tl.arange(0, 2 * PARAMS)
        params = tl.load(packed + FIRST_PARAM + i).to(tl.int32).to(tl.float32, bitcast=True)
        tl.store(params_ptr + row * 2 * PARAMS + i, params)
        chunk = tl.arange(0, BLOCK_CHUNKS)
        pages = tl.load(packed + FIELDS + chunk, mask=chunk < CHUNKS)
        tl.store(pages_ptr + row * CHUNKS + chunk, pages.to(tl.int32), mask=chunk < CHUNKS)
        v = tl.arange(0, BLOCK_V)
        tl.store(seen_ptr + row * V + v, tl.zeros((BLOCK_V,), tl.uint8), mask=v < V)


@triton.jit(do_not_specialize=["tokens", "dummy_row"])
def embed_tokens_kernel(
    packed_ptr,
    text_embedding_ptr,
    codec_embedding_ptr,
    x_ptr,
    token_rows_ptr,
    token_positions_ptr,
    rows_ptr,
    last_tokens_ptr,
    token_axes_ptr,
    tokens,
    dummy_row,
    BATCH: tl.constexpr,
    FIELDS: tl.constexpr,
    AXIS: tl.constexpr,
    AXES: tl.constexpr,
    H: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """Embeds packed tokens. Grid [at least tokens and BATCH].

    packed int64: the number of tokens; BATCH pairs (row whose prompt ends, index of its last token); FIELDS for each
    token.

    Results: x [tokens, H], token_rows [tokens] int32, token_positions [tokens] int64, rows [BATCH] int32, last_tokens
    [BATCH] int64; token_axes [tokens, AXES] int64, if there is any, from the fields from AXIS on. Tokens behind the
    last one belong to the dummy row.
    """
    at = tl.program_id(0)
    if at < BATCH:
        tl.store(rows_ptr + at, tl.load(packed_ptr + 1 + 2 * at).to(tl.int32))
        tl.store(last_tokens_ptr + at, tl.load(packed_ptr + 2 + 2 * at))
    here = at < tokens
    exists = here & (at < tl.load(packed_ptr))
    token = packed_ptr + 1 + 2 * BATCH + at * FIELDS
    text = tl.load(token + TEXT_ID, mask=exists, other=ABSENT)
    codec = tl.load(token + CODEC_ID, mask=exists, other=ABSENT)
    row = tl.load(token + TOKEN_ROW, mask=exists, other=dummy_row).to(tl.int32)
    tl.store(token_rows_ptr + at, row, mask=here)
    tl.store(token_positions_ptr + at, tl.load(token + TOKEN_POSITION, mask=exists, other=0), mask=here)
    if token_axes_ptr is not None:
        for axis in tl.static_range(AXES):
            turned = tl.load(token + AXIS + axis, mask=exists, other=0)
            tl.store(token_axes_ptr + at * AXES + axis, turned, mask=here)
    more = tl.load(token + HAS_MORE, mask=exists, other=0) != 0
    h = tl.arange(0, BLOCK_H)
    inside = here & (h < H)
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    x = tl.load(text_embedding_ptr + text * H + h, mask=inside & (text != ABSENT), other=0.0).to(tl.float32)
    x += tl.load(codec_embedding_ptr + codec * H + h, mask=inside & (codec != ABSENT), other=0.0).to(tl.float32)
    # Rounded between the two sums, as in models/prompts.py.
    x = x.to(dtype).to(tl.float32)
    x += tl.load(x_ptr + at * H + h, mask=inside & more, other=0.0).to(tl.float32)
    tl.store(x_ptr + at * H + h, x.to(dtype), mask=inside)


@dataclass(frozen=True, slots=True)
class RowStart:
    """The state that a row begins with. `position` is the last of its prompt; `pages` are its pages so far.

    Rotary positions of frames are `shift` behind their positions.
    """

    row: int
    seed: int
    position: int
    min_frames: int
    text_count: int
    params: SequenceOf[float]
    """Parameters of the talker's sampler and of the code predictor's, PARAMS each."""
    pages: SequenceOf[int]
    shift: int = 0

    def __post_init__(self) -> None:
        assert len(self.params) == 2 * PARAMS
        assert 0 <= self.position < len(self.pages) * PAGE_POSITIONS, "the prompt is written to pages that the row has"


class Starts:
    """Starts up to `batch` rows of a model at once, and embeds their prompts' tokens.

    An upload is one copy. The rest are launches that can be captured.
    """

    def __init__(self, model: FrameModel, talker: Talker, batch: int) -> None:
        self._model, self._batch = model, batch
        self._text, self._codec = talker.text_embedding.weight, talker.codec_embedding.weight
        self._no_page = model.cache.last_page
        device = self._text.device
        self._rows = torch.full((batch, ROW_FIELDS + model.cache.chunks), NO_ROW, device=device)
        self.token_fields = TOKEN_FIELDS + (0 if model.token_axes is None else AXES)
        """Fields of a prompt token's record."""
        tokens = len(model.token_rows)
        self._tokens = torch.zeros(1 + 2 * batch + self.token_fields * tokens, dtype=torch.int64, device=device)
        self.upload_tokens(np.empty((0, self.token_fields), np.int64), {})  # the dummy row's alone, until a row starts

    def upload_rows(self, starts: SequenceOf[RowStart]) -> None:
        """Uploads start records, for `set_rows`."""
        assert len(starts) <= self._batch
        assert all(0 <= start.row < self._model.tables.dummy_row for start in starts)
        assert all(0 <= page < self._no_page for start in starts for page in start.pages)
        packed = np.full(self._rows.shape, NO_ROW, np.int64)
        for line, start in zip(packed, starts, strict=False):
            line[ROW.value] = start.row
            line[SEED.value] = start.seed
            line[POSITION.value] = start.position
            line[MIN_FRAMES.value] = start.min_frames
            line[TEXT_COUNT.value] = start.text_count
            assert start.shift == 0 or self._model.tables.shifts is not None
            line[SHIFT.value] = start.shift
            line[FIRST_PARAM.value : ROW_FIELDS] = np.array(start.params, np.float32).view(np.int32)
            line[ROW_FIELDS:] = self._no_page
            line[ROW_FIELDS : ROW_FIELDS + len(start.pages)] = start.pages
        copy_into(self._rows, packed)

    def set_rows(self) -> None:
        """Writes the uploaded start records to the tables."""
        tables, pages = self._model.tables, self._model.cache.pages
        chunks, vocab = pages.shape[1], tables.seen.shape[1]
        self._model.launch(
            set_rows_kernel,
            (self._batch,),
            self._rows,
            tables.seeds,
            tables.frames,
            tables.positions,
            tables.min_frames,
            tables.text_counts,
            tables.params,
            tables.seen,
            pages,
            tables.shifts,
            FIELDS=ROW_FIELDS,
            PARAMS=PARAMS,
            CHUNKS=chunks,
            BLOCK_CHUNKS=triton.next_power_of_2(chunks),
            V=vocab,
            BLOCK_V=triton.next_power_of_2(vocab),
        )

    def upload_tokens(self, tokens: NDArray[np.int64], last: Mapping[int, int]) -> None:
        """Uploads packed tokens [T, token_fields] int64, for `embed_tokens`.

        `last`: row → index of the token that ends its prompt.
        """
        assert tokens.dtype == np.int64
        assert tokens.shape[1:] == (self.token_fields,)
        assert len(tokens) <= len(self._model.token_rows)
        assert len(last) <= self._batch
        assert tokens[:, TEXT_ID.value].max(initial=NO_ID) < len(self._text), "an id past the table reads other memory"
        assert tokens[:, CODEC_ID.value].max(initial=NO_ID) < len(self._codec)
        assert tokens[:, TOKEN_FIELDS:].max(initial=0) < len(self._model.cache.cache.cos)
        packed = np.zeros(1 + 2 * self._batch + tokens.size, np.int64)
        packed[0] = len(tokens)
        ends = packed[1 : 1 + 2 * self._batch].reshape(-1, 2)
        ends[:, 0] = self._model.tables.dummy_row
        for line, end in zip(ends, last.items(), strict=False):
            line[:] = end
        packed[1 + 2 * self._batch :] = tokens.reshape(-1)
        copy_into(self._tokens[: len(packed)], packed)

    def embed_tokens(self) -> None:
        """Prepares the model's `prefill` of the uploaded tokens."""
        model = self._model
        tokens, hidden = len(model.token_rows), model.talker.hidden
        model.launch(
            embed_tokens_kernel,
            (max(tokens, self._batch),),
            self._tokens,
            self._text,
            self._codec,
            model.talker.x,
            model.token_rows,
            model.token_positions,
            model.rows,
            model.last_tokens,
            model.token_axes,
            tokens,
            model.tables.dummy_row,
            BATCH=self._batch,
            FIELDS=self.token_fields,
            AXIS=TOKEN_FIELDS,
            AXES=AXES,
            H=hidden,
            BLOCK_H=triton.next_power_of_2(hidden),
        )


def pack_tokens(
    prompt: Prompt, row: int, more: Iterable[tuple[int, int]], axes: NDArray[np.int64] | None = None
) -> NDArray[np.int64]:
    """Returns a prompt's tokens [T, TOKEN_FIELDS] int64, or [T, TOKEN_FIELDS + AXES] with their rotary positions `axes`
    [AXES, T].

    `more`: ranges (first, last + 1) of tokens whose embedding is added to an embedding that x already holds.
    """
    packed = np.zeros((prompt.prefill_tokens, TOKEN_FIELDS + (0 if axes is None else AXES)), np.int64)
    packed[:, TEXT_ID.value] = prompt.text_ids
    packed[:, CODEC_ID.value] = prompt.codec_ids
    packed[:, TOKEN_ROW.value] = row
    packed[:, TOKEN_POSITION.value] = np.arange(len(packed))
    for first, end in more:
        packed[first:end, HAS_MORE.value] = 1
    if axes is not None:
        packed[:, TOKEN_FIELDS:] = axes.T
    return packed
