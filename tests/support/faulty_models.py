"""Models that break on command: the text of a request says how. An engine's own process loads them by name."""

import os
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

from vivavoce_engine import EngineConfig, Model, SynthesisRequest
from vivavoce_engine.batching.scheduler import Plan
from vivavoce_engine.errors import CheckpointError
from vivavoce_engine.fake_runner import FAKE_INFO, FakeEncoder, FakeRunner, FakeText, fake_presets
from vivavoce_engine.model import Parts

RAISE = {
    "raise": ("error", RuntimeError("the sum is not a number")),
    "device": ("device", RuntimeError("CUDA error: an illegal memory access was encountered")),
    "memory": ("out_of_memory", RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")),
}
"""Text → the reason of the breakdown, and the exception that causes it."""
HANG, LEAVE, SLOW = "hang", "leave", "slow"


def misbehave(plan: Plan) -> None:
    for sequence in plan.step:
        request = sequence.pending.request
        text = request.text if isinstance(request, SynthesisRequest) else ""
        if text in RAISE:
            raise RAISE[text][1]
        if text == HANG:
            time.sleep(3600)
        if text == LEAVE:
            os._exit(7)
        if text.startswith(SLOW):
            time.sleep(0.01)


def faulty_parts(refusal: Path | None, load_s: float, rows: Path | None) -> Parts:
    if refusal is not None and refusal.exists():
        raise CheckpointError("the weights are of another model")
    time.sleep(load_s)
    settled = None if rows is None else EngineConfig(max_streams=int(rows.read_text()))
    return Parts(FakeRunner(before_step=misbehave), fake_presets(), FakeEncoder(), settled)


def faulty_model(
    name: str = "faulty", refusal: Path | None = None, load_s: float = 0.0, rows: Path | None = None
) -> Model:
    """A faulty model. It cannot be loaded while the file `refusal` exists. Loading settles on the number of rows that
    the file `rows` holds, as a card's memory does."""
    info = replace(FAKE_INFO, name=name)
    return Model(info, FakeText(info), partial(faulty_parts, refusal, load_s, rows))
