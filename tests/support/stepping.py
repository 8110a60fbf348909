"""Holds an engine's thread before each step, so that a test controls what happens between frames."""

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from vivavoce_engine import Engine, EngineConfig, ModelInfo
from vivavoce_engine.batching.capacity import CORES, DEVICE, Capacity
from vivavoce_engine.batching.runner import Frontend, Outcome, Runner
from vivavoce_engine.batching.runner import Step as BegunStep
from vivavoce_engine.batching.scheduler import Plan
from vivavoce_engine.fake_runner import FakeRunner

from tests.support.waiting import HUNG_S


@dataclass(frozen=True)
class Step:
    """Utterances of one engine step, in their state before it runs."""

    start: tuple[int, ...]
    step: tuple[int, ...]
    rows: tuple[int, ...]
    vocode: tuple[tuple[int, int], ...]


def step_of(plan: Plan) -> Step:
    return Step(
        tuple(sequence.utterance_id for sequence in plan.start),
        tuple(sequence.utterance_id for sequence in plan.step),
        tuple(sequence.row for sequence in plan.step),
        tuple((sequence.utterance_id, frames) for sequence, frames in plan.vocode),
    )


@dataclass
class Steps:
    """A `before_step` hook. The engine's thread announces each step (`next`) and waits for its release (`allow`)."""

    taken: list[Step] = field(default_factory=list)
    _announced: "queue.Queue[Step]" = field(default_factory=queue.Queue)
    _permits: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    _open: bool = False
    _failure: Exception | None = None

    def __call__(self, plan: Plan) -> None:
        step = step_of(plan)
        self.taken.append(step)
        self._announced.put(step)
        if not self._open:
            assert self._permits.acquire(timeout=HUNG_S), "the test let nobody go"
        if self._failure is not None:
            raise self._failure

    def next(self) -> Step:
        """Waits until the engine's thread stands before a step. Returns the step."""
        return self._announced.get(timeout=HUNG_S)

    def allow(self) -> Step:
        """Releases one step, and waits until the engine stands before the next."""
        self._permits.release()
        return self.next()

    def open(self) -> None:
        """Releases all steps."""
        self._open = True
        self._permits.release()

    def fail(self, failure: Exception) -> None:
        """Makes the waiting step raise, like a broken runner."""
        self._failure = failure
        self.open()


class WatchedRunner:
    """Wraps a runner. Adds a hook before each step on the engine's thread, or other prompts."""

    def __init__(
        self,
        runner: Runner,
        before_step: Callable[[Plan], None] = lambda _: None,
        text: Frontend | None = None,
    ) -> None:
        self._runner = runner
        self._before_step = before_step
        self._text = text or runner.text

    @property
    def info(self) -> ModelInfo:
        return self._runner.info

    @property
    def text(self) -> Frontend:
        return self._text

    @property
    def capacity(self) -> Capacity:
        return replace(self._runner.capacity, shares_pages=True)

    def launch(self, plan: Plan) -> BegunStep:
        self._before_step(plan)
        return self._runner.launch(plan)


class LateRunner(WatchedRunner):
    """Wraps a runner as a device that works beside the host.

    The outcome of a step is unknown until the host waits for it, and the next step may begin before that. `moments`
    records the order: the number of a step, and whether it began or ended.
    """

    def __init__(self, runner: Runner, capacity: Capacity = DEVICE) -> None:
        super().__init__(runner)
        self.moments: list[tuple[int, str]] = []
        self._capacity = capacity
        self._begun = 0

    @property
    def capacity(self) -> Capacity:
        return self._capacity

    def launch(self, plan: Plan) -> BegunStep:
        step = self._runner.launch(plan)
        number, given = self._begun, step.outcome
        self._begun += 1
        outcome = Outcome(plan, {}, {}, given.failed)
        self.moments.append((number, "begins"))

        def wait() -> None:
            self.moments.append((number, "ends"))
            step.wait()
            outcome.ended.update(given.ended)
            outcome.audio.update(given.audio)

        return BegunStep(outcome, wait)


class BesideRunner(WatchedRunner):
    """Wraps a runner as a CPU with a core for Code2Wav, with the clock of the test.

    A step's frames take `frame_ms` and are known at once. Its audio follows in the order of the steps, `decoding_ms` a
    frame. The core that makes frames halves what is left while it waits.
    """

    def __init__(self, runner: Runner, frame_ms: float = 0.0, decoding_ms: float = 0.0) -> None:
        super().__init__(runner)
        self.now_s = 1000.0
        self.most_underway = 0
        self._frame_s, self._decoding_s = frame_ms / 1000, decoding_ms / 1000
        self._free_s = self._helped_s = 0.0
        self._underway = 0

    @property
    def capacity(self) -> Capacity:
        return CORES

    def launch(self, plan: Plan) -> BegunStep:
        step = self._runner.launch(plan)
        given = step.outcome
        outcome = Outcome(plan, given.ended, {}, given.failed)
        self.now_s += self._frame_s * bool(plan.step)
        outcome.decoding_s = sum(frames for _, frames in plan.vocode) * self._decoding_s
        self._free_s = max(self._free_s, self.now_s + self._helped_s) + outcome.decoding_s
        ends_s = self._free_s
        self._underway += 1
        self.most_underway = max(self.most_underway, self._underway)

        def wait() -> None:
            helped_s = max(0.0, ends_s - self._helped_s - self.now_s) / 2
            self._helped_s += helped_s
            self.now_s += helped_s
            self._underway -= 1
            outcome.audio.update(given.audio)

        return BegunStep(outcome, wait, lambda: self.now_s + self._helped_s >= ends_s)


@contextmanager
def stepping(runner: FakeRunner | None = None, **settings: int | float) -> Iterator[tuple[Engine, Steps]]:
    """A fake engine that takes a step on command. It always stops at the end."""
    steps = Steps()
    engine = Engine(WatchedRunner(runner or FakeRunner(), steps), EngineConfig(**settings))  # type: ignore[arg-type]
    engine.start()
    try:
        yield engine, steps
    finally:
        steps.open()
        engine.stop()
