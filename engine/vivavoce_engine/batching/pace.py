"""The rule that decides when collected frames become a piece of audio. Pure: no clock, no state of its own.

Decoding few frames at a time brings audio early; decoding many at a time is cheaper. So pieces grow, and are cut short
when their listener would otherwise have nothing left to play.
"""

import math
import statistics
from collections import deque
from dataclasses import dataclass

from vivavoce_engine.batching.capacity import Capacity
from vivavoce_engine.batching.sequence import Sequence

FIRST_STEP_S = 0.04
"""Assumed duration of a step before any has been measured."""
STEPS_MEASURED = 9
"""Steps whose median is the usual duration."""
SPARE_STEPS = 1
"""Safety margin, in usual steps, for steps that take longer than usual."""


@dataclass(frozen=True, slots=True)
class Moment:
    """The time at which a step is planned, and how soon audio could follow if it waits for the next step instead."""

    now_s: float
    frame_s: float
    next_piece_s: float
    """Time at which a piece of one frame would be heard if the *next* step decoded it."""
    decoding_s: float
    """Time by which each decoded frame delays that piece; 0 where a device decodes."""

    def runs_dry(self, sequence: Sequence) -> bool:
        """True if the listener would have nothing left to play before a piece of the next step can be heard.

        Such a piece holds the frames that wait now and the two that follow.
        """
        underway_s = (sequence.frames_vocoded - sequence.frames_sent) * self.frame_s
        decoded_s = self.next_piece_s + (sequence.frames_waiting + 1) * self.decoding_s
        return max(sequence.playback.runs_dry_s, self.now_s) + underway_s < decoded_s


UNHURRIED = Moment(now_s=0.0, frame_s=1.0, next_piece_s=-math.inf, decoding_s=0.0)
"""A moment at which no listener runs dry."""


def next_piece(sequence: Sequence, frames_coming: int, largest_frames: int, moment: Moment) -> int:
    """Frames of one utterance to decode in a step that makes `frames_coming` (0 or 1) more of it; 0 to wait.

    What waits is decoded at once when no frame follows for now, or when its listener would run dry.
    """
    assert frames_coming in (0, 1)
    want = ramp(sequence.frames_vocoded, sequence.pending.request.first_chunk_frames, largest_frames)
    have = sequence.frames_waiting + frames_coming
    if have >= want:
        return want
    return have if not sequence.can_step or moment.runs_dry(sequence) else 0


def ramp(vocoded_frames: int, first_frames: int, largest_frames: int) -> int:
    """Frames of the next full piece: the first is small, and each later one as long as all before it together.

    Doubling is the steepest ramp without gaps up to a real-time factor of 0.5: a piece as long as everything sent so
    far is ready just before the listener runs out.
    """
    return min(largest_frames, max(first_frames, vocoded_frames))


class StepDurations:
    """Measured durations of recent steps. Medians, because one slow step is no reason to decode less at once."""

    def __init__(self) -> None:
        self._frames_s = deque([FIRST_STEP_S], maxlen=STEPS_MEASURED)
        self._decoding_s: deque[float] = deque(maxlen=STEPS_MEASURED)

    def add(self, took_s: float, decoding_s: float, decoded_frames: int) -> None:
        """Records a step that made frames: `took_s` in all, `decoding_s` of it for `decoded_frames` of Code2Wav."""
        self._frames_s.append(took_s - decoding_s)
        if decoded_frames:
            self._decoding_s.append(decoding_s / decoded_frames)

    @property
    def decoding_s(self) -> float:
        """Time that a step takes longer for each frame that it decodes."""
        return statistics.median(self._decoding_s) if self._decoding_s else 0.0

    def step_s(self, rows: int, beside: bool = False) -> float:
        """Usual duration of a step that makes one frame of each row and decodes as many, one after the other or
        `beside` each other."""
        frames_s, decoding_s = statistics.median(self._frames_s), rows * self.decoding_s
        return max(frames_s, decoding_s) if beside else frames_s + decoding_s

    def moment(self, now_s: float, frame_s: float, rows: int, capacity: Capacity) -> Moment:
        """The moment at which `rows` run and a step is planned.

        Where a step takes longer than the frame that it makes lasts, no piece is short enough to keep up, and short
        ones would make it worse. Nobody counts as running dry then.
        """
        step_s = self.step_s(rows, capacity.frames_at_once)
        steps = capacity.steps_ahead + 2 + SPARE_STEPS
        next_piece_s = -math.inf if step_s >= frame_s else now_s + steps * step_s
        return Moment(now_s, frame_s, next_piece_s, self.decoding_s)
