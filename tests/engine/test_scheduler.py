"""The scheduler: admission, pausing, audio chunks, cancelling, and no leaked row. No torch, no threads."""

import subprocess
import sys
from collections.abc import Sequence as SequenceOf

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from vivavoce_engine import EngineConfig
from vivavoce_engine.batching.capacity import DEVICE, HOST, Capacity
from vivavoce_engine.batching.scheduler import Plan, Scheduler
from vivavoce_engine.batching.sequence import Sequence

from tests.support.utterances import commit, listener, pending

UNREAD = 1000


def scheduler_of(max_unread_frames: int = UNREAD, capacity: Capacity = DEVICE, **settings: int) -> Scheduler:
    config = EngineConfig(**settings)  # type: ignore[arg-type]
    return Scheduler(config, max_unread_frames, config.kv_pages, capacity)


def ids(sequences: SequenceOf[Sequence]) -> list[int]:
    return [sequence.utterance_id for sequence in sequences]


def pieces(plan: Plan) -> dict[int, int]:
    return {sequence.utterance_id: frames for sequence, frames in plan.vocode}


def test_utterances_start_in_the_order_they_came() -> None:
    scheduler = scheduler_of(max_streams=4, max_prefills_per_step=4)
    for utterance_id in (7, 3, 9):
        scheduler.enqueue(pending(utterance_id))
    plan = scheduler.plan()
    assert ids(plan.start) == [7, 3, 9]
    assert [sequence.row for sequence in plan.start] == [0, 1, 2]


def test_a_burst_starts_a_few_at_a_time_while_the_others_go_on() -> None:
    scheduler = scheduler_of(max_streams=8, max_prefills_per_step=2)
    for utterance_id in range(5):
        scheduler.enqueue(pending(utterance_id))
    started, stepped = [], []
    for _ in range(4):
        plan = scheduler.plan()
        started.append(ids(plan.start))
        stepped.append(ids(plan.step))
        commit(scheduler, plan)
    assert started == [[0, 1], [2, 3], [4], []]
    assert stepped == [[0, 1], [0, 1, 2, 3], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]


@pytest.mark.parametrize(
    ("capacity", "most", "expected"),
    [(DEVICE, 1024, [[0], [1, 2, 3, 4], []]), (HOST, 512, [[0], [1, 2, 3, 4], []])],
)
def test_long_prompts_start_a_few_at_a_time(capacity: Capacity, most: int, expected: list[list[int]]) -> None:
    scheduler = scheduler_of(capacity=capacity, max_streams=8, max_prefills_per_step=8)
    for utterance_id, tokens in enumerate((most + 1, 12, most // 2, 1, 30)):
        scheduler.enqueue(pending(utterance_id, prompt_tokens=tokens))
    started = []
    for _ in expected:
        plan = scheduler.plan()
        started.append(ids(plan.start))
        commit(scheduler, plan)
    assert started == expected


def test_who_finds_no_row_waits_for_one() -> None:
    scheduler = scheduler_of(max_streams=2, max_prefills_per_step=8)
    for utterance_id in range(4):
        scheduler.enqueue(pending(utterance_id))
    plan = scheduler.plan()
    assert (ids(plan.start), scheduler.running, scheduler.left_queue) == ([0, 1], 2, 2)
    commit(scheduler, plan, ending=frozenset({1}))
    plan = scheduler.plan()
    assert (ids(plan.start), ids(plan.step), scheduler.left_queue) == ([2], [0, 2], 3)
    assert plan.start[0].row == 1


def test_a_new_utterance_has_audio_after_one_step() -> None:
    scheduler = scheduler_of()
    scheduler.enqueue(pending(1))
    assert pieces(scheduler.plan()) == {1: 1}


@pytest.mark.parametrize(
    ("first_chunk_frames", "expected"),
    [(1, [1, 1, 0, 2, 0, 0, 0, 4]), (2, [0, 2, 0, 2, 0, 0, 0, 4]), (4, [0, 0, 0, 4, 0, 0, 0, 4])],
)
def test_pieces_of_audio_by_step(first_chunk_frames: int, expected: list[int]) -> None:
    scheduler = scheduler_of()
    scheduler.enqueue(pending(1, first_chunk_frames=first_chunk_frames))
    sizes = []
    for _ in expected:
        plan = scheduler.plan()
        sizes.append(pieces(plan).get(1, 0))
        commit(scheduler, plan)
    assert sizes == expected


def test_the_tail_is_decoded_after_the_last_frame_and_the_row_is_then_free() -> None:
    scheduler = scheduler_of()
    scheduler.enqueue(pending(1))
    for frame in range(1, 7):  # pieces of 1, 1 and 2 frames, and 2 that wait
        assert commit(scheduler, scheduler.plan(), frozenset({1} if frame == 6 else ())) == {}
    plan = scheduler.plan()
    assert (plan.step, pieces(plan)) == ((), {1: 2})
    assert commit(scheduler, plan)[1].frames == 6
    assert (scheduler.running, bool(scheduler.plan())) == (0, False)
    scheduler.check_integrity()


def test_a_row_whose_reader_lags_rests_and_goes_on_when_it_has_read() -> None:
    scheduler = scheduler_of(max_unread_frames=3, max_chunk_frames=1)
    slow, quick = pending(1), pending(2)
    scheduler.enqueue(slow)
    scheduler.enqueue(quick)
    for _ in range(4):
        plan = scheduler.plan()
        assert ids(plan.step) == [1, 2]
        commit(scheduler, plan)
        listener(quick).read(1)
    plan = scheduler.plan()
    assert (ids(plan.step), pieces(plan)) == ([2], {2: 1})
    commit(scheduler, plan)
    listener(slow).read(1)
    assert ids(scheduler.plan().step) == [1, 2]


def test_a_resting_row_keeps_its_place_and_its_waiting_frames() -> None:
    scheduler = scheduler_of(max_unread_frames=1, max_chunk_frames=8)
    slow = pending(1)
    scheduler.enqueue(slow)
    commit(scheduler, scheduler.plan())
    commit(scheduler, scheduler.plan())  # two pieces of one frame: now more than one is unread
    assert not scheduler.plan()
    assert scheduler.running == 1
    scheduler.check_integrity()
    listener(slow).read(2)
    plan = scheduler.plan()
    assert (ids(plan.start), ids(plan.step)) == ([], [1])
    assert plan.step[0].frames_made == 2


def test_cancelling_in_the_queue_frees_the_place() -> None:
    scheduler = scheduler_of(max_streams=1)
    for utterance_id in (1, 2, 3):
        scheduler.enqueue(pending(utterance_id))
    commit(scheduler, scheduler.plan())
    scheduler.cancel(2)
    assert scheduler.left_queue == 2
    commit(scheduler, scheduler.plan(), ending=frozenset({1}))
    assert ids(scheduler.plan().start) == [3]


def test_cancelling_a_running_one_frees_its_row_for_the_next_plan() -> None:
    scheduler = scheduler_of(max_streams=1)
    scheduler.enqueue(pending(1))
    scheduler.enqueue(pending(2))
    commit(scheduler, scheduler.plan())
    scheduler.cancel(1)
    scheduler.check_integrity()
    plan = scheduler.plan()
    assert (ids(plan.start), ids(plan.step), plan.step[0].row) == ([2], [2], 0)


def test_cancelling_what_is_not_there_changes_nothing() -> None:
    scheduler = scheduler_of()
    scheduler.enqueue(pending(1))
    scheduler.cancel(99)
    assert scheduler.left_queue == 0
    commit(scheduler, scheduler.plan(), ending=frozenset({1}))
    scheduler.cancel(1)
    scheduler.cancel(1)
    assert (scheduler.running, scheduler.left_queue) == (0, 1)
    scheduler.check_integrity()


def test_drop_all_returns_everyone_and_leaves_nothing() -> None:
    scheduler = scheduler_of(max_streams=2)
    for utterance_id in range(4):
        scheduler.enqueue(pending(utterance_id))
    commit(scheduler, scheduler.plan())
    dropped = scheduler.drop_all()
    assert sorted(utterance.utterance_id for utterance in dropped) == [0, 1, 2, 3]
    assert (scheduler.running, scheduler.left_queue, bool(scheduler.plan())) == (0, 4, False)
    scheduler.check_integrity()


def test_the_integrity_check_catches_a_leaked_row() -> None:
    scheduler = scheduler_of()
    scheduler.enqueue(pending(1))
    scheduler.plan()
    scheduler.check_integrity()
    del scheduler._running[1]
    with pytest.raises(AssertionError, match="rows in use"):
        scheduler.check_integrity()


class SchedulerMachine(RuleBasedStateMachine):
    """Any history of arrivals, frames, ends, readers and cancels, beside a model that is a list and three numbers."""

    STREAMS, CHUNK, UNREAD, PREFILLS = 3, 4, 6, 2

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = scheduler_of(
            self.UNREAD, max_streams=self.STREAMS, max_chunk_frames=self.CHUNK, max_prefills_per_step=self.PREFILLS
        )
        self.queue: list[int] = []
        self.running: dict[int, Sequence] = {}
        self.arrived = 0

    @rule(first=st.integers(1, 6), limit=st.integers(1, 12))
    def arrive(self, first: int, limit: int) -> None:
        self.arrived += 1
        self.queue.append(self.arrived)
        self.scheduler.enqueue(pending(self.arrived, limit, first))

    @rule(which=st.integers(1, 40))
    def cancel(self, which: int) -> None:
        self.scheduler.cancel(which)
        self.queue = [utterance_id for utterance_id in self.queue if utterance_id != which]
        self.running.pop(which, None)

    @rule(ending=st.frozensets(st.integers(1, 40), max_size=3))
    def step(self, ending: frozenset[int]) -> None:
        plan = self.scheduler.plan()
        free = self.STREAMS - len(self.running)
        expected = self.queue[: min(free, self.PREFILLS)]
        assert ids(plan.start) == expected
        self.queue = self.queue[len(expected) :]
        self.running |= {sequence.utterance_id: sequence for sequence in plan.start}
        assert set(ids(plan.step)) == {
            utterance_id
            for utterance_id, sequence in self.running.items()
            if not sequence.ended and sequence.stream.unread_frames <= self.UNREAD
        }
        for utterance_id, finished in commit(self.scheduler, plan, ending).items():
            sequence = self.running.pop(utterance_id)
            assert finished.frames == sequence.frames_made == sequence.frames_vocoded
            assert (finished.reason == "length") <= (sequence.frames_made == sequence.pending.max_frames)

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, STREAMS - 1))
    def read_all(self, which: int) -> None:
        sequence = list(self.running.values())[which % len(self.running)]
        listener(sequence).read(sequence.stream.unread_frames)

    @invariant()
    def nothing_leaks(self) -> None:
        self.scheduler.check_integrity()
        assert {sequence.utterance_id for sequence in self.scheduler.running_sequences()} == set(self.running)
        assert self.scheduler.left_queue == self.arrived - len(self.queue)
        rows = [sequence.row for sequence in self.running.values()]
        assert len(set(rows)) == len(rows) <= self.STREAMS

    @invariant()
    def waiting_frames_fit_the_runners_ring(self) -> None:
        assert all(0 <= sequence.frames_waiting <= self.CHUNK for sequence in self.running.values())
        assert all(sequence.stream.unread_frames <= self.UNREAD + self.CHUNK for sequence in self.running.values())


SchedulerMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, derandomize=True)
TestSchedulerMachine = SchedulerMachine.TestCase


WITHOUT_TORCH = """
import asyncio, sys
from vivavoce_engine.batching import pace, scheduler, sequence, slots
import vivavoce_engine.checkpoint.files, vivavoce_engine.load, vivavoce_engine.text.prompt
from vivavoce_engine import Engine, EngineConfig, SynthesisRequest, collect
from vivavoce_engine.fake_runner import FakeRunner

async def speak():
    return await collect(engine.submit(SynthesisRequest("Hello", speaker="heart")))

engine = Engine(FakeRunner(), EngineConfig())
engine.start()
chunks, finished = asyncio.run(speak())
engine.stop()
heavy = {"torch", "transformers", "fastapi", "huggingface_hub"} & sys.modules.keys()
print(sum(chunk.frames for chunk in chunks), finished.reason, sorted(heavy))
"""


def test_scheduling_and_a_fake_engine_need_no_torch() -> None:
    ran = subprocess.run([sys.executable, "-W", "error", "-c", WITHOUT_TORCH], capture_output=True, text=True)
    assert (ran.stdout, ran.stderr) == ("5 stop []\n", "")
