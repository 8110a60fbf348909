"""The clock of `vivavoce bench engine`: which stage a step's time belongs to."""

from types import SimpleNamespace
from typing import Any

import pytest
from vivavoce_bench.engine.speed import StageClock
from vivavoce_engine.batching.capacity import CORES, HOST, Capacity
from vivavoce_engine.batching.runner import Outcome, Step
from vivavoce_engine.batching.scheduler import Plan


@pytest.mark.parametrize(("capacity", "overlap"), [(HOST, False), (CORES, True)])
def test_decoding_counts_when_a_step_has_been_waited_for(capacity: Capacity, overlap: bool) -> None:
    now_s = [0.0]

    def launch(plan: Plan) -> Step:
        runner._start()
        runner._step()
        outcome = Outcome(plan, {}, {}, {})

        def wait() -> None:
            outcome.decoding_s = 0.25

        return Step(outcome, wait, lambda: True)

    def passes(seconds: float) -> None:
        now_s[0] += seconds

    runner: Any = SimpleNamespace(
        capacity=capacity, launch=launch, _start=lambda: passes(1.0), _step=lambda: passes(2.0)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vivavoce_bench.engine.speed.time.perf_counter", lambda: now_s[0])
        clock = StageClock(runner, lambda: None)
        step = runner.launch(Plan((), (), ()))
        assert clock.seconds == {"prompts": 1.0, "code predictor and talker": 2.0, "Code2Wav": 0.0}
        step.wait()
    assert step.is_done()
    assert clock.seconds["Code2Wav"] == 0.25
    assert clock.overlap is overlap
    clock.reset()
    assert set(clock.seconds.values()) == {0.0}
