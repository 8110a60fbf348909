"""Messages between a server and a thinker's process, beside those of every process (process/wire.py).

Server → worker: LoadThinker first; then Think, Forget and Ping. Worker → server: Ready first; then Thoughts.
"""

from dataclasses import dataclass
from pathlib import Path

from vivavoce_engine.errors import EngineError
from vivavoce_engine.process.wire import Ready, SignOfLife
from vivavoce_engine.thinker.interface import ChatMessage, ThinkOptions, Thought


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkerConfig:
    """Settings of a thinker's process.

    `device` is one of PyTorch; `auto` is the first card, or the CPU where there is none. `dtype` "auto" is bfloat16
    on a card and float32 on a CPU. `conversations` is the largest number of answers that are written at the same time;
    `waiting` that of those that wait behind them. `max_context` is the longest conversation with its answer, in tokens.
    `threads` None leaves PyTorch's own number.
    A process that shows no sign of life for `max_step_s` counts as hung.
    """

    device: str = "auto"
    dtype: str = "auto"
    conversations: int = 8
    waiting: int = 64
    max_context: int = 8192
    threads: int | None = None
    max_step_s: float = 120.0


@dataclass(frozen=True, slots=True)
class LoadThinker:
    """The first message: loads the thinker of the checkpoint in a folder. `log_level` is as in `logging`."""

    path: Path
    config: ThinkerConfig
    log_level: int


@dataclass(frozen=True, slots=True)
class ThinkerReady(Ready):
    """The thinker is loaded."""


@dataclass(frozen=True, slots=True)
class Think:
    """Answer this conversation."""

    number: int
    messages: tuple[ChatMessage, ...]
    options: ThinkOptions


@dataclass(frozen=True, slots=True)
class Forget:
    """Nobody reads this answer any more."""

    number: int


@dataclass(frozen=True, slots=True)
class Thoughts(SignOfLife):
    """Parts of answers, each with the number of its conversation, or the error that ends it."""

    parts: tuple[tuple[int, Thought | EngineError], ...]
