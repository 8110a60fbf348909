"""Tiles of Code2Wav's matrix products: a small table instead of tuning at start-up."""

from dataclasses import dataclass, replace

import torch

from vivavoce_engine.gpu.card import Card


@dataclass(frozen=True, slots=True)
class Tiles:
    """Tile of a program: rows, two blocks of columns (see kernels.py, `_window_sums`) and depth; its warps; and its
    pipeline stages, the tiles in flight at once. `registers` limits those of a thread, for more programs on a
    multiprocessor; 0 is no limit."""

    rows: int
    columns: int
    more_columns: int
    depth: int
    warps: int
    stages: int
    registers: int = 0

    def stage_bytes(self, dtype: torch.dtype) -> int:
        """Returns the shared memory that one pipeline stage takes."""
        return (self.rows + self.columns + self.more_columns) * self.depth * dtype.itemsize

    def count(self, rows: int, columns: int) -> int:
        """Returns the number of programs of a product with `rows` rows and `columns` columns."""
        return -(-rows // self.rows) * -(-columns // (self.columns + self.more_columns))


SQUARE = Tiles(128, 128, 0, 64, 8, 4)
WIDE = Tiles(128, 128, 64, 64, 8, 4)
NARROW = Tiles(128, 64, 32, 64, 4, 4)
THIRD = 168
"""Registers of a thread with which three programs of four warps fit a multiprocessor."""
HALF_SQUARE = Tiles(64, 128, 0, 64, 4, 3, registers=THIRD)
SHORT_SUM = 768
"""Longest sum that takes less time than the work on its results."""
BUSY = 0.85
"""Programs for each multiprocessor that keep a card busy. Beyond that, larger tiles are better: they read less. Also
the least share of multiprocessors that the largest tiles keep busy to their end."""
FEW_ROWS = 16
LEAST_COLUMNS = 16
SHALLOWEST = 16
"""Least depth that tensor cores take."""
LONG_SUM = 2048
"""Shortest sum that the largest tiles are used for. A shorter sum ends too soon to gain by them, and their last steps
need more registers than there are."""
LONGEST_SUM = 3072
"""Shortest sum that tiles of 192 columns and of 96 are used for where others fit too."""


def enough_programs(card: Card) -> int:
    """Returns the number of programs that keep a card busy: 112 on an H200."""
    return int(BUSY * card.multiprocessors)


def choose(rows: int, columns: int, depth: int, dtype: torch.dtype, card: Card) -> Tiles:
    """Returns tiles for the product of [rows, depth] and [depth, columns]."""
    if dtype == torch.float32:
        return _fitted(Tiles(32, _cut(columns, 64), 0, 32, 4, 2), dtype, card)
    enough = enough_programs(card)
    busy = (
        tiles
        for tiles in _candidates(columns, depth)
        if tiles.count(rows, columns) >= enough and _in_full_waves(tiles, rows, columns, card)
    )
    tiles = next(busy, None) if rows > FEW_ROWS else None
    return _fitted(_in_steps(tiles or _streaming(rows, columns, depth), depth), dtype, card)


def choose_unit(rows: int, width: int, dtype: torch.dtype, card: Card) -> Tiles | None:
    """Returns tiles for a whole residual unit of `width` channels in one kernel. None if the width does not allow it,
    or for float32, whose sums do not fit into the registers."""
    halves = {96: (64, 32), 192: (128, 64)}.get(width, (width, 0))
    if dtype == torch.float32 or sum(halves) > 192 or halves[0] & (halves[0] - 1) or halves[0] < 16:
        return None
    depth = min(64, max(16, width & -width))
    if card.descriptors and sum(halves) > 96:
        tiles = Tiles(64, *halves, depth, 4, 3)  # two programs fit a multiprocessor
    elif rows >= 128 * enough_programs(card):
        tiles = Tiles(128, *halves, depth, 8 if width > 96 else 4, 4)
    else:
        tiles = Tiles(64, *halves, depth, 4, 4)
    return _fitted(tiles, dtype, card)


def by_descriptors(tiles: Tiles, depth: int) -> Tiles:
    """Returns what is best instead of these tiles for a sum of this depth where they come through descriptors.

    Two programs of the square tiles fit a multiprocessor with fewer warps and stages. Of a short sum three fit: then
    others multiply while one works on its results.
    """
    if tiles == SQUARE:
        return HALF_SQUARE if depth <= SHORT_SUM else replace(tiles, warps=4, stages=3)
    return replace(tiles, stages=2, registers=THIRD) if tiles == NARROW and depth <= SHORT_SUM else tiles


def in_halves(tiles: Tiles) -> Tiles:
    """The same tiles with two equal blocks of columns: one of gates, and one of what they multiply."""
    half = max(LEAST_COLUMNS, tiles.columns // 2)
    return replace(tiles, columns=half, more_columns=half)


def _in_full_waves(tiles: Tiles, rows: int, columns: int, card: Card) -> bool:
    """True if the last programs of a product leave few multiprocessors idle. Of tiles larger than the square ones a
    multiprocessor has one program at a time; of smaller ones it has several, whose ends overlap."""
    if tiles.rows * (tiles.columns + tiles.more_columns) <= SQUARE.rows * SQUARE.columns:
        return True
    programs = tiles.count(rows, columns)
    waves = -(-programs // card.multiprocessors)
    return programs >= BUSY * waves * card.multiprocessors


def _in_steps(tiles: Tiles, depth: int) -> Tiles:
    """The same tiles, but no deeper than half of a sum: Triton gives the summands of a single step another order."""
    while tiles.depth >= depth and tiles.depth > SHALLOWEST:
        tiles = replace(tiles, depth=tiles.depth // 2)
    return tiles


def _fitted(tiles: Tiles, dtype: torch.dtype, card: Card) -> Tiles:
    """The same tiles with as many of their stages as the card's memory holds."""
    return replace(tiles, stages=card.stages(tiles.stages, tiles.stage_bytes(dtype)))


def _candidates(columns: int, depth: int) -> list[Tiles]:
    """Tiles to choose from, the largest first."""
    if columns % 128 == 0:
        large = [Tiles(128, 256, 0, 64, 8, 3)] if columns % 256 == 0 and depth >= LONG_SUM else []
        if columns % 192 == 0 and depth >= LONGEST_SUM:
            large.append(WIDE)
        narrow = [NARROW] if columns % 96 == 0 and depth >= LONGEST_SUM else []
        return [*large, SQUARE, *narrow, Tiles(64, 128, 0, 64, 4, 4), Tiles(64, 64, 0, 64, 4, 5)]
    if columns % 96 == 0:
        wide = [WIDE] if columns % 192 == 0 else []
        return [*wide, NARROW, Tiles(64, 64, 32, 64, 4, 4)]
    width = _cut(columns, 64)
    return [Tiles(128, width, 0, 32, 4, 4), Tiles(64, width, 0, 32, 4, 4)]


def _streaming(rows: int, columns: int, depth: int) -> Tiles:
    """Tiles for few rows: as many programs as the weight allows, and each streams deep tiles of it."""
    width = 32 if columns % 32 == 0 and columns > 1024 else 16
    height = 16 if rows <= 16 else 32 if rows <= 32 else 64
    return Tiles(height, width, 0, 256 if depth % 256 == 0 and height == 16 else 128 if depth >= 128 else 32, 4, 4)


def _cut(columns: int, largest: int) -> int:
    """The largest power of 2 up to `largest` that divides `columns`, but at least 16."""
    return max(16, min(largest, columns & -columns))
