"""Pages of the talker's KV cache: they grow with the speech, utterances wait for them in order, and every wait ends."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vivavoce_engine import Engine, EngineConfig, Overloaded, SynthesisRequest
from vivavoce_engine.batching.admission import Admission
from vivavoce_engine.batching.capacity import DEVICE
from vivavoce_engine.batching.loop import EngineLoop
from vivavoce_engine.batching.messages import AudioChunk, Delivery, Failed, Finished, Submit
from vivavoce_engine.batching.runner import Runner
from vivavoce_engine.batching.scheduler import Scheduler
from vivavoce_engine.batching.sequence import Sequence
from vivavoce_engine.fake_runner import FAKE_INFO, FakeRunner, tone
from vivavoce_engine.pages import PAGE_POSITIONS, pages_of

from tests.support.speaking import running, speak
from tests.support.stepping import LateRunner, WatchedRunner
from tests.support.utterances import commit, listener, pending

PAGE = PAGE_POSITIONS
UNREAD = 10_000


def scheduler_of(pages: int, context_pages: int = 2, streams: int = 4, max_unread_frames: int = UNREAD) -> Scheduler:
    config = EngineConfig(
        max_streams=streams,
        max_context=context_pages * PAGE,
        kv_positions=pages * PAGE,
        max_prefills_per_step=streams,
    )
    return Scheduler(config, max_unread_frames, config.kv_pages, DEVICE)


def pages(scheduler: Scheduler) -> dict[int, list[int]]:
    return {sequence.utterance_id: sequence.pages for sequence in scheduler.running_sequences()}


def step(scheduler: Scheduler, times: int = 1, ending: frozenset[int] = frozenset()) -> list[int]:
    """Runs so many plans, `ending` in the last; who made a frame in that one."""
    for number in range(times):
        plan = scheduler.plan()
        commit(scheduler, plan, ending if number == times - 1 else frozenset())
        scheduler.check_integrity()
    return [sequence.utterance_id for sequence in plan.step]


def test_pages_of_positions() -> None:
    assert [pages_of(positions) for positions in (0, 1, PAGE, PAGE + 1)] == [0, 1, 1, 2]


def test_pages_grow_with_the_speech() -> None:
    scheduler = scheduler_of(4)
    scheduler.enqueue(pending(1, prompt_tokens=PAGE - 3))
    scheduler.enqueue(pending(2, prompt_tokens=PAGE))
    scheduler.plan()
    assert pages(scheduler) == {1: [0], 2: [1, 2]}, "the prompt's, and the first frame's"
    step(scheduler, 3)
    assert pages(scheduler)[1] == [0]
    assert step(scheduler) == [1, 2]
    assert pages(scheduler) == {1: [0, 3], 2: [1, 2]}


def test_pages_are_free_with_the_row() -> None:
    scheduler = scheduler_of(4)
    for number in (1, 2):
        scheduler.enqueue(pending(number, prompt_tokens=PAGE))
    step(scheduler, ending=frozenset({1}))
    assert pages(scheduler) == {2: [2, 3]}
    scheduler.enqueue(pending(3))
    step(scheduler)
    assert pages(scheduler) == {2: [2, 3], 3: [0]}
    scheduler.cancel(2)
    scheduler.drop_all()
    scheduler.check_integrity()
    assert scheduler._pages.free == 4


def test_the_integrity_check_catches_a_leaked_page() -> None:
    scheduler = scheduler_of(4)
    scheduler.enqueue(pending(1))
    step(scheduler)
    scheduler.running_sequences()[0].pages.clear()
    with pytest.raises(AssertionError, match=r"pages in use \[0\], owned by utterances \[\]"):
        scheduler.check_integrity()


def test_a_row_without_a_page_rests_until_one_is_free() -> None:
    scheduler = scheduler_of(3)
    for number in (1, 2):
        scheduler.enqueue(pending(number))
    assert step(scheduler, PAGE - 1) == [1, 2]
    assert step(scheduler) == [1], "the older one has the last page"
    assert scheduler.stuck() is None, "while another goes on nobody gives way"
    assert step(scheduler, ending=frozenset({1})) == [1]
    assert step(scheduler) == [], "the last audio of the first"
    (resting,) = scheduler.running_sequences()
    assert (resting.utterance_id, resting.frames_made) == (2, PAGE - 1)
    assert step(scheduler) == [2]
    assert (resting.frames_made, resting.pages) == (PAGE, [1, 0])


def fill(scheduler: Scheduler) -> None:
    """Two rows that need a page, where none is free."""
    for number in (1, 2):
        scheduler.enqueue(pending(number))
    step(scheduler, PAGE - 1)
    assert scheduler._pages.free == 0


def test_where_all_rows_wait_for_a_page_the_youngest_gives_way() -> None:
    scheduler = scheduler_of(2)
    assert scheduler.stuck() is None
    fill(scheduler)
    assert not scheduler.plan()
    stuck = scheduler.stuck()
    assert stuck is not None
    assert stuck.utterance_id == 2
    scheduler.release(stuck)
    assert scheduler.stuck() is not None, "a plan gives the page to the one that is left"
    assert step(scheduler) == [1]
    assert scheduler.stuck() is None


def test_nobody_gives_way_while_a_listener_lags() -> None:
    scheduler = scheduler_of(3, max_unread_frames=0)
    lagging = pending(3, prompt_tokens=PAGE - 1)
    for each in (lagging, pending(1), pending(2)):
        scheduler.enqueue(each)
    for _ in range(PAGE - 1):
        step(scheduler)
        for sequence in scheduler.running_sequences()[1:]:
            listener(sequence).read(sequence.stream.unread_frames)
    assert {number: len(each) for number, each in pages(scheduler).items()} == {3: 1, 1: 1, 2: 1}
    assert not scheduler.plan()
    assert scheduler.stuck() is None
    listener(lagging).read(lagging.stream.unread_frames)
    stuck = scheduler.stuck()
    assert stuck is not None
    assert stuck.utterance_id == 2


def test_nobody_gives_way_while_a_live_text_may_come() -> None:
    scheduler = scheduler_of(3)
    scheduler.enqueue(pending(3, live=True))
    fill(scheduler)
    assert not scheduler.plan()
    assert scheduler.stuck() is None
    scheduler.append_text(3, (7,), complete=True)
    assert step(scheduler, ending=frozenset({3})) == [3]
    assert step(scheduler) == [1], "its page is free"


def test_a_live_row_gets_its_pages_as_its_text_comes() -> None:
    scheduler = scheduler_of(2)
    scheduler.enqueue(pending(1, live=True, prompt_tokens=PAGE - 1))
    assert step(scheduler) == [1]
    assert not scheduler.plan()
    assert pages(scheduler) == {1: [0]}
    scheduler.append_text(1, (7,), complete=False)
    assert step(scheduler) == [1]
    assert pages(scheduler) == {1: [0, 1]}


def test_who_does_not_fit_waits_and_is_not_overtaken() -> None:
    scheduler = scheduler_of(4, context_pages=4)
    for number, frames in ((1, PAGE), (2, 2 * PAGE), (3, 1)):
        scheduler.enqueue(pending(number, max_frames=1000, frames=frames))
    assert step(scheduler) == [1]
    assert pages(scheduler) == {1: [0]}, "3 are free, but one of them is promised to the first"
    assert step(scheduler, ending=frozenset({1})) == [1]
    assert step(scheduler) == [2, 3]


def test_an_utterance_as_long_as_the_context_fits_an_empty_cache() -> None:
    scheduler = scheduler_of(2)
    scheduler.enqueue(pending(1, max_frames=PAGE, prompt_tokens=PAGE, frames=1e9))
    assert step(scheduler, PAGE - 1) == [1]
    assert pages(scheduler) == {1: [0, 1]}


class Ahead:
    """A scheduler's plans run as by a device that is one step ahead of the host: ends are known a step late."""

    def __init__(self, scheduler: Scheduler, lengths: dict[int, int]) -> None:
        self.scheduler = scheduler
        self.lengths = lengths
        self.underway: list[list[tuple[Sequence, bool]]] = []
        self.started: list[int] = []
        self.spoken: list[int] = []
        self.given_way: list[int] = []

    def run(self) -> None:
        while True:
            plan = self.scheduler.plan()
            self.started += (sequence.utterance_id for sequence in plan.start)
            begun = []
            for sequence in plan.step:
                assert pages_of(sequence.position + 1) == len(sequence.pages)
                begun.append((sequence, sequence.frames_made + 1 >= self.lengths[sequence.utterance_id]))
            plan.count_begun()
            if plan:
                self.underway.append(begun)
            if self.underway and (len(self.underway) > 1 or not plan):
                self.end(self.underway.pop(0))
            elif not plan and not self.give_way():
                return
            self.scheduler.check_integrity()

    def end(self, step: list[tuple[Sequence, bool]]) -> None:
        for sequence, ended in step:
            if not self.scheduler.is_running(sequence):
                continue
            sequence.confirm_frame(ended)
            if sequence.ended and sequence.frames_known == sequence.frames_made:
                self.spoken.append(sequence.utterance_id)
                self.scheduler.release(sequence)

    def give_way(self) -> bool:
        stuck = self.scheduler.stuck()
        if stuck is not None:
            self.given_way.append(stuck.utterance_id)
            self.scheduler.release(stuck)
        return stuck is not None


utterances = st.lists(
    st.tuples(st.integers(1, PAGE + 8), st.integers(1, 2 * PAGE - 8), st.integers(1, 2 * PAGE)), max_size=8
)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(pool=st.integers(3, 9), utterances=utterances)
def test_all_are_begun_in_their_order_and_come_to_an_end(pool: int, utterances: list[tuple[int, int, int]]) -> None:
    """Whatever their prompts, lengths and estimates are."""
    scheduler = scheduler_of(pool, context_pages=3, streams=3)
    room = 3 * PAGE
    for number, (prompt, length, estimate) in enumerate(utterances):
        scheduler.enqueue(pending(number, min(length, room - prompt), 1, frames=estimate, prompt_tokens=prompt))
    ahead = Ahead(scheduler, {number: length for number, (_, length, _) in enumerate(utterances)})
    ahead.run()
    assert ahead.started == list(range(len(utterances)))
    assert sorted(ahead.spoken + ahead.given_way) == ahead.started
    assert scheduler._pages.free == pool
    if pool >= pages_of(room) * 3:
        assert not ahead.given_way


@pytest.mark.parametrize("runner", [WatchedRunner(FakeRunner()), LateRunner(FakeRunner())], ids=["at once", "ahead"])
def test_the_listener_of_the_one_that_gives_way_is_told(runner: Runner) -> None:
    heard: list[Delivery] = []
    config = EngineConfig(max_streams=4, max_context=2 * PAGE, kv_positions=2 * PAGE)
    loop = EngineLoop(runner, config, Admission(config, FAKE_INFO.frame_s), heard.extend, lambda: 0.0)
    many, few = pending(1, max_frames=PAGE + 20), pending(2, max_frames=PAGE + 20)
    for each in (many, few):
        each.trailing.text_tokens = PAGE + 10  # so many frames
    loop.apply([Submit(many), Submit(few), Submit(pending(3))])
    while loop.step():
        pass
    ends = {stream.utterance_id: event for stream, event in heard if not isinstance(event, AudioChunk)}
    assert isinstance(ends[1], Finished)
    assert ends[1].frames == PAGE + 10
    assert isinstance(ends[2], Failed)
    assert isinstance(ends[2].error, Overloaded)
    assert isinstance(ends[3], Finished), "the next in the queue has its turn"
    loop._scheduler.check_integrity()


def test_speech_that_fits_by_turns_is_heard_whole() -> None:
    lengths = [PAGE + 30, 5, PAGE + 1, 40, 2 * PAGE - 2, 3]
    config = EngineConfig(max_streams=3, max_context=2 * PAGE, kv_positions=3 * PAGE)
    with running(Engine(LateRunner(FakeRunner()), config)) as engine:
        speeches = speak(engine, *(SynthesisRequest("x" * n, speaker="heart", seed=n) for n in lengths))
        assert engine.ready, "a page has leaked"
    for length, speech in zip(lengths, speeches, strict=True):
        assert np.array_equal(speech.pcm, tone(length, 0, length))


def test_a_runner_of_a_host_has_a_whole_context_for_each_row() -> None:
    config = EngineConfig(max_streams=3, max_context=2 * PAGE - 1, kv_positions=2 * PAGE)
    length = 2 * PAGE - 2
    with running(Engine(FakeRunner(), config)) as engine:
        speeches = speak(engine, *(SynthesisRequest("x" * length, speaker="heart", seed=n) for n in range(3)))
        assert engine.stats().steps < 2 * length, "they spoke side by side"
    assert [speech.finished.frames for speech in speeches] == [length] * 3
