"""A fake engine whose voice begins with silence, as voices of models do."""

import numpy as np
from vivavoce_engine import Engine, EngineConfig
from vivavoce_engine.batching.runner import Outcome
from vivavoce_engine.batching.scheduler import Plan
from vivavoce_engine.fake_runner import SAMPLES_PER_FRAME, FakeRunner, fake_voices, tone

LEAD_SAMPLES = 3600
"""Samples of silence before the speech: 150 ms, which end within the second frame."""
KEPT_SAMPLES = 480
"""Samples of it that a listener still hears: 20 ms."""


class LateRunner(FakeRunner):
    """Speaks the tone of FakeRunner, silent up to LEAD_SAMPLES."""

    def run(self, plan: Plan) -> Outcome:
        outcome = super().run(plan)
        for chunk in outcome.audio.values():
            chunk.pcm[: max(0, LEAD_SAMPLES - int(chunk.codes[0, 0]) * SAMPLES_PER_FRAME)] = 0
        return outcome


def late_engine(**options: object) -> Engine:
    """A fake engine of that voice. `options` are FakeRunner's."""
    return Engine(LateRunner(**options), EngineConfig(), fake_voices())  # type: ignore[arg-type]


def late_pcm(seed: int, frames: int) -> bytes:
    """16-bit PCM of an utterance of that voice, with its silence."""
    pcm = tone(seed, 0, frames)
    pcm[:LEAD_SAMPLES] = 0
    return np.rint(pcm * 32767).astype("<i2").tobytes()


def trimmed_pcm(seed: int, frames: int) -> bytes:
    """The same, as a listener hears it."""
    return late_pcm(seed, frames)[2 * (LEAD_SAMPLES - KEPT_SAMPLES) :]
