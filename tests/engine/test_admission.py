"""Admission: which requests are accepted, which are refused and until when, and the order of turns."""

import asyncio

import pytest
from vivavoce_bench.planning.simulation import FRAMES_PER_TOKEN, Arrival, Simulation
from vivavoce_bench.planning.step_times import TAKES_NO_TIME
from vivavoce_engine import Engine, EngineConfig, Overloaded, SynthesisRequest
from vivavoce_engine.batching.admission import Admission
from vivavoce_engine.batching.capacity import DEVICE
from vivavoce_engine.batching.line import (
    FIRST_FRAMES_PER_S,
    FIRST_FRAMES_PER_TOKEN,
    Accepted,
    Backlog,
    Line,
    LoopState,
    Rates,
    Waiting,
)
from vivavoce_engine.batching.scheduler import Scheduler
from vivavoce_engine.fake_runner import FakeRunner

from tests.support.speaking import listen, running
from tests.support.stepping import stepping
from tests.support.utterances import pending

FRAME_S = 0.08


RATES = Rates()


def admission(max_queue: int = 3, max_queue_s: float = 8.0) -> Admission:
    return Admission(EngineConfig(max_queue=max_queue, max_queue_s=max_queue_s), FRAME_S)


def line_of(*frames: float, client: str = "", busy: tuple[tuple[str, float], ...] = (("", 0.0),)) -> Line:
    """One row that is in use, and requests of one client that wait."""
    return Line(tuple(Waiting(client, each) for each in frames), busy, 0, len(busy), RATES)


def test_the_queue_is_bounded_by_requests_and_by_seconds_of_speech() -> None:
    gate = admission()
    gate.check(line_of(25.0, 25.0), Waiting("", 50.0))
    with pytest.raises(Overloaded, match="3 requests are waiting"):
        gate.check(line_of(0.0, 0.0, 0.0), Waiting("", 1.0))
    with pytest.raises(Overloaded, match="too long"):
        gate.check(line_of(25.0, 25.0), Waiting("", 51.0))


def test_silence_counts_as_audio_and_nobody_waits_for_it() -> None:
    gate = admission()
    gate.check(line_of(25.0, 25.0), Waiting("", 10.0, silent_frames=40.0))
    with pytest.raises(Overloaded, match="too long"):
        gate.check(line_of(25.0, 25.0), Waiting("", 10.0, silent_frames=41.0))
    quiet = Line((Waiting("", 25.0, silent_frames=50.0),), (("", 0.0),), 0, 1, RATES)
    with pytest.raises(Overloaded, match="too long"):
        gate.check(quiet, Waiting("", 26.0))
    assert quiet.wait_s("") == line_of(25.0).wait_s("")


def test_an_empty_queue_takes_a_text_of_any_length() -> None:
    gate = admission()
    gate.check(line_of(), Waiting("", 1e6))
    with pytest.raises(Overloaded, match="too long"):
        gate.check(line_of(0.0), Waiting("", 1e6))


def test_a_wait_that_cannot_be_met_is_refused_at_once() -> None:
    gate = admission()
    gate.check(line_of(2 * FIRST_FRAMES_PER_S), Waiting("", 1.0), max_wait_s=2.0)
    with pytest.raises(Overloaded, match=r"about 2\.0 s"):
        gate.check(line_of(2 * FIRST_FRAMES_PER_S), Waiting("", 1.0), max_wait_s=1.9)


def test_estimates_follow_what_was_measured() -> None:
    gate = admission()
    assert gate.estimate_frames(10, 1000) == 10 * FIRST_FRAMES_PER_TOKEN
    assert gate.estimate_frames(10, 7) == 7
    for _ in range(200):
        gate.rates = gate.rates.after_step(frames=100, seconds=0.5).after_utterance(text_tokens=10, frames=30)
    assert gate.estimate_frames(10, 1000) == pytest.approx(30)
    assert gate.rates.frames_per_s == pytest.approx(200)


def test_clients_get_rows_in_turn() -> None:
    scheduler = Scheduler(EngineConfig(max_streams=3, max_prefills_per_step=8), 100, pages=64, capacity=DEVICE)
    for utterance_id, client in ((1, "a"), (2, "a"), (3, "a"), (4, "b"), (5, "c")):
        scheduler.enqueue(pending(utterance_id, client=client))
    assert [sequence.utterance_id for sequence in scheduler.plan().start] == [1, 4, 5]
    assert scheduler.left_queue == 3


def test_what_waited_too_long_leaves_the_queue() -> None:
    scheduler = Scheduler(EngineConfig(max_streams=1), 100, pages=64, capacity=DEVICE)
    scheduler.enqueue(pending(1, deadline_s=5.0))
    scheduler.enqueue(pending(2))
    assert scheduler.next_deadline_s == 5.0
    assert scheduler.expire(4.9) == []
    assert [late.utterance_id for late in scheduler.expire(5.0)] == [1]
    assert scheduler.next_deadline_s == float("inf")
    assert [sequence.utterance_id for sequence in scheduler.plan().start] == [2]


def test_a_request_whose_wait_runs_out_in_the_queue_is_refused() -> None:
    async def wait_in_vain(engine: Engine) -> None:
        blocking = engine.submit(SynthesisRequest("x" * 50, speaker="heart"))
        await anext(blocking)
        late = engine.submit(SynthesisRequest("late", speaker="heart", max_wait_s=0.0))
        with pytest.raises(Overloaded, match="time to wait has passed") as refused:
            await anext(late)
        assert refused.value.retry_after_s >= 1
        blocking.cancel()

    with running(Engine(FakeRunner(), EngineConfig(max_streams=1, max_unread_s=0.08))) as engine:
        asyncio.run(wait_in_vain(engine))


def test_estimated_frames_leave_the_queue_with_their_request() -> None:
    async def fill(engine: Engine) -> None:
        engine.submit(SynthesisRequest("ab", speaker="heart"))
        steps.next()
        queued = [engine.submit(SynthesisRequest("a" * length, speaker="heart")) for length in (10, 20)]
        assert engine.waiting() == Backlog(2, 30 * FIRST_FRAMES_PER_TOKEN)
        queued[0].cancel()
        steps.allow()
        assert engine.waiting() == Backlog(1, 20 * FIRST_FRAMES_PER_TOKEN)
        queued[1].cancel()

    with stepping(max_streams=1) as (engine, steps):
        asyncio.run(fill(engine))


def test_nobody_waits_longer_than_an_idle_engine_takes() -> None:
    with running(Engine(FakeRunner(), EngineConfig())) as engine:
        speech = asyncio.run(listen(engine, SynthesisRequest("hello", speaker="heart", max_wait_s=30.0)))
        assert speech.finished.frames == 5


def test_rows_that_are_free_count_before_they_are_taken() -> None:
    async def burst(engine: Engine) -> None:
        engine.submit(SynthesisRequest("ab", speaker="heart"))
        steps.next()
        for _ in range(3):
            engine.submit(SynthesisRequest("a" * 10, speaker="heart"))
        assert engine.waiting() == Backlog(0, 0.0)
        engine.submit(SynthesisRequest("a" * 10, speaker="heart"))
        assert engine.waiting() == Backlog(1, 10 * FIRST_FRAMES_PER_TOKEN)

    with stepping(max_streams=4) as (engine, steps):
        asyncio.run(burst(engine))


@pytest.mark.parametrize(
    ("accepted", "state", "expected"),
    [
        (10, LoopState(RATES), Backlog(2, 17.0)),
        (8, LoopState(RATES), Backlog()),
        (10, LoopState(RATES, running=8, left_queue=8, queued=(8, 9)), Backlog(2, 17.0)),
        (10, LoopState(RATES, running=8, left_queue=8, queued=(0, 9)), Backlog(2, 9.0)),
        (10, LoopState(RATES, running=8, left_queue=7, queued=(3,)), Backlog(3, 20.0)),
        (10, LoopState(RATES, running=7, left_queue=8, queued=(8, 9)), Backlog(1, 9.0)),
        (3, LoopState(RATES, running=1, left_queue=1, queued=(1, 2)), Backlog()),
        (3, LoopState(RATES, running=1, left_queue=1, queued=(1, 2), short_of_pages=True), Backlog(2, 3.0)),
    ],
)
def test_requests_that_find_no_row_free_wait(accepted: int, state: LoopState, expected: Backlog) -> None:
    """Request n has n frames. The newest ones may be on their way to the queue still."""
    requests = Accepted()
    for number in range(accepted):
        requests.add(number, Waiting("", float(number)))
    assert Backlog.of(Line.of(requests, state, rows=8).waiting) == expected
    assert Backlog.of(Line.of(requests, state, rows=8).waiting) == expected, "asking changes nothing"


def test_a_simulation_counts_what_waits_as_an_engine_does() -> None:
    tokens, requests = 25, 10
    simulation = Simulation(TAKES_NO_TIME, EngineConfig())
    for _ in range(requests):
        simulation.submit(simulation.listener(Arrival(0.0, tokens * FRAMES_PER_TOKEN)))

    async def burst(engine: Engine) -> Backlog:
        for _ in range(requests):
            engine.submit(SynthesisRequest("a" * tokens, speaker="heart"))
        return engine.waiting()

    with stepping() as (engine, _):
        assert (
            Backlog.of(simulation.line.waiting)
            == asyncio.run(burst(engine))
            == Backlog(2, 2 * tokens * FIRST_FRAMES_PER_TOKEN)
        )


def test_rows_for_which_there_are_no_pages_are_not_free() -> None:
    async def fill(engine: Engine) -> None:
        engine.submit(SynthesisRequest("a" * 15, speaker="heart"))
        steps.next()
        assert engine.waiting() == Backlog(0, 0.0)
        long = engine.submit(SynthesisRequest("a" * 20, speaker="heart"))
        steps.allow()
        assert engine.waiting() == Backlog(1, 20 * FIRST_FRAMES_PER_TOKEN)
        with pytest.raises(Overloaded, match="1 requests are waiting"):
            engine.submit(SynthesisRequest("ab", speaker="heart"))
        long.cancel()
        steps.allow()
        assert engine.waiting() == Backlog(0, 0.0)
        engine.submit(SynthesisRequest("ab", speaker="heart"))

    with stepping(max_streams=4, max_queue=1, max_context=128, kv_positions=128) as (engine, steps):
        asyncio.run(fill(engine))


def test_engines_that_share_a_queue_share_its_seconds_too() -> None:
    async def fill(one: Engine, two: Engine) -> None:
        for engine, steps in ((one, steps_one), (two, steps_two)):
            engine.submit(SynthesisRequest("ab", speaker="heart"))
            steps.next()
        one.submit(SynthesisRequest("a" * 20, speaker="heart"))
        with pytest.raises(Overloaded, match="too long"):
            two.submit(SynthesisRequest("a" * 20, speaker="heart"))
        two.submit(SynthesisRequest("a" * 4, speaker="heart"))

    limit_s = 100 * FRAME_S
    with (
        stepping(max_streams=1, max_queue_s=limit_s) as (one, steps_one),
        stepping(max_streams=1, max_queue_s=limit_s) as (two, steps_two),
    ):
        for engine in (one, two):
            engine.share_queue((one, two))
        asyncio.run(fill(one, two))
