"""A seed is the same 16-bit PCM, byte for byte, whatever else the engine does and however long its steps take."""

from dataclasses import replace

from vivavoce_engine import EngineConfig
from vivavoce_engine.checkpoint.files import read_checkpoint
from vivavoce_voice import CHECKPOINT

from tests.engine.conftest import Checkpoints
from tests.support.cpu_runners import MakeRunner
from tests.support.seeds import assert_seeds_hold

CONFIG = EngineConfig(max_context=160, max_streams=4, device="cpu", dtype="float32")


def test_a_seed_is_the_same_pcm_whatever_else_goes_on(checkpoints: Checkpoints, make_runner: MakeRunner) -> None:
    runner = make_runner("tiny", read_checkpoint(checkpoints("tiny", "custom_voice")), CONFIG)
    assert_seeds_hold(runner, CONFIG, 10, range(6))


def test_a_seed_of_the_shipped_voice_is_the_same_pcm_whatever_else_goes_on(make_runner: MakeRunner) -> None:
    config = replace(CONFIG, max_context=512)
    assert_seeds_hold(make_runner("shipped", read_checkpoint(CHECKPOINT), config), config, 16, range(2))
