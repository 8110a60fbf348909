"""Settings that fit the memory of a card. Knows what an engine takes only by asking."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from vivavoce_engine.config import KV_POSITIONS_PER_ROW, EngineConfig
from vivavoce_engine.errors import NoRoom, is_out_of_memory
from vivavoce_engine.gpu.graphs import BATCHES
from vivavoce_engine.pages import PAGE_POSITIONS, pages_of

GB = 1e9
ROWS_OF_CARDS = ((72, 256), (44, 128), (22, 64), (15, 32), (11, 16), (7, 8), (0, 2))
"""(Least memory of a card in GB, most rows that `auto` gives it.) A card's bandwidth grows with its memory, and with it
the number of listeners that it serves in real time. More rows would make each of them slower. The limits lie below the
sizes that cards are sold as, because a card shows up to a tenth less."""
LEAST_POSITIONS_PER_ROW = 512
"""Positions of each row down to which `auto` goes before it gives up rows: a prompt and 30 s of speech."""
PLAIN_ROWS = 8
"""Most rows that `auto` gives the runner of plain PyTorch, which is slow on any card."""
SMALLER_CONTEXTS = (2048, 1024, 512)
"""Values of max_context that an error suggests if not even one row fits."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Bytes of GPU memory that an engine takes with some number of rows. CUDA's context is not counted.

    Keys and values are counted by the page. One page more than the rows share belongs to the dummy row.
    """

    weights: int
    """Talker and code predictor."""
    tables: int
    """State of rows, and buffers of the transformers."""
    code2wav: int
    """Weights, buffers and state of Code2Wav, and the audio that its graphs leave in place."""
    encoder: int
    """The reference encoder at work. 0 if the model does not clone."""
    graphs: int
    """Number of recorded graphs."""
    unseen: int
    """Memory that no tensor shows: graphs, kernels, fragments."""
    page: int
    """One page of the talker's keys and values."""
    loading: int
    """All bytes at the moment when the text embedding is projected, before there are tables."""
    decoder: int
    """Code2Wav's weights as the file has them. They are dropped when the tables have been made."""

    def at_rest(self, pages: int) -> int:
        """Bytes of an engine with `pages` pages while it speaks."""
        return self._held(pages) + self.encoder + self.unseen

    def peak(self, pages: int) -> int:
        """Most bytes at any time from the start on."""
        return max(self.loading, self._held(pages) + max(self.decoder, self.encoder + self.unseen))

    def pages_within(self, allowed: int) -> int:
        """Most pages with which the peak is within `allowed` bytes, below 0 if it never is."""
        if self.loading > allowed:
            return -1
        return (allowed - self._held(0) - max(self.decoder, self.encoder + self.unseen)) // self.page

    def _held(self, pages: int) -> int:
        return self.weights + self.tables + self.code2wav + (pages + 1) * self.page


Count = Callable[[EngineConfig], Usage]
"""Counts what an engine with these settings takes. Its rows count; its positions do not."""


@dataclass(frozen=True, slots=True)
class CardMemory:
    """Memory of a card in bytes: free now, and in all."""

    free: int
    total: int

    @classmethod
    def of(cls, device: torch.device) -> "CardMemory":
        """Asks the driver, which opens CUDA's context; so that is no longer free.

        Raises:
            NoRoom: the card has no memory even for the context.
        """
        try:
            return cls(*torch.cuda.mem_get_info(device))
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise NoRoom(f"other processes hold all memory of {device}: nvidia-smi lists them") from error

    @property
    def most_rows(self) -> int:
        """Most rows that `auto` gives a card of this size."""
        return next(rows for least_gb, rows in ROWS_OF_CARDS if self.total >= least_gb * GB)

    def __str__(self) -> str:
        return f"{self.free / GB:.1f} of {self.total / GB:.1f} GB are free"


class Fit:
    """Finds settings that fit a card's memory.

    Rows come first: positions go down to LEAST_POSITIONS_PER_ROW of each before `auto` gives up rows. The rows of
    `plain` have a whole context each.
    """

    def __init__(self, config: EngineConfig, memory: CardMemory, count: Count, *, plain: bool = False) -> None:
        self.config, self.memory, self._plain = config, memory, plain
        self.allowed = int(config.gpu_memory * memory.free)
        """Bytes that the engine may take."""
        self._count = count
        self._counted: dict[tuple[int, int], Usage] = {}

    def count(self, config: EngineConfig) -> Usage:
        key = config.rows, config.max_context
        if key not in self._counted:
            self._counted[key] = self._count(config)
        return self._counted[key]

    def pages(self, config: EngineConfig) -> tuple[int, int]:
        """Fewest and most pages for these settings."""
        if self._plain:
            return (config.rows * pages_of(config.max_context),) * 2
        if config.kv_positions != "auto":
            return config.kv_pages, config.kv_pages
        return config.pages_for(LEAST_POSITIONS_PER_ROW), config.pages_for(KV_POSITIONS_PER_ROW)

    def settle(self) -> EngineConfig:
        """Raises NoRoom if nothing fits."""
        settings = self.config
        if settings.max_streams == "auto":
            most = min(self.memory.most_rows, PLAIN_ROWS) if self._plain else self.memory.most_rows
            found = self.fewer_rows(replace(settings, max_streams=most))
        else:
            found = self.with_pages(settings)
        if found is None:
            raise NoRoom(self._refusal())
        return found

    def with_pages(self, config: EngineConfig) -> EngineConfig | None:
        """The settings with the number of positions that fits. None if there is none."""
        least, most = self.pages(config)
        pages = min(most, self.count(config).pages_within(self.allowed))
        if pages < least:
            return None
        return config if self._plain else replace(config, kv_positions=pages * PAGE_POSITIONS)

    def fewer_rows(self, config: EngineConfig) -> EngineConfig | None:
        """The settings with the most rows that fit, of the numbers that have a graph. None if not even one row does."""
        found = self.with_pages(config)
        if found is not None:
            return found
        lower = [replace(config, max_streams=rows) for rows in reversed(BATCHES) if rows < config.rows]
        first = bisect_left(lower, 1, key=lambda one: self.with_pages(one) is not None)
        return self.with_pages(lower[first]) if first < len(lower) else None

    def _refusal(self) -> str:
        config = replace(self.config, max_streams=1) if self.config.max_streams == "auto" else self.config
        pages, rows = self.pages(config)[0], config.rows
        needed = self.count(config).peak(pages)
        return (
            f"the model with {rows} row{'s' * (rows > 1)} and {pages * PAGE_POSITIONS} positions of keys and values "
            f"takes {needed / GB:.1f} GB, but {self.allowed / GB:.1f} GB may be used ({self.memory}, and "
            f"--gpu-memory is {config.gpu_memory:g}); {self._advice()}"
        )

    def _advice(self) -> str:
        """The settings that would fit."""
        config, would = self.config, list[str]()
        rows_given, pages_given = config.max_streams != "auto", config.kv_positions != "auto" and not self._plain
        if rows_given and (fewer := self.fewer_rows(config)):
            would.append(f"--max-streams {fewer.rows}")
        if rows_given and pages_given and (shorter := self.with_pages(replace(config, kv_positions="auto"))):
            would.append(f"--kv-positions {shorter.kv_positions}")
        if pages_given and not would:
            rows = config.rows if rows_given else self.memory.most_rows
            if both := self.fewer_rows(replace(config, max_streams=rows, kv_positions="auto")):
                would.append(f"--max-streams {both.rows} --kv-positions {both.kv_positions}")
        if not would:
            least = replace(config, max_streams=1, kv_positions="auto")
            smaller = (size for size in SMALLER_CONTEXTS if size < config.max_context)
            fitting = (size for size in smaller if self.with_pages(replace(least, max_context=size)))
            would += [f"--max-streams 1 --max-context {size}" for size in fitting][:1]
        return f"{', or '.join(would)} would fit" if would else "no setting makes it fit"
