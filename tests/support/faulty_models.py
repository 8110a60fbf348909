"""Models that break on command: the text of a request says how. An engine's own process loads them by name."""

import os
import time
from collections.abc import Sequence as SequenceOf
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from vivavoce_engine import EngineConfig, Model, SynthesisRequest, VoiceReference
from vivavoce_engine.batching.isolation import isolated
from vivavoce_engine.batching.runner import Outcome
from vivavoce_engine.batching.scheduler import Plan
from vivavoce_engine.batching.sequence import Sequence
from vivavoce_engine.errors import CheckpointError, NoRoom
from vivavoce_engine.fake_runner import FAKE_INFO, FakeEncoder, FakeRunner, FakeText, fake_presets
from vivavoce_engine.model import Parts

RAISE = {
    "raise": ("error", RuntimeError("the sum is not a number")),
    "device": ("device", RuntimeError("CUDA error: an illegal memory access was encountered")),
    "memory": ("out_of_memory", RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")),
}
"""Text → the reason of the breakdown, and the exception that causes it."""
HANG, LEAVE, SLOW = "hang", "leave", "slow"
SHORT = "a neighbour has the memory"
"""A text that finds no memory on the card for its prompt. That is no fault of the engine."""
SHORT_RECORDING_S = 5.0
"""A recording longer than this finds no memory for its encoding."""
CARD_FULL = (
    "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other API call, "
    "so the stacktrace below might be incorrect."
)


def text_of(sequence: Sequence) -> str:
    request = sequence.pending.request
    return request.text if isinstance(request, SynthesisRequest) else ""


def misbehave(plan: Plan) -> None:
    for sequence in plan.step:
        text = text_of(sequence)
        if text in RAISE:
            raise RAISE[text][1]
        if text == HANG:
            time.sleep(3600)
        if text == LEAVE:
            os._exit(7)
        if text.startswith(SLOW):
            time.sleep(0.01)


class FaultyRunner(FakeRunner):
    """Isolates the prompts that start together, as the real runners do."""

    def run(self, plan: Plan) -> Outcome:
        outcome = super().run(plan)
        isolated(self._start, plan.start, outcome)
        return outcome

    def _start(self, sequences: SequenceOf[Sequence], _: Outcome) -> None:
        if any(text_of(sequence) == SHORT for sequence in sequences):
            raise RuntimeError(CARD_FULL)


class FaultyEncoder(FakeEncoder):
    def encode(self, audio: NDArray[np.float32]) -> VoiceReference:
        if len(audio) > 24000 * SHORT_RECORDING_S:
            raise RuntimeError(CARD_FULL)
        return super().encode(audio)


def faulty_parts(refusal: Path | None, load_s: float, rows: Path | None) -> Parts:
    if refusal is not None and refusal.exists():
        lack = refusal.read_text()
        raise NoRoom(lack) if lack else CheckpointError("the weights are of another model")
    time.sleep(load_s)
    settled = None if rows is None else EngineConfig(max_streams=int(rows.read_text()))
    return Parts(FaultyRunner(before_step=misbehave), fake_presets(), FaultyEncoder(), settled)


def faulty_model(
    name: str = "faulty", refusal: Path | None = None, load_s: float = 0.0, rows: Path | None = None
) -> Model:
    """A faulty model. While the file `refusal` exists, it cannot be loaded: for lack of memory if that has a text.
    Loading settles on the number of rows that the file `rows` holds, as a card's memory does."""
    info = replace(FAKE_INFO, name=name)
    return Model(info, FakeText(info), partial(faulty_parts, refusal, load_s, rows))
