"""Modules that a start imports: none that nothing uses."""

import subprocess
import sys

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
