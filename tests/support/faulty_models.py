"""Models that break when they are told to: a request's text says how. Loaded by name in an engine's own process."""

import os
import time
from dataclasses import replace
from pathlib import Path

from vivavoce_engine import Model
from vivavoce_engine.errors import CheckpointError
from vivavoce_engine.fake_runner import FAKE_INFO, FakeEncoder, FakeRunner, FakeText, fake_presets
from vivavoce_engine.scheduler import Plan
from vivavoce_engine.wire import Parts

RAISE = {
    "raise": ("error", RuntimeError("the sum is not a number")),
    "device": ("device", RuntimeError("CUDA error: an illegal memory access was encountered")),
    "memory": ("out_of_memory", RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")),
}
"""Text → why the engine then breaks down, and the exception that does it."""
HANG, LEAVE, SLOW = "hang", "leave", "slow"
REFUSAL_VARIABLE, DELAY_VARIABLE = "TEST_REFUSE_TO_LOAD", "TEST_LOAD_S"
"""A file that keeps the model from being loaded while it is there, and how long loading takes."""


def misbehave(plan: Plan) -> None:
    for sequence in plan.step:
        text = sequence.pending.request.text
        if text in RAISE:
            raise RAISE[text][1]
        if text == HANG:
            time.sleep(3600)
        if text == LEAVE:
            os._exit(7)
        if text.startswith(SLOW):
            time.sleep(0.01)


def faulty_parts() -> Parts:
    refusal = os.environ.get(REFUSAL_VARIABLE)
    if refusal and Path(refusal).exists():
        raise CheckpointError("the weights are of another model")
    time.sleep(float(os.environ.get(DELAY_VARIABLE, "0")))
    return Parts(FakeRunner(before_step=misbehave), fake_presets(), FakeEncoder())


def faulty_model(name: str = "faulty") -> Model:
    info = replace(FAKE_INFO, name=name)
    return Model(info, FakeText(info), faulty_parts)
