"""A live text without a socket and an engine: what it gives to the engine's utterances, part by part."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, cast
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray
from vivavoce_engine import ModelInfo, UtteranceOptions
from vivavoce_server import ServerConfig
from vivavoce_server.audio import AudioOptions
from vivavoce_server.errors import ErrorDetail
from vivavoce_server.jobs import Silence
from vivavoce_server.live.plan import LivePlan
from vivavoce_server.live.text import LiveText
from vivavoce_server.reading import plan_text
from vivavoce_server.schemas import SpeechOptions

NO_CODES = np.zeros((0, 1), np.int16)


@dataclass
class Recorder:
    """An engine's utterance that keeps its text. It has spoken as soon as its text has ended."""

    text: str = ""
    ended: bool = False
    word_ended: bool = False

    @property
    def stream(self) -> "Recorder":
        return self

    def append(self, text: str, word_ends: bool = False) -> None:
        assert text
        assert not self.ended
        assert not (self.word_ended and text[0].isalnum())
        self.word_ended = word_ends
        self.text += text

    def end(self) -> None:
        assert not self.ended
        self.ended = True

    async def all_codes(self) -> NDArray[np.int16]:
        assert self.ended, "the next part begins once this one has been made"
        return NO_CODES


@dataclass
class Recorded:
    """The parts of a live text, the errors that it reported, and its warnings.

    `texts` are what was written for each part.
    """

    parts: list[str | float] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    errors: list[ErrorDetail] = field(default_factory=list)
    warnings: tuple[str, ...] = ()
    first_part: list[str] = field(default_factory=list, compare=False)
    """Text of the first part after each fragment."""
    reached: list[str] = field(default_factory=list, compare=False)
    """Written text of all parts so far, after each fragment."""
    jobs: int = field(default=0, compare=False)
    """Number of jobs that a worker had."""

    async def at_once(self, step: Callable[..., Any], *args: object) -> Any:
        """A worker that is never late, so that nothing depends on a clock."""
        self.jobs += 1
        return step(*args)


def plan_for(info: ModelInfo, config: ServerConfig | None = None, speed: float = 1.0, **fields: Any) -> LivePlan:
    text = plan_text(SpeechOptions(**fields), info, config or ServerConfig())
    audio = AudioOptions(speed=speed)
    return LivePlan("fake", cast(Any, None), UtteranceOptions(), audio, text, "trim", info.max_utterance_chars)


async def record(plan: LivePlan, fragments: Iterable[str]) -> Recorded:
    """The parts of a text that comes in these fragments. Each is read before the next comes."""
    recorded = Recorded()
    with patch("vivavoce_server.live.text.in_worker", recorded.at_once):
        await _run(plan, fragments, recorded)
    return recorded


async def _run(plan: LivePlan, fragments: Iterable[str], recorded: Recorded) -> None:
    first = Recorder()
    text = LiveText(plan, cast(Any, first), cast(Any, Recorder), recorded.errors.append)
    feeding = asyncio.create_task(text.feed())
    for fragment in fragments:
        text.append(fragment)
        for _ in range(2):
            await asyncio.sleep(0)
        recorded.first_part.append(first.text)
        recorded.reached.append(text.written[: text.ends[-1]] if text.ends else "")
    text.end()
    await feeding
    async for part in text.parts():
        recorded.parts.append(part.seconds if isinstance(part, Silence) else cast(Any, part).text)
        assert isinstance(part, Silence) or cast(Any, part).ended
    recorded.texts = [text.written[start:end] for start, end in pairwise([0, *text.ends])]
    recorded.warnings = text.warnings
