"""Thinker: the interface of what writes answers, wherever it runs. Torch-free.

A thinker reads a conversation and gives its answer as token ids, one after the other. Text is never turned back into
ids: the same text may have other ids, and the talker was trained on those that the thinker chose.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vivavoce_engine.request import SEED_MAX, ThinkerPrompt
from vivavoce_engine.thinker.text import ThinkerText

Role = Literal["system", "user", "assistant"]


@dataclass(frozen=True, slots=True, eq=False)
class Sound:
    """A sound in a message: `samples` [n] float32 mono at 16 kHz."""

    samples: NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """A picture in a message: `pixels` [height, width, 3] uint8, red, green and blue."""

    pixels: NDArray[np.uint8]


Part = str | Sound | Picture


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """A turn of a conversation: its text, sounds and pictures, in order."""

    role: Role
    parts: tuple[Part, ...]

    @property
    def has_media(self) -> bool:
        return any(not isinstance(part, str) for part in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkOptions:
    """Options of an answer's text. `temperature` 0 takes the likeliest token each time; None is the thinker's default.

    `max_tokens` is the longest answer in tokens, without the token that ends it.
    """

    max_tokens: int = 1024
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, not {self.max_tokens}")
        if self.temperature is not None and not self.temperature >= 0:
            raise ValueError(f"temperature must be at least 0, not {self.temperature}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, not {self.top_p}")
        if self.seed is not None and not 0 <= self.seed <= SEED_MAX:
            raise ValueError(f"seed must be from 0 to {SEED_MAX}, not {self.seed}")


@dataclass(frozen=True, slots=True)
class ThinkerToken:
    """The next token of the answer."""

    id: int


@dataclass(frozen=True, slots=True)
class ThinkerEnd:
    """The answer is complete: `stop` if the thinker ended it, `length` if its longest length did."""

    reason: Literal["stop", "length"]


Thought = ThinkerPrompt | ThinkerToken | ThinkerEnd


class Thinker(ABC):
    """Writes answers. `text` turns its token ids into text."""

    def __init__(self, text: ThinkerText) -> None:
        self.text = text

    @property
    @abstractmethod
    def takes_media(self) -> bool:
        """True if its messages may have sounds and pictures."""

    @property
    @abstractmethod
    def ready(self) -> bool:
        """True if `stream` may be called."""

    @property
    @abstractmethod
    def failed(self) -> bool:
        """True if it broke down and is not expected to recover by itself."""

    @abstractmethod
    def start(self) -> None:
        """Starts it and returns when it is ready. Raises EngineError if it cannot start."""

    @abstractmethod
    def stop(self) -> None:
        """Ends it. Answers that have not ended fail with NotServing."""

    @abstractmethod
    async def aclose(self) -> None:
        """Closes what `stream` has opened on this event loop, which ends. Answers on it have ended."""

    @abstractmethod
    def stream(self, messages: Sequence[ChatMessage], options: ThinkOptions) -> AsyncGenerator[Thought, None]:
        """The answer: a ThinkerPrompt, then ThinkerTokens, then a ThinkerEnd. Close the iterator to end it early.

        The token that ends an answer is none of them.

        Raises, while it is read:
            Rejected: the conversation cannot be answered; `param` is `messages`.
            Overloaded: too many answers are being written.
            NotServing: the thinker cannot be reached, or broke down.
            ThinkerFailed: it wrote something that cannot be spoken, or did not go on.
        """
