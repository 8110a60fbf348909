"""Packed weights and activation buffers of Code2Wav, and the launches of its products."""

from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from vivavoce_engine.gpu.card import Card
from vivavoce_engine.gpu.codec.kernels import product_kernel, unit_kernel
from vivavoce_engine.gpu.codec.step_kernels import inverse_rms_kernel
from vivavoce_engine.gpu.codec.tiles import Tiles, by_descriptors, choose, choose_unit, in_halves
from vivavoce_engine.gpu.launch import Launcher
from vivavoce_engine.models.codec_decoder import CausalConv, ResidualUnit, SnakeBeta

HISTORY_BLOCK = 1024
ALIGNMENT = 64
"""Alignment of buffers and histories, in values. Loads are 16 bytes wide."""


@dataclass(slots=True)
class Buffer:
    """Activations [B, keep + steps, channels], `rate` steps a frame. The first `keep` are the last ones of the previous
    call."""

    channels: int
    rate: int
    keep: int
    offset: int
    """Start of `memory` in the memory of all buffers, in values."""
    memory: Tensor


class Buffers:
    """Lays out the activation buffers in one tensor, for calls of up to `frames` frames in all."""

    def __init__(self, frames: int) -> None:
        self._frames = frames
        self._all: list[Buffer] = []
        self._shared: dict[str, list[Buffer]] = {}

    def add(self, channels: int, rate: int, keep: int = 0, shared: str | None = None) -> Buffer:
        """Adds a buffer. Buffers `shared` under one name overlap, and must never be in use at the same time."""
        buffer = Buffer(channels, rate, keep, 0, torch.empty(0))
        if shared is None:
            self._all.append(buffer)
        else:
            self._shared.setdefault(shared, []).append(buffer)
        return buffer

    def allocate(self, like: Tensor) -> Tensor:
        """Allocates the memory of all buffers, and returns it."""
        size = 0
        groups = [[buffer] for buffer in self._all] + list(self._shared.values())
        for group in groups:
            for buffer in group:
                buffer.offset = size
            # A call has at most as many rows as frames.
            size += aligned(self._frames * max((one.keep + one.rate) * one.channels for one in group))
        assert size < 1 << 31, "kernels address the buffers with int32"
        memory = torch.zeros(size, dtype=like.dtype, device=like.device)
        for buffer in (one for group in groups for one in group):
            buffer.memory = memory[buffer.offset :]
        return memory

    def histories(self, count: int | None = None) -> tuple[list[list[int]], int]:
        """Returns the rows of histories_kernel's table for the first `count` buffers, and the number of values that a
        row needs in the arena."""
        table: list[list[int]] = []
        place = 0
        for buffer in self._all[:count]:
            values, per_frame = buffer.keep * buffer.channels, buffer.rate * buffer.channels
            table += [[place, buffer.offset, values, per_frame, start] for start in range(0, values, HISTORY_BLOCK)]
            place += aligned(values)
        return table, place


def aligned(values: int) -> int:
    """Rounds a number of values up to the alignment."""
    return -(-values // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True, slots=True)
class Begun:
    """Tells which rows have just begun: `position` [all rows] int64 counts the frames of each, and rows [B] int64 are
    those of a call."""

    rows: Tensor
    position: Tensor


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of a call. `begun` is there if the first steps of a row may be silent."""

    batch: int
    frames: int
    begun: Begun | None = None

    def steps(self, buffer: Buffer) -> int:
        return self.frames * buffer.rate

    def rows(self, buffer: Buffer) -> int:
        return self.batch * self.frames * buffer.rate


def wide(parameter: Tensor) -> Tensor:
    """Returns a parameter flat and in float32. Parameters that are added or multiplied elementwise stay in float32;
    weights of products do not."""
    return parameter.detach().float().flatten().contiguous()


@dataclass(frozen=True, slots=True)
class Snake:
    """x + magnitude * (1 - cos(frequency * x)), both [N] float32: the doubled frequency and the halved magnitude of the
    module, whose snake is x + magnitude * sin²(frequency * x)."""

    frequency: Tensor
    magnitude: Tensor

    @classmethod
    def of(cls, module: SnakeBeta, repeat: int = 1) -> "Snake":
        return cls(wide(module.frequency).repeat(repeat).mul(2.0), wide(module.magnitude).repeat(repeat).mul(0.5))


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A matrix product and the operations behind it. Its operand is windows of `taps` steps, `dilation` apart; its
    weight is [N, taps * channels]."""

    weight: Tensor
    taps: int = 1
    dilation: int = 1
    norm_eps: float | None = None
    """If set, the input is divided by its RMS. The norm's weight is folded into `weight`."""
    bias: Tensor | None = None
    activation: str = "none"
    scale: Tensor | None = None
    snake: Snake | None = None
    quiet: int = 0
    """First steps of a row's speech, in steps of the operand, whose result is zero."""

    def __post_init__(self) -> None:
        assert self.weight.is_contiguous()
        columns = (len(self.weight),)
        assert all(one is None or one.shape == columns for one in (self.bias, self.scale))
        if self.activation == "swiglu":
            assert self.norm_eps is not None, "gates follow a norm"
            assert all(one is None for one in (self.bias, self.scale, self.snake))
        assert self.snake is None or self.snake.frequency.shape == self.snake.magnitude.shape == columns

    def __call__(
        self,
        launch: Launcher,
        shape: Shape,
        x: Buffer,
        out: Buffer,
        residual: Buffer | None = None,
        raw: Buffer | None = None,
        *,
        tiles: Tiles | None = None,
    ) -> None:
        """out = snake(residual + scale * activation(x · weight + bias)). `raw` gets the same without the snake."""
        columns, depth = self.weight.shape
        rows, steps = shape.rows(x), shape.steps(x)
        width = columns // 2 if self.activation == "swiglu" else columns
        assert depth == self.taps * x.channels
        assert x.keep == (self.taps - 1) * self.dilation, "a window begins with the oldest input that is kept"
        assert width * x.rate == out.channels * out.rate
        assert residual is None or (residual.channels, residual.rate) == (columns, x.rate)
        if tiles is None:
            tiles = choose(rows, columns, depth, x.memory.dtype, launch.card)
            tiles = by_descriptors(tiles, depth) if is_described(launch.card, shape, x, tiles) else tiles
            tiles = in_halves(tiles) if self.activation == "swiglu" else tiles
        launch(
            product_kernel,
            (tiles.count(rows, columns),),
            x.memory,
            self.weight,
            self.bias,
            self.scale,
            residual.memory if residual else None,
            raw.memory if raw else None,
            self.snake.frequency if self.snake else None,
            self.snake.magnitude if self.snake else None,
            out.memory,
            *begun(shape, self.quiet),
            rows,
            steps,
            self.dilation,
            x.keep,
            residual.keep if residual else 0,
            out.keep,
            self._inverse_rms(launch, x, rows),
            *described(launch.card, shape, x, self.weight, tiles),
            N=columns,
            CHANNELS=x.channels,
            TAPS=self.taps,
            OUT_CHANNELS=out.channels,
            ACTIVATION=self.activation,
            **quiet_meta(self.quiet),
            **tile_meta(tiles, x.memory.dtype, launch.card),
        )

    def _inverse_rms(self, launch: Launcher, x: Buffer, rows: int) -> Tensor | None:
        """Computes what the norm multiplies each row of the input by: [rows] float32, or None without a norm.

        One program adds up a row, so the sum does not depend on the product's tiles.
        """
        if self.norm_eps is None:
            return None
        assert x.keep == 0, "a norm is of inputs that follow each other"
        inverse_rms = torch.empty(rows, dtype=torch.float32, device=x.memory.device)
        launch(
            inverse_rms_kernel,
            (rows,),
            x.memory,
            inverse_rms,
            self.norm_eps,
            CHANNELS=x.channels,
            BLOCK=triton.next_power_of_2(x.channels),
            num_warps=1,
        )
        return inverse_rms


@dataclass(frozen=True, slots=True)
class Unit:
    """A residual unit and the snake behind it: one kernel if the width allows it, otherwise two."""

    spread: Product
    point: Product

    @classmethod
    def of(cls, module: ResidualUnit, after: SnakeBeta, dtype: torch.dtype) -> "Unit":
        conv, last = module.conv1, module.conv2
        spread = Product(
            weight=packed(window_weight(conv), dtype),
            taps=conv.kernel_size,
            dilation=conv.dilation,
            bias=wide(conv.bias),
            snake=Snake.of(module.act2),
        )
        point = Product(
            weight=packed(window_weight(last), dtype),
            bias=wide(last.bias),
            snake=Snake.of(after),
            quiet=conv.slot.begins,
        )
        return cls(spread, point)

    def __call__(
        self,
        launch: Launcher,
        shape: Shape,
        x: Buffer,
        out: Buffer,
        raw: Buffer,
        hidden: Buffer,
        last: bool = False,
        *,
        tiles: Tiles | None = None,
        fuse: bool = True,
    ) -> None:
        """Runs the unit on x, which has gone through its first snake.

        `raw` holds the unit's input before that snake. It then gets the unit's output, unless the unit is the `last`.
        `hidden` is scratch memory.
        """
        rows = shape.rows(x)
        tiles = tiles or choose_unit(rows, x.channels, x.memory.dtype, launch.card)
        if tiles is None or not fuse:
            self.spread(launch, shape, x, hidden)
            self.point(launch, shape, hidden, out, raw, None if last else raw)
            return
        assert x.channels == tiles.columns + tiles.more_columns, "a program holds whole rows of the unit"
        assert self.spread.snake is not None
        assert self.point.snake is not None
        launch(
            unit_kernel,
            (tiles.count(rows, x.channels),),
            x.memory,
            self.spread.weight,
            self.spread.bias,
            self.spread.snake.frequency,
            self.spread.snake.magnitude,
            self.point.weight,
            self.point.bias,
            raw.memory,
            None if last else raw.memory,
            self.point.snake.frequency,
            self.point.snake.magnitude,
            out.memory,
            *begun(shape, self.point.quiet),
            rows,
            shape.steps(x),
            self.spread.dilation,
            x.keep,
            out.keep,
            *described(launch.card, shape, x, self.spread.weight, tiles),
            WIDTH=x.channels,
            TAPS=self.spread.taps,
            **quiet_meta(self.point.quiet),
            **tile_meta(tiles, x.memory.dtype, launch.card),
        )


def is_described(card: Card, shape: Shape, x: Buffer, tiles: Tiles) -> bool:
    """True if a product's tiles come through descriptors: the card has them, and each tile lies in one batch element
    and in one tap."""
    return card.descriptors and shape.steps(x) % tiles.rows == 0 and x.channels % tiles.depth == 0


Descriptors = tuple["TensorDescriptor | None", "TensorDescriptor | None", "TensorDescriptor | None"]


def described(card: Card, shape: Shape, x: Buffer, weight: Tensor, tiles: Tiles) -> Descriptors:
    """Descriptors of x and of both column blocks of the weight [N, taps * channels], in a product's tiles.

    They are None if it is not described.
    """
    if not is_described(card, shape, x, tiles):
        return None, None, None
    height = shape.batch * (x.keep + shape.steps(x))
    rows = TensorDescriptor(x.memory, [height, x.channels], [x.channels, 1], [tiles.rows, tiles.depth])
    blocks = [TensorDescriptor.from_tensor(weight, [n, tiles.depth]) for n in (tiles.columns, tiles.more_columns) if n]
    return rows, blocks[0], blocks[1] if len(blocks) > 1 else None


def begun(shape: Shape, quiet: int) -> tuple[Tensor | None, Tensor | None]:
    """The rows of a call and all positions, if a kernel needs them."""
    if not quiet:
        return None, None
    assert shape.begun is not None
    return shape.begun.rows, shape.begun.position


def quiet_meta(quiet: int) -> dict[str, int]:
    """A kernel's constant for a row's first steps, which Qwen3-TTS has no silent ones of."""
    return {"QUIET": quiet} if quiet else {}


def tile_meta(tiles: Tiles, dtype: torch.dtype, card: Card) -> dict[str, Any]:
    """A kernel's constants and options for `tiles`."""
    limit = {"maxnreg": tiles.registers} if tiles.registers else {}
    return limit | {
        "BM": tiles.rows,
        "BN_0": tiles.columns,
        "BN_1": tiles.more_columns,
        "BK": tiles.depth,
        "PRECISION": "ieee" if dtype == torch.float32 else "tf32",
        "FAST": card.fast_cosine and dtype != torch.float32,
        "num_warps": tiles.warps,
        "num_stages": tiles.stages,
    }


def packed(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns a contiguous copy of a weight in `dtype`."""
    return weight.detach().to(dtype).contiguous()


def window_weight(conv: CausalConv) -> Tensor:
    """Returns a convolution's weight [taps, channels, N] as [N, taps * channels]."""
    return conv.weight.detach().permute(2, 0, 1).flatten(1)


def normed_weight(weight: Tensor, norm: Tensor, dtype: torch.dtype) -> Tensor:
    """Folds a norm's weight [channels] into a projection's weight [N, channels]. The kernel still divides by the
    RMS."""
    return packed(weight.detach().float() * norm.detach().float(), dtype)
