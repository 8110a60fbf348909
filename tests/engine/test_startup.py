"""The start of an engine: its imports, and its progress in words."""

import logging
import subprocess
import sys
import time

import pytest
from vivavoce_engine.runtime import Progress

START = """
import sys
from vivavoce_engine.batching.admission import Admission
from vivavoce_engine.config import EngineConfig
from vivavoce_engine.load import load_parts
from vivavoce_engine.process.worker import warm_up
from vivavoce_voice import CHECKPOINT
config = EngineConfig(device="cpu", max_streams=1, max_context=256)
runner = load_parts(CHECKPOINT, config, "voice").runner
warm_up(runner, config, Admission(config, runner.info.frame_s))
print(*(name for name in ("torch._dynamo", "torch._inductor", "sympy", "transformers") if name in sys.modules))
"""


def test_a_model_speaks_without_pytorchs_compiler() -> None:
    """Its import takes seconds; drawing values for weights that are then replaced had brought it in."""
    done = subprocess.run([sys.executable, "-c", START], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_progress_is_told_in_percent_but_not_at_each_piece(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = iter([0.0, 1.0, 2.5, 3.0, 3.5, 9.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    progress = Progress("recorded graphs", 5)
    with caplog.at_level(logging.INFO):
        for _ in range(5):
            progress.advance()
    assert [record.getMessage() for record in caplog.records] == [
        "recorded graphs: 2 of 5 (40 %), 2.5 s",
        "recorded graphs: 5 of 5 (100 %), 9.0 s",
    ]
