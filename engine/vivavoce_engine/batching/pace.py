"""The time that recent steps took."""

import statistics
from collections import deque

from vivavoce_engine.batching.runner import Outcome

FIRST_STEP_S = 0.04
STEPS_MEASURED = 9
"""What a step is assumed to take at first, and of how many steps the median is what it usually takes."""
SPARE_STEPS = 1
"""By so many usual steps what a listener has left may be shorter than it seems: some steps take longer."""


class Pace:
    """What the last steps took: medians, since one slow step is no reason to decode less at once."""

    def __init__(self) -> None:
        self._frames_s = deque([FIRST_STEP_S], maxlen=STEPS_MEASURED)
        self._decoding_s: deque[float] = deque(maxlen=STEPS_MEASURED)

    def after_step(self, took_s: float, outcome: Outcome) -> None:
        """A step made a frame for some rows."""
        self._frames_s.append(took_s - outcome.decoding_s)
        decoded_frames = sum(frames for _, frames in outcome.plan.vocode)
        if decoded_frames:
            self._decoding_s.append(outcome.decoding_s / decoded_frames)

    @property
    def decoding_s(self) -> float:
        """By how much a step is longer for each frame that it decodes."""
        return statistics.median(self._decoding_s) if self._decoding_s else 0.0

    def step_s(self, rows: int) -> float:
        """A step, on average: each of the rows has a frame made, and one decoded."""
        return statistics.median(self._frames_s) + rows * self.decoding_s
