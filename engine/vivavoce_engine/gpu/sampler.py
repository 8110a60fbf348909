"""Draws a code for each row, and prepares the next input from it: one program a row, one launch a codebook.

cpu/sampling.py does the same operations in the same order in plain PyTorch. Random numbers are the same function of
(seed, frame, codebook). Bisection finds the k-th largest logit, which is exact. Codes that tie at the edge of top-p are
all kept.
"""

# Triton reads the annotations of a kernel, so its pointers carry none.
# ruff: noqa: ANN001, ANN201
# mypy: disable-error-code="untyped-decorator,no-untyped-def"

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from vivavoce_engine.checkpoint.networks import CODEBOOKS_MAX
from vivavoce_engine.gpu.launch import Launcher
from vivavoce_engine.gpu.scores import Scores
from vivavoce_engine.request import RANDOM_BITS

SHIFT = tl.constexpr(64 - RANDOM_BITS)
SCALE = tl.constexpr(1.0 / (1 << RANDOM_BITS))
CODEBOOKS = tl.constexpr(CODEBOOKS_MAX)
SIGN = tl.constexpr(0x80000000)
COUNTED = tl.constexpr(256)
"""Values that a warp counts: eight in each thread, as they are loaded."""
WARPS = 4
PARAMS = 4
"""Parameters of one sampler, float32 each: temperature, top_k, top_p, repetition_penalty."""
GREEDY = (0.0, 0.0, 1.0, 1.0)


@triton.jit
def mix(x):
    """The finaliser of SplitMix64 on uint64 (cpu/sampling.py)."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def uniform(seed, frame, codebook):
    """seed, frame int64 → float32 in [0, 1)."""
    counter = (frame * CODEBOOKS + codebook + 1).to(tl.uint64)
    bits = mix(mix(seed.to(tl.uint64)) + counter * 0x9E3779B97F4A7C15) >> SHIFT
    return bits.to(tl.float32) * SCALE


@triton.jit
def extremes(lows, highs):
    """The smallest of lows [BLOCK] and the largest of highs [BLOCK], in one reduction."""
    negative, high = tl.split(tl.max(tl.join(-lows, highs), axis=0))
    return -negative, high


@triton.jit
def count_reaching(x, first, middle, third):
    """Counts of x [BLOCK] that reach three thresholds, in one reduction.

    Counts of up to COUNTED values are packed into 32 bits, which a warp adds up in one instruction, and their sums into
    64 bits.
    """
    ROW: tl.constexpr = COUNTED if x.shape[0] > COUNTED else x.shape[0]
    reach = tl.where(x >= first, 1, 0) + tl.where(x >= middle, 1 << 10, 0) + tl.where(x >= third, 1 << 20, 0)
    counts = tl.sum(tl.reshape(reach, (x.shape[0] // ROW, ROW)), axis=1).to(tl.int64)
    counts = (counts & 0x3FF) | ((counts & 0xFFC00) << 10) | ((counts >> 20) << 40)
    total = tl.sum(counts, axis=0)
    return total & 0xFFFFF, (total >> 20) & 0xFFFFF, total >> 40


@triton.jit
def kth_largest(x, low, high, count):
    """Returns a number that exactly `count` of x [BLOCK] reach.

    If ties prevent that, it is the count-th largest. If x has fewer values, it is the smallest. `low` and `high` are
    the smallest and the largest of x.

    Each round keeps a quarter of the range. At least `count` values reach `low`, and fewer reach `high`. The search
    ends at the latest when no number lies between the two.
    """
    searching = low < high
    while searching:
        width = high - low
        first, middle, third = low + width * 0.25, low + width * 0.5, low + width * 0.75
        reach_first, reach_middle, reach_third = count_reaching(x, first, middle, third)
        between = (middle > low) & (middle < high)
        next_low = tl.where(reach_first >= count, first, low)
        next_low = tl.where(reach_middle >= count, middle, next_low)
        next_low = tl.where(reach_third >= count, third, next_low)
        next_high = tl.where(reach_third < count, third, high)
        next_high = tl.where(reach_middle < count, middle, next_high)
        next_high = tl.where(reach_first < count, first, next_high)
        low = tl.where(between, next_low, low)
        high = tl.where(between, next_high, high)
        found = (reach_first == count) | (reach_middle == count) | (reach_third == count)
        searching = between & ~found
    return low


@triton.jit
def largest_droppable(p, mass):
    """Returns the largest float t ≥ 0, as bits, for which the probabilities up to t sum to at most `mass`. All bits are
    1 if every t does."""
    bits = p.to(tl.uint32, bitcast=True)
    found = tl.zeros((), tl.uint32)
    top = tl.full((), SIGN, tl.uint32)
    for bit in range(1, 32):
        candidate = found | (top >> bit)
        fits = tl.sum(tl.where(bits <= candidate, p, 0.0)) <= mass
        found = tl.where(fits, candidate, found)
    return found


@triton.jit
def draw(logits, inside, temperature, top_k, top_p, noise, BLOCK_V: tl.constexpr):
    """Draws a code, int32, from logits [BLOCK_V] float32, which are -inf where a code is impossible.

    `noise` is the random number, in [0, 1).
    """
    if temperature > 0:
        scaled = logits / temperature
        keep = logits > float("-inf")
        lowest, highest = extremes(tl.where(keep, scaled, float("inf")), scaled)
        if top_k > 0:
            # Impossible codes count as the lowest possible one, which keeps the range of the search narrow.
            keep = keep & (scaled >= kth_largest(tl.where(keep, scaled, lowest), lowest, highest, top_k))
        e = tl.where(keep, tl.exp(scaled - highest), 0.0)
        p = e / tl.sum(e)
        if top_p < 1:
            limit = largest_droppable(tl.where(keep, p, 2.0), 1.0 - top_p)
            stays = keep & ((p.to(tl.uint32, bitcast=True) > limit) | (scaled == highest))
            e = tl.where(stays, e, 0.0)
            p = e / tl.sum(e)
        # In float64 neither rounding nor the order of a sum matters (cpu/sampling.py).
        cumulative = tl.cumsum(p.to(tl.float64), axis=0)
        target = noise.to(tl.float64) * tl.sum(p.to(tl.float64), axis=0)
        code = tl.sum((inside & (cumulative <= target)).to(tl.int32))
    else:
        code = tl.argmax(logits, axis=0)
    return code


@triton.jit
def load_params(params_ptr):
    """Loads one sampler's temperature, top_k and top_p."""
    return tl.load(params_ptr), tl.load(params_ptr + 1).to(tl.int32), tl.load(params_ptr + 2)


@triton.jit(do_not_specialize=["batch"])
def frame_start_kernel(
    rows_ptr,
    hidden_ptr,
    code_0_ptr,
    frames_ptr,
    codes_ptr,
    input_embedding_ptr,
    codec_embedding_ptr,
    hidden_out_ptr,
    x_ptr,
    total_ptr,
    batch,
    GROUPS: tl.constexpr,
    RING: tl.constexpr,
    H: tl.constexpr,
    BLOCK_H: tl.constexpr,
    P: tl.constexpr,
    BLOCK_P: tl.constexpr,
) -> None:
    """Prepares the first two inputs of the code predictor. Grid [batch].

    Token b is the talker's hidden state, written to hidden_out [batch, H]. Token batch + b of x [2 batch, P] is the
    embedding of code 0, which also begins `total` [batch, H], the sum of the frame's embeddings.
    """
    b = tl.program_id(0)
    row = tl.load(rows_ptr + b).to(tl.int64)
    code = tl.load(code_0_ptr + row)
    frame = tl.load(frames_ptr + row)
    tl.store(codes_ptr + (row * RING + frame % RING) * GROUPS, code)
    h = tl.arange(0, BLOCK_H)
    hidden = tl.load(hidden_ptr + row * H + h, mask=h < H, other=0.0)
    embedding = tl.load(codec_embedding_ptr + code * H + h, mask=h < H, other=0.0)
    tl.store(total_ptr + b * H + h, embedding, mask=h < H)
    tl.store(hidden_out_ptr + b * H + h, hidden, mask=h < H)
    p = tl.arange(0, BLOCK_P)
    x = tl.load(input_embedding_ptr + code * P + p, mask=p < P, other=0.0)
    tl.store(x_ptr + (batch + b) * P + p, x, mask=p < P)


@triton.jit(do_not_specialize=["text_length", "pad_id", "group"])
def draw_code_kernel(
    logits_ptr,
    rows_ptr,
    params_ptr,
    seeds_ptr,
    frames_ptr,
    codes_ptr,
    input_embedding_ptr,
    codec_embedding_ptr,
    total_ptr,
    x_ptr,
    text_ids_ptr,
    text_counts_ptr,
    text_embedding_ptr,
    kept_ptr,
    text_length,
    pad_id,
    group,
    V: tl.constexpr,
    BLOCK_V: tl.constexpr,
    GROUPS: tl.constexpr,
    RING: tl.constexpr,
    PARAMS: tl.constexpr,
    H: tl.constexpr,
    BLOCK_H: tl.constexpr,
    P: tl.constexpr,
    BLOCK_P: tl.constexpr,
    LAST: tl.constexpr,
    DEPENDENT: tl.constexpr = False,
) -> None:
    """Draws code `group` ≥ 1 of each row's frame from logits [batch, V]. Grid [batch].

    The code's embedding is added to `total` [batch, H], and is the code predictor's next input, x [batch, P]. After the
    LAST group, the talker's input x [batch, H] is the sum plus the embedding of the row's next text id; or the sum goes
    to `kept` [rows, H], if there is one, until that id is known.
    """
    b = tl.program_id(0)
    # A frame changes none of the values loaded before the wait until all its codes are drawn.
    row = tl.load(rows_ptr + b).to(tl.int64)
    frame = tl.load(frames_ptr + row)
    temperature, top_k, top_p = load_params(params_ptr + row * 2 * PARAMS + PARAMS)
    noise = uniform(tl.load(seeds_ptr + row), frame, group)
    h = tl.arange(0, BLOCK_H)
    if LAST and kept_ptr is None:
        count = tl.load(text_counts_ptr + row)
        spoken = frame < count
        text = tl.load(text_ids_ptr + row * text_length + tl.where(spoken, frame, 0))
        text = tl.where(spoken, text, pad_id)
        addend = tl.load(text_embedding_ptr + text * H + h, mask=h < H, other=0.0).to(tl.float32)
    if DEPENDENT:
        # In this order no kernel after a draw begins before those in front of it have ended (frame_attention.py).
        gdc_wait()
        gdc_launch_dependents()
    v = tl.arange(0, BLOCK_V)
    inside = v < V
    logits = tl.load(logits_ptr + b * V + v, mask=inside, other=float("-inf")).to(tl.float32)
    total = tl.load(total_ptr + b * H + h, mask=h < H, other=0.0).to(tl.float32)
    code = draw(logits, inside, temperature, top_k, top_p, noise, BLOCK_V).to(tl.int64)
    # Both embeddings are on their way before anything is stored.
    embedding = tl.load(codec_embedding_ptr + code * H + h, mask=h < H, other=0.0).to(tl.float32)
    if not LAST:
        p = tl.arange(0, BLOCK_P)
        x = tl.load(input_embedding_ptr + code * P + p, mask=p < P, other=0.0)
    tl.store(codes_ptr + (row * RING + frame % RING) * GROUPS + group, code)
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    total = (total + embedding).to(dtype)
    if LAST and kept_ptr is not None:
        tl.store(kept_ptr + row * H + h, total, mask=h < H)
    elif LAST:
        x = (total.to(tl.float32) + addend).to(dtype)
        tl.store(x_ptr + b * H + h, x, mask=h < H)
    else:
        tl.store(total_ptr + b * H + h, total, mask=h < H)
        tl.store(x_ptr + b * P + p, x, mask=p < P)


@triton.jit(do_not_specialize=["text_length", "pad_id", "opening_id"])
def read_text_kernel(
    rows_ptr,
    frames_ptr,
    text_ids_ptr,
    text_counts_ptr,
    kept_ptr,
    text_embedding_ptr,
    codec_embedding_ptr,
    x_ptr,
    text_length,
    pad_id,
    opening_id,
    H: tl.constexpr,
    BLOCK_H: tl.constexpr,
) -> None:
    """Prepares the talker's inputs x [batch, H] where it reads a frame's text before the frame. Grid [batch].

    An input is the embedding of the text id that goes with the row's next frame, plus `kept` [rows, H], the sum of the
    embeddings of the frame before; before the first frame plus that of the code `opening_id`.
    """
    b = tl.program_id(0)
    row = tl.load(rows_ptr + b).to(tl.int64)
    frame = tl.load(frames_ptr + row) + 1
    h = tl.arange(0, BLOCK_H)
    inside = h < H
    spoken = frame < tl.load(text_counts_ptr + row)
    text = tl.load(text_ids_ptr + row * text_length + tl.where(spoken, frame, 0))
    text = tl.where(spoken, text, pad_id)
    addend = tl.load(text_embedding_ptr + text * H + h, mask=inside, other=0.0).to(tl.float32)
    codec = tl.load(kept_ptr + row * H + h, mask=inside & (frame != 0), other=0.0).to(tl.float32)
    codec += tl.load(codec_embedding_ptr + opening_id * H + h, mask=inside & (frame == 0), other=0.0).to(tl.float32)
    tl.store(x_ptr + b * H + h, (codec + addend).to(x_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["dummy_row", "end_of_speech"])
def draw_code_0_kernel(
    logits_ptr,
    rows_ptr,
    params_ptr,
    seeds_ptr,
    frames_ptr,
    positions_ptr,
    min_frames_ptr,
    seen_ptr,
    code_0_ptr,
    ended_ptr,
    scores_ptr,
    first_ptr,
    window_ptr,
    dummy_row,
    end_of_speech,
    V: tl.constexpr,
    BLOCK_V: tl.constexpr,
    SPEECH: tl.constexpr,
    PARAMS: tl.constexpr,
    TAKEN: tl.constexpr = 0,
    POSITIONS: tl.constexpr = 0,
    DEPENDENT: tl.constexpr = False,
) -> None:
    """Draws code 0 of each row's next frame, or the end of speech, from logits [batch, V]. Grid [batch].

    The row moves on by a frame. Codes from SPEECH on steer the prompt. Of them only the end of speech may be drawn,
    from frame min_frames[row] on.

    TAKEN of the row's scores [rows, POSITIONS], from position first [batch] on, go to window [batch, TAKEN].
    """
    b = tl.program_id(0)
    row = tl.load(rows_ptr + b).to(tl.int64)
    frame = tl.load(frames_ptr + row) + 1
    params = params_ptr + row * 2 * PARAMS
    temperature, top_k, top_p = load_params(params)
    penalty = tl.load(params + 3)
    v = tl.arange(0, BLOCK_V)
    inside = v < V
    seen = tl.load(seen_ptr + row * V + v, mask=inside, other=0) != 0
    may_end = frame >= tl.load(min_frames_ptr + row)
    noise = uniform(tl.load(seeds_ptr + row), frame, 0)
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    if TAKEN > 0:
        w = tl.arange(0, TAKEN)
        at = tl.load(first_ptr + b) + w
        there = (at >= 0) & (at <= tl.load(positions_ptr + row))
        scores = tl.load(scores_ptr + row * POSITIONS + at, mask=there, other=float("-inf"))
        tl.store(window_ptr + b * TAKEN + w, scores)
    logits = tl.load(logits_ptr + b * V + v, mask=inside, other=float("-inf")).to(tl.float32)
    penalised = tl.where(logits < 0, logits * penalty, logits / penalty)
    logits = tl.where(seen, penalised, logits)
    allowed = (v < SPEECH) | ((v == end_of_speech) & may_end)
    logits = tl.where(inside & allowed, logits, float("-inf"))
    code = draw(logits, inside, temperature, top_k, top_p, noise, BLOCK_V)
    tl.store(code_0_ptr + row, code.to(tl.int64))
    tl.store(seen_ptr + row * V + code, 1)
    tl.store(ended_ptr + b, (code == end_of_speech).to(tl.int32))
    if row != dummy_row:
        tl.store(frames_ptr + row, frame)
        tl.store(positions_ptr + row, tl.load(positions_ptr + row) + 1)


@dataclass(frozen=True)
class RowTables:
    """State of each row on the device, and of one dummy row, the last, which pads batches."""

    params: Tensor
    """[rows, 2, PARAMS] float32: the talker's sampler, then the code predictor's."""
    seeds: Tensor
    """[rows] int64"""
    frames: Tensor
    """[rows] int64: number of the frame that is made next."""
    positions: Tensor
    """[rows] int64: position of the talker's next input."""
    min_frames: Tensor
    """[rows] int64: first frame in whose place the speech may end."""
    seen: Tensor
    """[rows, vocab] uint8: 1 for each code 0 drawn so far."""
    code_0: Tensor
    """[rows] int64: code 0 of the frame that is made next."""
    hidden: Tensor
    """[rows, hidden]: the talker's last hidden state."""
    codes: Tensor
    """[rows, ring, groups] int64: frame f is at f modulo ring."""
    text_ids: Tensor
    """[rows, positions] int64: id k goes with frame k."""
    text_counts: Tensor
    """[rows] int64: text ids so far."""
    kept: Tensor | None
    """[rows, hidden]: sum of the embeddings of the last frame, where the talker reads a frame's text before it."""
    shifts: Tensor | None
    """[rows] int64: by how much the rotary positions of frames are behind their positions. None if they are equal."""

    @classmethod
    def allocate(
        cls,
        rows: int,
        positions: int,
        vocab: int,
        hidden: int,
        ring: int,
        groups: int,
        like: Tensor,
        *,
        shifted: bool = False,
        keeps: bool = False,
    ) -> "RowTables":
        assert ring > 1, "a frame is read while the next one is written"
        rows += 1

        def ints(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int64, device=like.device)

        return cls(
            params=torch.tensor(GREEDY, device=like.device).repeat(rows, 2, 1),
            seeds=ints(rows),
            frames=ints(rows),
            positions=ints(rows),
            min_frames=ints(rows),
            seen=torch.zeros(rows, vocab, dtype=torch.uint8, device=like.device),
            code_0=ints(rows),
            hidden=like.new_zeros(rows, hidden),
            codes=ints(rows, ring, groups),
            text_ids=ints(rows, positions),
            text_counts=ints(rows),
            kept=like.new_zeros(rows, hidden) if keeps else None,
            shifts=ints(rows) if shifted else None,
        )

    @property
    def dummy_row(self) -> int:
        return len(self.seeds) - 1


def draw_code_0(
    launch: Launcher,
    logits: Tensor,
    rows: Tensor,
    tables: RowTables,
    ended: Tensor,
    end_of_speech: int,
    speech: int,
    scores: Scores | None = None,
) -> None:
    """Draws from logits [B, V] into `tables.code_0` of rows [B] int32, and sets ended [B] int32.

    The rows' frames and positions move on by one. Codes from `speech` on steer the prompt. If the step has kept
    `scores`, their windows are taken too.
    """
    assert logits.shape == (len(rows), tables.seen.shape[1])
    assert rows.dtype == ended.dtype == torch.int32
    assert speech <= end_of_speech < logits.shape[1], "the end of speech is one of the codes that steer"
    taken: dict[str, int] = {}
    if scores is not None:
        assert len(scores.table) == len(tables.seeds)
        assert len(scores.first) >= len(rows)
        taken = {"TAKEN": scores.window.shape[1], "POSITIONS": scores.table.shape[1]}
    launch(
        draw_code_0_kernel,
        (len(rows),),
        logits,
        rows,
        tables.params,
        tables.seeds,
        tables.frames,
        tables.positions,
        tables.min_frames,
        tables.seen,
        tables.code_0,
        ended,
        *((None,) * 3 if scores is None else (scores.table, scores.first, scores.window)),
        tables.dummy_row,
        end_of_speech,
        V=logits.shape[1],
        BLOCK_V=triton.next_power_of_2(logits.shape[1]),
        SPEECH=speech,
        PARAMS=PARAMS,
        **taken,
        num_warps=WARPS,
    )
