"""The beginning of a text that was said when its speech stopped.

It is known at the ends of the text's parts, because words have no times yet.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

TOLERANCE_S = 1e-4
"""Seconds by which sums of the same pieces of audio may differ."""


@dataclass(frozen=True, slots=True)
class SaidPart:
    """A stretch of a text as it was written, with all of its audio. `end_s` is the audio's end in the file, in s."""

    text: str
    end_s: float


@dataclass(frozen=True, slots=True)
class Said:
    """The beginning of a text, with its audio.

    `begun` is the text of the next part, if some of its audio belongs to this too: its listener heard some of it.
    `frames` counts the codec frames, the last one even if it is not whole.
    """

    parts: tuple[SaidPart, ...]
    begun: str
    frames: int

    @property
    def text(self) -> str:
        """Text that was said to its end."""
        return "".join(part.text for part in self.parts)


@dataclass(slots=True)
class _Times:
    """Seconds of the audio before the file's speed at which a part begins and, once it `is_over`, ends.

    `tempo` is the factor of the part's own speed beside the file's.
    """

    is_speech: bool
    start_s: float
    end_s: float
    tempo: float = 1.0
    is_over: bool = False


class PartTimes:
    """Notes the audio of a text's parts while it is made: `begin`, `add` for each piece, `end`; then the next part."""

    def __init__(self, speed: float, frame_s: float) -> None:
        """`speed` is that of the file. `frame_s` is the length of a codec frame in seconds."""
        self._speed = speed
        self._frame_s = frame_s
        self._parts: list[_Times] = []
        self._made_s = 0.0

    def begin(self, is_speech: bool, tempo: float = 1.0) -> None:
        """Begins a part. `tempo` is the factor of its own speed beside the file's."""
        self._parts.append(_Times(is_speech, self._made_s, self._made_s, tempo))

    def add(self, seconds: float) -> None:
        """Adds audio of the model to the current part."""
        self._made_s += seconds / self._parts[-1].tempo
        self._parts[-1].end_s = self._made_s

    def end(self) -> None:
        self._parts[-1].is_over = True

    def said(self, text: str, ends: Sequence[int], sent_s: float = math.inf, held_s: float = 0.0) -> Said:
        """The beginning of a text that the file's first `sent_s` seconds say.

        The text's parts end before its characters `ends`. `held_s` is the most that an encoder may have kept back of
        these seconds.
        """
        sent_s *= self._speed
        whole_s = sent_s - held_s * self._speed + TOLERANCE_S
        parts: list[SaidPart] = []
        begun, start = "", 0
        for times, end in zip(self._parts, ends, strict=False):  # a part may be known before its audio begins
            if not times.is_over or times.end_s > whole_s:
                begun = text[start:end] if times.start_s + TOLERANCE_S < sent_s else ""
                break
            parts.append(SaidPart(text[start:end], times.end_s / self._speed))
            start = end
        return Said(tuple(parts), begun, self._frames(sent_s))

    @property
    def spans_s(self) -> list[tuple[float, float]]:
        """Seconds of the file at which each part that has begun begins, and up to which its audio was made."""
        return [(times.start_s / self._speed, times.end_s / self._speed) for times in self._parts]

    @property
    def made_s(self) -> float:
        """Seconds of the file whose audio was made."""
        return self._made_s / self._speed

    @property
    def made_frames(self) -> int:
        return self._frames(math.inf)

    def _frames(self, sent_s: float) -> int:
        """Codec frames of which some is among the model's first `sent_s` seconds."""
        spoken = [times for times in self._parts if times.is_speech and times.start_s < sent_s]
        seconds = sum((min(times.end_s, sent_s) - times.start_s) * times.tempo for times in spoken)
        return math.ceil(round(seconds / self._frame_s, 3))
