"""Fairness in the queue, and the time after which a refused client should come back: it is simulated, then compared."""

import heapq
import math
import random
from dataclasses import dataclass, replace

import pytest
from vivavoce_bench.planning.simulation import Arrival, SimulatedListener, Simulation
from vivavoce_bench.planning.step_times import TAKES_NO_TIME, Curve
from vivavoce_engine import EngineConfig, Overloaded
from vivavoce_engine.batching.admission import MARGIN, MAX_RETRY_S, Admission
from vivavoce_engine.batching.line import Line, Rates, Waiting

FRAME_S = 0.08
RATES = Rates(frames_per_s=10.0)
STEP_MS = 20.0
"""Time of a frame of all rows."""


def line_of(*clients: str, frames: float = 10.0, busy: tuple[tuple[str, float], ...] = (("", 0.0),)) -> Line:
    """A request of each of the clients waits. One row is in use."""
    return Line(tuple(Waiting(client, frames) for client in clients), busy, 0, len(busy), RATES)


def takes(line: Line, client: str, max_queue: int = 6, max_queue_s: float = 1e6, frames: float = 10.0) -> bool:
    gate = Admission(EngineConfig(max_queue=max_queue, max_queue_s=max_queue_s), FRAME_S)
    try:
        gate.check(line, Waiting(client, frames))
    except Overloaded:
        return False
    return True


@pytest.mark.parametrize(
    ("waiting", "client", "expected"),
    [
        ("aaaaa", "a", True),
        ("aaaaaa", "a", False),  # alone, a client may fill the queue
        ("aaaaaa", "b", True),  # its share is three of six
        ("aaaaaab", "a", False),
        ("aaaaaabb", "b", True),
        ("aaaaaabbb", "b", False),
        ("aaaaaabbb", "c", True),  # and that of three clients two each
        ("aaaaaabbbcc", "c", False),
        ("abcde", "a", True),  # below its limit the queue takes everybody
        ("abcdef", "a", False),
        ("abcdef", "g", False),  # there are no shares for more clients than places
        ("aaabb", "a", True),
        ("aaaabb", "a", False),
        ("aaaabb", "b", True),
    ],
)
def test_a_full_queue_takes_those_who_have_less_than_their_share(waiting: str, client: str, expected: bool) -> None:
    assert takes(line_of(*waiting), client) is expected


def test_all_clients_together_stay_within_the_sum_of_shares() -> None:
    """The worst order of arrivals: each client fills its share before the next one comes."""
    waiting: list[str] = []
    for client in "abcdefgh":
        while takes(line_of(*waiting), client):
            waiting.append(client)
    assert [waiting.count(client) for client in "abcdefgh"] == [6, 3, 2, 1, 1, 1, 0, 0]


def test_shares_of_the_seconds() -> None:
    long = line_of("a", frames=100.0)
    assert not takes(long, "a", max_queue_s=8.0, frames=1.0)
    assert takes(long, "b", max_queue_s=8.0, frames=100.0), "a client of which nothing waits brings any text"
    both = replace(long, queued=(*long.queued, Waiting("b", 40.0)))
    assert takes(both, "b", max_queue_s=8.0, frames=10.0)
    assert not takes(both, "b", max_queue_s=8.0, frames=11.0)


def test_the_wait_of_a_newcomer_counts_those_whose_turn_is_before_its_own() -> None:
    crowd = line_of(*"aaaaaaaa")
    assert crowd.wait_s("a") == pytest.approx(8.0)
    assert crowd.wait_s("b") == pytest.approx(1.0)
    with_rows = line_of(*"aaaaaaaa", busy=(("a", 0.0), ("a", 0.0)))
    assert with_rows.wait_s("b") == 0.0
    gate = Admission(EngineConfig(), FRAME_S)
    gate.check(crowd, Waiting("b", 1.0), max_wait_s=1.0)
    with pytest.raises(Overloaded) as refused:
        gate.check(crowd, Waiting("a", 1.0), max_wait_s=5.0)
    assert refused.value.retry_after_s == pytest.approx(3.0)


def test_turns_are_those_of_the_scheduler() -> None:
    line = line_of(*"aabac", busy=(("a", 4.0), ("b", 2.0)))
    # Two rows make ten frames a second, so ten frames take two seconds.
    assert [(start, request.client) for start, request in line.starts()] == [
        (2.0, "c"),
        (4.0, "a"),
        (4.0, "b"),
        (6.0, "a"),
        (6.0, "a"),
    ]


def retry_s(gate: Admission, line: Line, client: str = "") -> float:
    with pytest.raises(Overloaded) as refused:
        gate.check(line, Waiting(client, 10.0))
    return refused.value.retry_after_s


def test_the_time_to_come_back_after_is_that_of_a_place() -> None:
    now_s = 0.0
    gate = Admission(EngineConfig(max_queue=3), FRAME_S, lambda: now_s)
    long = line_of("", "", "", frames=100.0, busy=(("", 7.0),))
    assert retry_s(gate, long) == pytest.approx(MARGIN * 7.0)
    assert retry_s(gate, long) == pytest.approx(MARGIN * 17.0), "the first place is expected to be taken"
    assert retry_s(gate, long) == pytest.approx(MARGIN * 27.0)
    assert retry_s(gate, long) == pytest.approx(MARGIN * 37.0)
    now_s = 60.0
    assert retry_s(gate, long) == pytest.approx(MARGIN * 7.0), "none is expected any more"
    assert retry_s(gate, line_of("", "", "", frames=1000.0, busy=(("", 90.0),))) == MAX_RETRY_S


def test_a_client_above_its_share_comes_back_when_there_is_a_place_for_anybody() -> None:
    gate = Admission(EngineConfig(max_queue=4), FRAME_S, lambda: 0.0)
    assert retry_s(gate, line_of(*"baaba", busy=(("a", 2.0),)), "a") == pytest.approx(MARGIN * 3.0)


def test_one_client_that_is_refused_often_does_not_make_others_wait() -> None:
    gate = Admission(EngineConfig(max_queue=2), FRAME_S, lambda: 0.0)
    line = line_of(*"abc", frames=10.0)
    for _ in range(50):
        retry_s(gate, line, "a")
    assert retry_s(gate, line, "d") <= 4.0


class Retrying(Simulation):
    """Clients that come back like OpenAI's: when they are told to, twice at most. Then they give up."""

    RETRIES = 2
    TAKEN_S = 60.0
    """OpenAI's client does not wait for longer."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(replace(TAKES_NO_TIME, frame_ms=Curve({0: STEP_MS, 1: STEP_MS})), config)
        self.gave_up: list[float] = []
        self.refusals = 0

    def submit(self, listener: SimulatedListener) -> None:
        super().submit(listener)
        arrival, told_s = listener.arrival, listener.refused_for_s
        if told_s is None:
            return
        self.refusals += 1
        wait_s = math.ceil(told_s)
        assert 1 <= wait_s <= self.TAKEN_S
        assert isinstance(arrival, Attempt)
        if arrival.number == self.RETRIES:
            self.gave_up.append(arrival.at_s)
            return
        again = Attempt(self._clock.now_s + wait_s, arrival.frames, arrival.client, arrival.number + 1)
        heapq.heappush(self._waiting_arrivals, again)


@dataclass(frozen=True, slots=True, order=True)
class Attempt(Arrival):
    """The first attempt of a client, or one of its retries."""

    number: int = 0


def retrying(attempts: list[Attempt], **settings: int) -> Retrying:
    simulation = Retrying(EngineConfig(**settings))  # type: ignore[arg-type]
    heard = simulation.run(attempts)
    served = sum(listener.ended_s is not None for listener in heard)
    assert served + len(simulation.gave_up) == len(attempts)
    return simulation


SHORT_FRAMES, LONG_FRAMES = 10, 400
"""A word, and 32 s of speech, which takes 8 s to make."""


def test_clients_come_back_to_a_queue_of_long_texts_when_it_has_a_place() -> None:
    """Short texts are spoken first, so what ended last tells nothing of those that wait."""
    short = [Attempt(0.0, SHORT_FRAMES) for _ in range(14)]
    long = [Attempt(5.0, LONG_FRAMES) for _ in range(60)]
    more = [Attempt(5.0 + number / 10, LONG_FRAMES) for number in range(24)]
    found = retrying([*short, *long, *more], max_streams=8, max_queue=52)
    assert found.refusals >= 24
    assert found.gave_up == []


@pytest.mark.parametrize("seed", range(10))
def test_nobody_gives_up_while_the_queue_drains_within_a_client_s_patience(seed: int) -> None:
    """Any lengths, rows and clients, and as much as is spoken within a minute."""
    draw = random.Random(seed)
    rows, max_queue = draw.choice([1, 2, 4, 8, 16]), draw.choice([16, 64])
    attempts: list[Attempt] = []
    left_frames = 50.0 / (STEP_MS / 1000) * rows
    while left_frames > 0:
        frames = draw.choice([10, 50, 200, 400])
        attempts.append(Attempt(draw.uniform(0.0, 2.0), frames, draw.choice(["a", "a", "b", "c"])))
        left_frames -= frames
    found = retrying(attempts, max_streams=rows, max_queue=max_queue)
    assert found.gave_up == []


def test_a_crowd_of_one_client_keeps_no_other_out() -> None:
    """Two clients: eighty callers of long texts of the one, and now and then a caller of the other."""
    crowd = [Attempt(number / 100, LONG_FRAMES, "alpha") for number in range(80)]
    few = [Attempt(2.0 + number, SHORT_FRAMES, "beta") for number in range(20)]
    simulation = Retrying(EngineConfig(max_streams=4, max_queue=64))
    heard = simulation.run([*crowd, *few])
    beta = [listener for listener in heard if listener.arrival.client == "beta"]
    assert len(beta) == 20, "none was refused"
    assert max(listener.first_s - listener.arrival.at_s for listener in beta if listener.first_s is not None) <= 8.1
    assert all(listener.first_s is not None for listener in beta)
