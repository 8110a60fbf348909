"""Triton kernels of Code2Wav's matrix products, channels-last. Sums are float32; operands have the dtype of the
buffers.

A convolution reads its input from a buffer [B, keep + steps, channels] whose front holds the row's last `keep` inputs.
A window is `taps` rows of it, `dilation` rows apart. So the convolution is a matrix product whose operand is gathered
while it runs. Row m of a product is step m % steps of batch element m // steps.
"""

# Triton reads the annotations of a kernel, so its pointers carry none.
# ruff: noqa: ANN001, ANN201, ANN202
# mypy: disable-error-code="untyped-decorator,no-untyped-def"

import triton
import triton.language as tl

PI_HIGH = tl.constexpr(3.140625)  # pi in three parts, so that a multiple of the first is exact in float32
PI_MIDDLE = tl.constexpr(9.67502593994140625e-4)
PI_LOW = tl.constexpr(1.509957990978376432e-7)


@triton.jit
def _snake(x, frequency, magnitude, FAST: tl.constexpr):
    """x + magnitude * (1 - cos(frequency * x)), which is a snake whose frequency is doubled and whose magnitude is
    halved.

    With FAST the cosine is the card's own instruction, for results of 16 bits. It is off by 2^-20.9 (PTX manual) and by
    2^-23 of the angle, and a bfloat16 rounds 2^-9 off. Otherwise the cosine follows from the sine of half of the angle.
    That is first reduced to [-pi/2, pi/2], because its square has period pi.
    """
    if FAST:
        cosine = tl.inline_asm_elementwise(
            "cos.approx.ftz.f32 $0, $1;", "=f,f", [x * frequency], dtype=tl.float32, is_pure=True, pack=1
        )
        return tl.fma(-magnitude, cosine, x + magnitude)
    angle = x * (0.5 * frequency)
    turns = tl.floor(tl.fma(angle, 0.3183098861837907, 0.5))
    angle = tl.fma(turns, -PI_HIGH, angle)
    angle = tl.fma(turns, -PI_MIDDLE, angle)
    angle = tl.fma(turns, -PI_LOW, angle)
    square = angle * angle
    series = tl.fma(square, 2.60005481e-06, -0.000198066147)
    series = tl.fma(series, square, 0.00833301712)
    series = tl.fma(series, square, -0.166666567)
    sine = tl.fma(series * square, angle, angle)
    return tl.fma(2.0 * magnitude, sine * sine, x)


@triton.jit
def _dot(a, b, sums, PRECISION: tl.constexpr):
    return tl.dot(a, b, sums, input_precision=PRECISION)


@triton.jit
def _window_sums(
    windows,
    weight,
    x_tiles,
    tiles_0,
    tiles_1,
    first_row,
    column_0,
    column_1,
    n_0,
    n_1,
    dilation,
    CHANNELS: tl.constexpr,
    TAPS: tl.constexpr,
    BM: tl.constexpr,
    BN_0: tl.constexpr,
    BN_1: tl.constexpr,
    BK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Multiplies the windows at `windows` [BM] by weight [N, TAPS * CHANNELS] → sums of the columns n_0 [BN_0] and n_1
    [BN_1].

    There are two column blocks, because a width of 96 or 192 is not a power of 2. BN_1 = 0 leaves out the second. With
    `x_tiles` the windows are those of BM rows of x from `first_row` on, and tiles of x and of the weight come through
    descriptors: [BM, BK] of x, and [BN_0, BK] and [BN_1, BK] of the weight, from `column_0` and `column_1` on.
    """
    K: tl.constexpr = TAPS * CHANNELS
    sums_0 = tl.zeros((BM, BN_0), tl.float32)
    sums_1 = tl.zeros((BM, BN_1 if BN_1 > 0 else 1), tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        shift = k
        if TAPS > 1:
            shift += k // CHANNELS * ((dilation - 1) * CHANNELS)
        if x_tiles is not None:
            a = x_tiles.load([first_row + start // CHANNELS * dilation, start % CHANNELS])
            b = tiles_0.load([column_0, start]).T
        elif K % BK == 0:
            a = tl.load(windows[:, None] + shift[None, :])
            b = tl.load(weight + n_0[None, :] * K + k[:, None])
        else:
            a = tl.load(windows[:, None] + shift[None, :], mask=k[None, :] < K, other=0.0)
            b = tl.load(weight + n_0[None, :] * K + k[:, None], mask=k[:, None] < K, other=0.0)
        sums_0 = _dot(a, b, sums_0, PRECISION)
        if BN_1 > 0:
            if x_tiles is not None:
                b = tiles_1.load([column_1, start]).T
            elif K % BK == 0:
                b = tl.load(weight + n_1[None, :] * K + k[:, None])
            else:
                b = tl.load(weight + n_1[None, :] * K + k[:, None], mask=k[:, None] < K, other=0.0)
            sums_1 = _dot(a, b, sums_1, PRECISION)
    return sums_0, sums_1


@triton.jit
def _is_quiet(rows, position, batch, step, QUIET: tl.constexpr):
    """True for the first QUIET steps of a row's speech, which its audio does not have. batch, step [BM] → [BM]."""
    return (step < QUIET) & (tl.load(position + tl.load(rows + batch)) == 0)


@triton.jit
def _finish(
    sums,
    n,
    m,
    rms,
    bias,
    scale,
    residual,
    residual_rows,
    raw,
    frequency,
    magnitude,
    out,
    out_rows,
    row_count,
    quiet,
    N: tl.constexpr,
    ACTIVATION: tl.constexpr,
    FAST: tl.constexpr,
):
    """Finishes a product: norm, bias, activation, scale, residual. Stores the result and its snake.

    n [BN] are columns; those from N on are masked. `residual_rows` and `out_rows` [BM] are the offsets of rows. Rows
    that are `quiet` [BM], if it is given, become zeros.
    """
    inside = n < N
    # A product and the sum behind it are written as one fma. The compiler might join them with some tiles alone, and
    # might let a dot begin with the bias. Each of these rounds in its own way.
    factor = 1.0
    if rms is not None:
        factor = rms[:, None]
    if bias is not None:
        sums = tl.fma(sums, factor, tl.load(bias + n, mask=inside, other=0.0)[None, :])
    else:
        sums *= factor
    if ACTIVATION == "gelu":
        sums = 0.5 * sums * (1.0 + tl.erf(sums * 0.7071067811865476))
    factor = 1.0
    if scale is not None:
        factor = tl.load(scale + n, mask=inside, other=0.0)[None, :]
    mask = (m < row_count)[:, None] & inside[None, :]
    if residual is not None:
        here = residual + residual_rows[:, None] + n[None, :]
        sums = tl.fma(sums, factor, tl.load(here, mask=mask, other=0.0).to(tl.float32))
    else:
        sums *= factor
    if quiet is not None:
        sums = tl.where(quiet[:, None], 0.0, sums)
    if raw is not None:
        tl.store(raw + (m * N)[:, None] + n[None, :], sums.to(raw.dtype.element_ty), mask=mask)
    if frequency is not None:
        a = tl.load(frequency + n, mask=inside, other=0.0)
        sums = _snake(sums, a[None, :], tl.load(magnitude + n, mask=inside, other=0.0)[None, :], FAST)
    tl.store(out + out_rows[:, None] + n[None, :], sums.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["row_count", "steps", "dilation", "keep", "out_keep", "residual_keep"])
def product_kernel(
    x,
    weight,
    bias,
    scale,
    residual,
    raw,
    frequency,
    magnitude,
    out,
    rows,
    position,
    row_count,
    steps,
    dilation,
    keep,
    residual_keep,
    out_keep,
    inverse_rms,
    x_tiles,
    tiles_0,
    tiles_1,
    N: tl.constexpr,
    CHANNELS: tl.constexpr,
    TAPS: tl.constexpr,
    OUT_CHANNELS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BM: tl.constexpr,
    BN_0: tl.constexpr,
    BN_1: tl.constexpr,
    BK: tl.constexpr,
    PRECISION: tl.constexpr,
    FAST: tl.constexpr,
    QUIET: tl.constexpr = 0,
):
    """Multiplies windows of x [B, keep + steps, CHANNELS] by weight [N, TAPS * CHANNELS], and finishes the product (see
    `_finish`).

    out [B, out_keep + N / OUT_CHANNELS * steps, OUT_CHANNELS]: the columns of a row are one step or several. residual
    [B, residual_keep + steps, N], raw [B, steps, N]. frequency, magnitude, bias and scale [N] float32. With
    inverse_rms [rows of the product] float32 each row is multiplied by its own. If ACTIVATION is swiglu, the first half
    of the weight gives gates and the second half what they multiply: out has N / 2 columns, from two blocks of the same
    size. With QUIET, rows [B] and position [all rows] tell which rows have just begun (see `_is_quiet`).
    """
    BLOCKS: tl.constexpr = (N + BN_0 + BN_1 - 1) // (BN_0 + BN_1)
    GATED: tl.constexpr = ACTIVATION == "swiglu"
    WIDTH: tl.constexpr = N // 2 if GATED else N
    tile = tl.program_id(0)
    m = tile // BLOCKS * BM + tl.arange(0, BM)
    first = tile % BLOCKS * (BN_0 if GATED else BN_0 + BN_1)
    second = first + (WIDTH if GATED else BN_0)
    n_0 = first + tl.arange(0, BN_0)
    n_1 = second + tl.arange(0, BN_1 if BN_1 > 0 else 1)
    row = tl.minimum(m, row_count - 1)
    batch, step = row // steps, row % steps
    windows = x + (batch * (keep + steps) + step) * CHANNELS
    begin = tile // BLOCKS * BM
    first_row = begin // steps * (keep + steps) + begin % steps
    rms = None
    if inverse_rms is not None:
        rms = tl.load(inverse_rms + row)
    if N % (BN_0 + BN_1) == 0:
        sums_0, sums_1 = _window_sums(
            windows,
            weight,
            x_tiles,
            tiles_0,
            tiles_1,
            first_row,
            first,
            second,
            n_0,
            n_1,
            dilation,
            CHANNELS,
            TAPS,
            BM,
            BN_0,
            BN_1,
            BK,
            PRECISION,
        )
    else:
        sums_0, sums_1 = _window_sums(
            windows,
            weight,
            x_tiles,
            tiles_0,
            tiles_1,
            first_row,
            first,
            second,
            tl.minimum(n_0, WIDTH - 1),
            tl.minimum(n_1, N - 1),
            dilation,
            CHANNELS,
            TAPS,
            BM,
            BN_0,
            BN_1,
            BK,
            PRECISION,
        )
    out_rows = batch * (out_keep * OUT_CHANNELS + steps * WIDTH) + out_keep * OUT_CHANNELS + step * WIDTH
    residual_rows = (batch * (residual_keep + steps) + residual_keep + step) * N
    quiet = None
    if QUIET > 0:
        quiet = _is_quiet(rows, position, batch, step, QUIET)
    if GATED:
        factor = tl.load(inverse_rms + row)[:, None]
        gate = sums_0 * factor
        _finish(
            gate * tl.sigmoid(gate) * (sums_1 * factor),
            n_0,
            m,
            None,
            None,
            None,
            None,
            residual_rows,
            None,
            None,
            None,
            out,
            out_rows,
            row_count,
            None,
            WIDTH,
            "none",
            FAST,
        )
        return
    _finish(
        sums_0,
        n_0,
        m,
        rms,
        bias,
        scale,
        residual,
        residual_rows,
        raw,
        frequency,
        magnitude,
        out,
        out_rows,
        row_count,
        quiet,
        N,
        ACTIVATION,
        FAST,
    )
    if BN_1 > 0:
        _finish(
            sums_1,
            n_1,
            m,
            rms,
            bias,
            scale,
            residual,
            residual_rows,
            raw,
            frequency,
            magnitude,
            out,
            out_rows,
            row_count,
            quiet,
            N,
            ACTIVATION,
            FAST,
        )


@triton.jit
def _hidden(sums, n, bias, frequency, magnitude, dtype: tl.constexpr, FAST: tl.constexpr):
    a = tl.load(frequency + n)[None, :]
    return _snake(sums + tl.load(bias + n)[None, :], a, tl.load(magnitude + n)[None, :], FAST).to(dtype)


@triton.jit
def _pointwise(
    hidden_0, hidden_1, weight, n, WIDTH: tl.constexpr, BN_0: tl.constexpr, BN_1: tl.constexpr, PRECISION: tl.constexpr
):
    """Multiplies hidden [BM, WIDTH], in two blocks, by weight [WIDTH, WIDTH] → columns n."""
    k = tl.arange(0, BN_0)
    sums = tl.dot(hidden_0, tl.load(weight + n[None, :] * WIDTH + k[:, None]), input_precision=PRECISION)
    if BN_1 > 0:
        k = BN_0 + tl.arange(0, BN_1)
        sums = _dot(hidden_1, tl.load(weight + n[None, :] * WIDTH + k[:, None]), sums, PRECISION)
    return sums


@triton.jit(do_not_specialize=["row_count", "steps", "dilation", "keep", "out_keep"])
def unit_kernel(
    x,
    weight_1,
    bias_1,
    frequency_1,
    magnitude_1,
    weight_2,
    bias_2,
    residual,
    raw,
    frequency,
    magnitude,
    out,
    rows,
    position,
    row_count,
    steps,
    dilation,
    keep,
    out_keep,
    x_tiles,
    tiles_0,
    tiles_1,
    WIDTH: tl.constexpr,
    TAPS: tl.constexpr,
    BM: tl.constexpr,
    BN_0: tl.constexpr,
    BN_1: tl.constexpr,
    BK: tl.constexpr,
    PRECISION: tl.constexpr,
    FAST: tl.constexpr,
    QUIET: tl.constexpr = 0,
):
    """A residual unit of WIDTH = BN_0 + BN_1 channels: convolution, snake, pointwise convolution, residual.

    x [B, keep + steps, WIDTH] has gone through the unit's first snake. residual and raw [B, steps, WIDTH] may be the
    same. out [B, out_keep + steps, WIDTH] gets the sum after the next operation's snake. rows, position and QUIET are
    those of product_kernel.
    """
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n_0 = tl.arange(0, BN_0)
    n_1 = BN_0 + tl.arange(0, BN_1 if BN_1 > 0 else 1)
    row = tl.minimum(m, row_count - 1)
    batch, step = row // steps, row % steps
    windows = x + (batch * (keep + steps) + step) * WIDTH
    begin = tl.program_id(0) * BM
    first_row = begin // steps * (keep + steps) + begin % steps
    sums_0, sums_1 = _window_sums(
        windows,
        weight_1,
        x_tiles,
        tiles_0,
        tiles_1,
        first_row,
        0,
        BN_0,
        n_0,
        n_1,
        dilation,
        WIDTH,
        TAPS,
        BM,
        BN_0,
        BN_1,
        BK,
        PRECISION,
    )
    dtype: tl.constexpr = x.dtype.element_ty
    hidden_0 = _hidden(sums_0, n_0, bias_1, frequency_1, magnitude_1, dtype, FAST)
    hidden_1 = hidden_0
    if BN_1 > 0:
        hidden_1 = _hidden(sums_1, n_1, bias_1, frequency_1, magnitude_1, dtype, FAST)
    raw_rows = row * WIDTH
    out_rows = (batch * (out_keep + steps) + out_keep + step) * WIDTH
    quiet = None
    if QUIET > 0:
        quiet = _is_quiet(rows, position, batch, step, QUIET)
    sums_0 = _pointwise(hidden_0, hidden_1, weight_2, n_0, WIDTH, BN_0, BN_1, PRECISION)
    _finish(
        sums_0,
        n_0,
        m,
        None,
        bias_2,
        None,
        residual,
        raw_rows,
        raw,
        frequency,
        magnitude,
        out,
        out_rows,
        row_count,
        quiet,
        WIDTH,
        "none",
        FAST,
    )
    if BN_1 > 0:
        sums_1 = _pointwise(hidden_0, hidden_1, weight_2, n_1, WIDTH, BN_0, BN_1, PRECISION)
        _finish(
            sums_1,
            n_1,
            m,
            None,
            bias_2,
            None,
            residual,
            raw_rows,
            raw,
            frequency,
            magnitude,
            out,
            out_rows,
            row_count,
            quiet,
            WIDTH,
            "none",
            FAST,
        )
