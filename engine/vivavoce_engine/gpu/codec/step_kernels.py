"""Triton kernels of Code2Wav that are not matrix products: codes, attention, small convolutions, histories.

Activations are [B, keep + steps, channels], as in kernels.py.
"""

# Triton reads the annotations of a kernel, so its pointers carry none.
# ruff: noqa: ANN001, ANN201
# mypy: disable-error-code="untyped-decorator,no-untyped-def"

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["steps", "groups", "keep", "last_code"])
def dequantize_kernel(
    codes,
    codebooks,
    out,
    steps,
    groups,
    keep,
    last_code,
    WIDTH: tl.constexpr,
    SEMANTIC: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Sums codebook vectors: codes [B, steps, groups] → out [B, keep + steps, 2 * WIDTH]. One program a frame.

    codebooks [quantizers, last_code + 1, WIDTH]. The first half of a frame's output is the sum of its semantic vectors,
    the second half that of its acoustic vectors. If SEMANTIC is 0, the output is the mean of all, [B, keep + steps,
    WIDTH].
    """
    frame = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    semantic = tl.zeros((BLOCK,), tl.float32)
    acoustic = tl.zeros((BLOCK,), tl.float32)
    for group in range(groups):
        code = tl.load(codes + frame * groups + group).to(tl.int32)
        code = tl.minimum(tl.maximum(code, 0), last_code)  # the codes of padding are arbitrary
        entry = (group * (last_code + 1) + code) * WIDTH
        vector = tl.load(codebooks + entry + column, mask=inside, other=0.0).to(tl.float32)
        if group < SEMANTIC:
            semantic += vector
        else:
            acoustic += vector
    place = (frame // steps) * (keep + steps) + keep + frame % steps
    if SEMANTIC > 0:
        out += place * (2 * WIDTH)
        tl.store(out + column, semantic.to(out.dtype.element_ty), mask=inside)
        tl.store(out + WIDTH + column, acoustic.to(out.dtype.element_ty), mask=inside)
    else:
        tl.store(out + place * WIDTH + column, (acoustic / groups).to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["steps"])
def window_attention_kernel(
    qkv,
    ring,
    rows,
    position,
    inverse_frequency,
    out,
    steps,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WINDOW: tl.constexpr,
    RING: tl.constexpr,
    KEYS: tl.constexpr,
    STEPS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Rotates queries and keys, writes new keys and values to the ring, and attends to the WINDOW frames up to each
    query.

    qkv [B, steps, 3, HEADS, HEAD_DIM], ring [rows, RING, 2, HEADS, HEAD_DIM], out [B, steps, HEADS, HEAD_DIM]. KEYS and
    STEPS are powers of 2 and at least 16, HEAD_DIM is at least 16. STEPS is at least `steps`, KEYS and RING at least
    WINDOW - 1 + steps. Grid [B, HEADS], so that no other program touches a program's part of the ring.
    """
    batch, head = tl.program_id(0), tl.program_id(1)
    HALF: tl.constexpr = HEAD_DIM // 2
    WIDTH: tl.constexpr = HEADS * HEAD_DIM
    row = tl.load(rows + batch)
    at = tl.load(position + row).to(tl.int32)
    column = tl.arange(0, HEAD_DIM)
    turned = (column + HALF) % HEAD_DIM
    speed = tl.load(inverse_frequency + column % HALF)
    ring += row * (RING * 2 * WIDTH) + head * HEAD_DIM
    qkv += batch * steps * (3 * WIDTH) + head * HEAD_DIM
    out += batch * steps * WIDTH + head * HEAD_DIM
    dtype: tl.constexpr = ring.dtype.element_ty
    step = tl.arange(0, STEPS)
    real = (step < steps)[:, None]
    angle = (at + step).to(tl.float32)[:, None] * speed[None, :]
    cos, sin = tl.cos(angle), tl.sin(angle) * tl.where(column < HALF, -1.0, 1.0)[None, :]
    query = qkv + step[:, None] * (3 * WIDTH)
    x = tl.load(query + column[None, :], mask=real, other=0.0).to(tl.float32)
    y = tl.load(query + turned[None, :], mask=real, other=0.0).to(tl.float32)
    rotated = (x * cos + y * sin).to(dtype)
    x = tl.load(query + WIDTH + column[None, :], mask=real, other=0.0).to(tl.float32)
    y = tl.load(query + WIDTH + turned[None, :], mask=real, other=0.0).to(tl.float32)
    value = tl.load(query + 2 * WIDTH + column[None, :], mask=real, other=0.0)
    slot = ring + ((at + step) % RING * (2 * WIDTH))[:, None] + column[None, :]
    tl.store(slot, (x * cos + y * sin).to(dtype), mask=real)
    tl.store(slot + WIDTH, value, mask=real)
    tl.debug_barrier()  # the other threads' keys are read below
    # A key's place in the sums is its slot of the ring, which follows from its frame. So the sums do not depend on the
    # call that a frame is decoded in.
    slot_of_key = tl.arange(0, KEYS)
    last = at + steps - 1
    frame = last - (last - slot_of_key + RING) % RING
    exists = (frame >= 0) & (slot_of_key < RING)
    slots = ring + (tl.where(exists, slot_of_key, 0) * (2 * WIDTH))[:, None] + column[None, :]
    keys = tl.load(slots, mask=exists[:, None], other=0.0)
    values = tl.load(slots + WIDTH, mask=exists[:, None], other=0.0)
    scores = tl.dot(rotated, tl.trans(keys), input_precision=PRECISION) * (HEAD_DIM**-0.5)
    seen = (at + step)[:, None]
    visible = exists[None, :] & (frame[None, :] <= seen) & (frame[None, :] > seen - WINDOW)
    scores = tl.where(visible, scores, -1.0e30)
    shares = tl.where(visible, tl.exp(scores - tl.max(scores, axis=1)[:, None]), 0.0)
    mean = tl.dot(shares.to(dtype), values, input_precision=PRECISION)
    mean /= tl.where(real, tl.sum(shares, axis=1)[:, None], 1.0)
    tl.store(out + step[:, None] * WIDTH + column[None, :], mean.to(dtype), mask=real)


@triton.jit(do_not_specialize=["steps", "keep"])
def depthwise_norm_kernel(
    x,
    weight,
    bias,
    norm_weight,
    norm_bias,
    out,
    steps,
    keep,
    eps,
    CHANNELS: tl.constexpr,
    TAPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Depthwise convolution of x [B, keep + steps, CHANNELS] with weight [TAPS, CHANNELS], then LayerNorm over the
    channels → out [B, steps, CHANNELS]. One program a step."""
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < CHANNELS
    window = x + (row // steps * (keep + steps) + row % steps) * CHANNELS
    sums = tl.load(bias + column, mask=inside, other=0.0)
    for tap in tl.static_range(TAPS):
        value = tl.load(window + tap * CHANNELS + column, mask=inside, other=0.0).to(tl.float32)
        sums += value * tl.load(weight + tap * CHANNELS + column, mask=inside, other=0.0)
    centred = tl.where(inside, sums - tl.sum(sums, axis=0) / CHANNELS, 0.0)
    scaled = centred * tl.rsqrt(tl.sum(centred * centred, axis=0) / CHANNELS + eps)
    scaled *= tl.load(norm_weight + column, mask=inside, other=0.0)
    scaled += tl.load(norm_bias + column, mask=inside, other=0.0)
    tl.store(out + row * CHANNELS + column, scaled.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["steps"])
def waveform_kernel(
    x,
    weight,
    bias,
    out,
    steps,
    CHANNELS: tl.constexpr,
    TAPS: tl.constexpr,
    BM: tl.constexpr,
    BLOCK: tl.constexpr,
    COLUMNS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Convolution to one channel, x [B, TAPS - 1 + steps, CHANNELS] with weight [TAPS, CHANNELS] float32, clamped to
    [-1, 1] → out [B, steps] float32. Grid [blocks of BM - TAPS + 1 steps, B].

    A product has the sums over the channels of each input and tap, and a sample is the sum of one sum of each of TAPS
    inputs. So an input is read once. A weight is the sum of two of x's dtype.
    """
    MADE: tl.constexpr = BM - TAPS + 1
    first, batch = tl.program_id(0) * MADE, tl.program_id(1)
    dtype: tl.constexpr = x.dtype.element_ty
    i = tl.arange(0, BM)
    tap = tl.arange(0, COLUMNS)
    column = tl.arange(0, BLOCK)
    x += (batch * (TAPS - 1 + steps) + first) * CHANNELS
    there = (first + i < TAPS - 1 + steps)[:, None] & (column < CHANNELS)[None, :]
    inputs = tl.load(x + i[:, None] * CHANNELS + column[None, :], mask=there, other=0.0)
    known = (column < CHANNELS)[:, None] & (tap < TAPS)[None, :]
    weights = tl.load(weight + tap[None, :] * CHANNELS + column[:, None], mask=known, other=0.0)
    high = weights.to(dtype)
    sums = tl.dot(inputs, high, input_precision=PRECISION)
    if dtype != tl.float32:
        sums = tl.dot(inputs, (weights - high.to(tl.float32)).to(dtype), sums, input_precision=PRECISION)
    later = tl.minimum(i[:, None] + tap[None, :], BM - 1)
    sample = tl.sum(tl.where((tap < TAPS)[None, :], tl.gather(sums, later, 0), 0.0), axis=1) + tl.load(bias)
    sample = tl.minimum(tl.maximum(sample, -1.0), 1.0)
    tl.store(out + batch * steps + first + i, sample, mask=(i < MADE) & (first + i < steps))


@triton.jit
def inverse_rms_kernel(x, out, eps, CHANNELS: tl.constexpr, BLOCK: tl.constexpr):
    """1 / sqrt(mean square + eps) of each row of x [rows, CHANNELS] → out [rows] float32. One program a row."""
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    value = tl.load(x + row * CHANNELS + column, mask=column < CHANNELS, other=0.0).to(tl.float32)
    tl.store(out + row, tl.rsqrt(tl.sum(value * value, axis=0) / CHANNELS + eps))


@triton.jit(do_not_specialize=["steps", "size"])
def histories_kernel(arena, buffers, rows, position, table, steps, size, SAVE: tl.constexpr, BLOCK: tl.constexpr):
    """Copies the rows' histories between the arena [rows, size] and the buffers. Grid [blocks, B].

    Without SAVE they go from the arena to the fronts of the buffers, as zeros at position 0. With SAVE they go from the
    buffers' ends back to the arena, and the rows' positions then move on by `steps` frames.

    table [blocks, 5] int32: a history's place in the arena, its buffer's place, its number of values, the number of
    values that a frame adds to its buffer, and the first value of this block.
    """
    entry = table + tl.program_id(0) * 5
    row = tl.load(rows + tl.program_id(1))
    place, buffer, count, per_frame = tl.load(entry), tl.load(entry + 1), tl.load(entry + 2), tl.load(entry + 3)
    i = tl.load(entry + 4) + tl.arange(0, BLOCK)
    kept = arena + row * size + place + i
    worked = buffers + buffer + tl.program_id(1) * (count + per_frame * steps) + i
    if SAVE:
        tl.store(kept, tl.load(worked + per_frame * steps, mask=i < count), mask=i < count)
        if tl.program_id(0) == 0:
            tl.store(position + row, tl.load(position + row) + steps)
    else:
        begun = tl.load(position + row) > 0
        tl.store(worked, tl.load(kept, mask=begun & (i < count), other=0.0), mask=i < count)
