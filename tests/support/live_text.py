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
from vivavoce_server.errors import ErrorDetail, invalid
from vivavoce_server.live.plan import LivePlan
from vivavoce_server.live.text import LiveText, VoiceChange
from vivavoce_server.reading import plan_text
from vivavoce_server.references import Chosen
from vivavoce_server.schemas import SpeechOptions
from vivavoce_server.turns import Silence
from vivavoce_text import voice_of_tag as tag_voice

NO_CODES = np.zeros((0, 1), np.int16)


@dataclass
class Recorder:
    """An engine's utterance that keeps its text. It has spoken as soon as its text has ended."""

    text: str = ""
    ended: bool = False
    word_ended: bool = False
    voice: str = "heart"
    is_first: bool = False
    cancelled: bool = False

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

    def cancel(self) -> None:
        self.cancelled = True

    async def all_codes(self) -> NDArray[np.int16]:
        assert self.ended, "the next part begins once this one has been made"
        return NO_CODES


@dataclass
class Recorded:
    """The parts of a live text, the errors that it reported, and its warnings.

    `texts` are what was written for each part, and `voices` those of the parts that are speech, each with True if it
    waits for its turn as the first one does. `changes` are the parts before which another voice begins.
    """

    parts: list[str | float] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    voices: list[tuple[str, bool]] = field(default_factory=list)
    changes: list[int] = field(default_factory=list)
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
    return LivePlan(
        model="fake",
        engine=cast(Any, None),
        options=UtteranceOptions(speaker="heart"),
        audio=audio,
        text=text,
        leading_silence="trim",
        max_part_chars=info.max_utterance_chars,
        voice_of_tag=voice_of_tag,
        turn_pause_s=0.25,
        voice="heart",
    )


async def voice_of_tag(tag: str) -> Chosen:
    """Finds heart, michael and emma. alloy is heart."""
    await asyncio.sleep(0)
    name = {"alloy": "heart"}.get(found := str(tag_voice(tag)).casefold(), found)
    if name not in ("heart", "michael", "emma"):
        raise invalid("input", f"{tag}: there is no voice {name!r}", "voice_not_found")
    return name, None


def follow(voice: Chosen, is_first: bool) -> Recorder:
    return Recorder(voice=voice[0], is_first=is_first)


async def record(plan: LivePlan, fragments: Iterable[str]) -> Recorded:
    """The parts of a text that comes in these fragments. Each is read before the next comes."""
    recorded = Recorded()
    with patch("vivavoce_server.live.text.in_worker", recorded.at_once):
        await _run(plan, fragments, recorded)
    return recorded


async def _run(plan: LivePlan, fragments: Iterable[str], recorded: Recorded) -> None:
    first = Recorder()
    text = LiveText(plan, cast(Any, first), cast(Any, follow), recorded.errors.append)
    feeding = asyncio.create_task(text.feed())
    for fragment in fragments:
        text.append(fragment)
        for _ in range(3):
            await asyncio.sleep(0)
        recorded.first_part.append(first.text)
        recorded.reached.append(text.written[: text.ends[-1]] if text.ends else "")
    text.end()
    await feeding
    async for part in text.parts():
        if isinstance(part, VoiceChange):
            recorded.changes.append(len(recorded.parts))
            continue
        recorded.parts.append(part.seconds if isinstance(part, Silence) else cast(Any, part).text)
        if not isinstance(part, Silence):
            recorder = cast(Recorder, part)
            assert recorder.ended
            assert not recorder.cancelled
            recorded.voices.append((recorder.voice, recorder.is_first))
    recorded.texts = [text.written[start:end] for start, end in pairwise([0, *text.ends])]
    recorded.warnings = text.warnings
