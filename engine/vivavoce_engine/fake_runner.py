"""A runner without a model: a steady tone whose pitch is the seed's. For tests and client work without torch."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vivavoce_engine.errors import Rejected
from vivavoce_engine.messages import AudioChunk
from vivavoce_engine.request import ModelInfo, Sampling, SynthesisRequest
from vivavoce_engine.runner import Outcome
from vivavoce_engine.scheduler import Plan
from vivavoce_engine.sequence import Sequence
from vivavoce_engine.text import NO_ID, Prompt

SAMPLE_RATE = 24000
SAMPLES_PER_FRAME = 1920
FAKE_INFO = ModelInfo(
    name="fake",
    task="custom_voice",
    speakers=("heart", "michael"),
    languages=("auto", "english"),
    takes_instructions=True,
    sampling=Sampling(),
    max_frames=8192,
    sample_rate=SAMPLE_RATE,
    samples_per_frame=SAMPLES_PER_FRAME,
)


def tone(seed: int, first_frame: int, frames: int) -> NDArray[np.float32]:
    """What a fake utterance with this seed sounds like between two frames."""
    start, stop = first_frame * SAMPLES_PER_FRAME, (first_frame + frames) * SAMPLES_PER_FRAME
    frequency_hz = 200 + seed % 400
    wave: NDArray[np.float64] = 0.3 * np.sin(2 * np.pi * frequency_hz / SAMPLE_RATE * np.arange(start, stop))
    return wave.astype(np.float32)


@dataclass(frozen=True, slots=True)
class FakeText:
    """One token a character; checks speaker and language as a real checkpoint does."""

    info: ModelInfo

    def prompt(self, request: SynthesisRequest) -> Prompt:
        if not request.text.strip():
            raise Rejected("text", "the text is blank")
        if request.speaker not in self.info.speakers:
            raise Rejected("speaker", f"there is no speaker {request.speaker!r}")
        if request.language.lower() not in self.info.languages:
            raise Rejected("language", f"there is no language {request.language!r}")
        return Prompt((NO_ID,), (NO_ID,), (), len(request.text))


class FakeRunner:
    """Speaks `frames_per_character` frames a character, and calls `before_step` on the engine thread every step."""

    def __init__(
        self,
        info: ModelInfo = FAKE_INFO,
        frames_per_character: float = 1.0,
        step_s: float = 0.0,
        before_step: Callable[[Plan], None] | None = None,
    ) -> None:
        self.info = info
        self.text = FakeText(info)
        self._frames_per_character = frames_per_character
        self._step_s = step_s
        self._before_step = before_step

    def run(self, plan: Plan) -> Outcome:
        if self._before_step is not None:
            self._before_step(plan)
        if self._step_s:
            time.sleep(self._step_s)
        ended = {sequence.utterance_id: self._ends(sequence) for sequence in plan.step}
        audio = {
            sequence.utterance_id: AudioChunk(
                tone(sequence.pending.seed, sequence.frames_vocoded, frames), np.zeros((frames, 1), np.int16)
            )
            for sequence, frames in plan.vocode
        }
        return Outcome(plan, ended, audio)

    def _ends(self, sequence: Sequence) -> bool:
        length = max(2, round(self._frames_per_character * len(sequence.pending.request.text)))
        return sequence.frames_made + 1 >= length
