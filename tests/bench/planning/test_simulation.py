"""The simulated engine acts as the engine does, at times that can be computed by hand."""

from dataclasses import replace

import pytest
from vivavoce_bench.planning.simulation import Arrival, SimulatedListener, Simulation, Stall
from vivavoce_bench.planning.step_times import Curve, FrontTimes, StepTimes
from vivavoce_engine import EngineConfig

FREE = Curve({1: 0.0, 2: 0.0})


def constant(ms: float) -> Curve:
    return Curve({0: ms, 1: ms})


def times(frame: Curve = FREE, prefill: Curve = FREE, code2wav: Curve = FREE) -> StepTimes:
    return StepTimes("by hand", "by hand", frame, prefill, code2wav, FREE)


def simulate(
    step_times: StepTimes, *arrivals: Arrival, serving_s: float = 0.0, **settings: int
) -> list[SimulatedListener]:
    return Simulation(step_times, EngineConfig(**settings), serving_s).run(arrivals)  # type: ignore[arg-type]


def test_one_request_alone() -> None:
    """A frame 10 ms, prefill 5, Code2Wav 2 a frame: first audio after 17 ms; pieces of 1, 1, 2, 4 and 2 frames."""
    (heard,) = simulate(times(constant(10), constant(5), Curve({4: 8.0})), Arrival(100.0, 10), serving_s=0.003)
    assert heard.first_s == pytest.approx(100 + 0.005 + 0.010 + 0.002 + 0.003)
    assert heard.ended_s == pytest.approx(100 + 0.005 + 10 * 0.012 + 0.003)
    assert (heard.underruns, heard.refused) == (0, False)


@pytest.mark.parametrize(
    ("steps_ahead", "decoding_slows", "a_frame_s"),
    [(0, 0.0, 0.002 + 0.010 + 0.004), (1, 0.0, 0.010), (1, 0.5, 0.010 + 0.5 * 0.004)],
)
def test_a_device_a_step_ahead_hides_the_host_and_decodes_beside_the_next_frame(
    steps_ahead: int, decoding_slows: float, a_frame_s: float
) -> None:
    """Host 2 ms, a frame 10, Code2Wav 4, five pieces of one frame each."""
    waiting = replace(times(constant(10), code2wav=Curve({1: 4.0})), host_ms=constant(2))
    step_times = replace(waiting, steps_ahead=steps_ahead, decoding_slows=decoding_slows)
    (heard,) = simulate(step_times, Arrival(0.0, 5), max_chunk_frames=1)
    assert heard.first_s == pytest.approx(0.016)
    assert heard.ended_s == pytest.approx(0.016 + 4 * a_frame_s)


def test_what_the_host_does_for_a_start_is_heard_of_an_idle_engine_alone() -> None:
    """A frame 10 ms, a start 4 on the host. The second request is started while the first's second frame is made."""
    step_times = replace(times(constant(10)), start_host_ms=constant(4), steps_ahead=1)
    first, second = simulate(step_times, Arrival(0.0, 4), Arrival(0.012, 2))
    assert first.first_s == pytest.approx(0.004 + 0.010)
    assert first.ended_s == pytest.approx(0.004 + 4 * 0.010)
    assert second.first_s == pytest.approx(0.004 + 3 * 0.010)


def test_requests_share_a_batch() -> None:
    """Frames cost 10 ms and 1 for each row more: the second comes in the middle of a frame, and waits for its end."""
    frame = Curve({1: 10.0, 2: 11.0})
    first, second = simulate(times(frame), Arrival(0.0, 20), Arrival(0.0125, 4))
    assert first.ttfa_s == pytest.approx(0.010)
    assert second.ttfa_s == pytest.approx(0.020 - 0.0125 + 0.011)
    assert second.ended_s == pytest.approx(0.020 + 4 * 0.011)
    assert first.ended_s == pytest.approx(0.020 + 4 * 0.011 + 14 * 0.010)


def test_who_finds_no_row_waits_and_who_finds_no_place_in_the_queue_is_refused() -> None:
    arrivals = [Arrival(0.0, 10), Arrival(0.001, 10), Arrival(0.002, 10)]
    heard = simulate(times(constant(10)), *arrivals, max_streams=1, max_queue=1)
    assert [each.refused for each in heard] == [False, False, True]
    assert heard[1].ttfa_s == pytest.approx(0.100 + 0.010 - 0.001)
    assert heard[2].ttfa_s is None


def test_too_slow_frames_are_heard_as_underruns() -> None:
    """100 ms for 80 ms of speech: each of the pieces (1, 1, 2, 4 frames) comes 20 ms a frame too late. Shorter pieces
    would be late as well."""
    (slow,) = simulate(times(constant(100)), Arrival(0.0, 8))
    assert slow.underruns == 3
    assert slow.stalled_s == pytest.approx(0.020 + (0.2 - 0.08) + (0.4 - 0.16))


@pytest.mark.parametrize(
    ("rows", "frame_ms", "decoding_ms", "step_ms"),
    [
        (1, 30, 10, 30),  # decoding is hidden
        (4, 40, 10, 40),  # four pieces of a frame take as long as their frames
        (8, 20, 10, 50),  # 80 ms of pieces: the threads share the sum
    ],
)
def test_a_thread_decodes_beside_the_frames(rows: int, frame_ms: float, decoding_ms: float, step_ms: float) -> None:
    code2wav = Curve({0: 0.0, 1: decoding_ms})
    step_times = replace(times(constant(frame_ms), code2wav=code2wav), decoders=1)
    heard = simulate(step_times, *[Arrival(0.0, 100)] * rows, max_streams=rows, max_prefills_per_step=rows)
    ends_s = [each.ended_s or 0.0 for each in heard]
    assert max(ends_s) == pytest.approx(0.100 * step_ms, rel=0.05)
    assert [each.underruns for each in heard] == [0] * rows


@pytest.mark.parametrize("steps_ahead", [0, 1])
@pytest.mark.parametrize("frame_ms", [20, 40, 50, 60, 70, 79])
def test_nobody_runs_dry_while_frames_are_made_faster_than_they_are_played(frame_ms: float, steps_ahead: int) -> None:
    """Also whoever comes while others have longer pieces, and at the frame rate's edge."""
    arrivals = [Arrival(start * 0.7, 60) for start in range(3)]
    heard = simulate(replace(times(constant(frame_ms)), steps_ahead=steps_ahead), *arrivals)
    assert [(each.underruns, each.ended_s is None) for each in heard] == [(0, False)] * 3


def test_starts_are_limited_as_in_the_engine() -> None:
    heard = simulate(times(constant(10)), *[Arrival(0.0, 5)] * 4, max_prefills_per_step=2)
    assert [each.ttfa_s for each in heard] == pytest.approx([0.010, 0.010, 0.020, 0.020])


def test_the_front_does_one_thing_after_the_other() -> None:
    """A request 2 ms, a report 1, a piece 3, a frame 10. The second request is with the engine when the first's frame
    has begun, so that its own ends at 22 ms; in that report the first's second piece comes before it."""
    step_times = replace(times(constant(10)), front_ms=FrontTimes(request=2.0, report=1.0, piece=3.0))
    first, second = simulate(step_times, Arrival(0.0, 2), Arrival(0.001, 1), serving_s=0.5)
    assert first.first_s == pytest.approx(0.002 + 0.010 + 0.001 + 0.003 + 0.5)
    assert first.ended_s == pytest.approx(0.022 + 0.001 + 0.003 + 0.5)
    assert second.first_s == pytest.approx(0.022 + 0.001 + 2 * 0.003 + 0.5)


def test_a_request_waits_until_the_front_has_handed_out_what_came_before_it() -> None:
    """A piece 40 ms: the second request comes while the first's is handed out, until 10 + 40 ms."""
    step_times = replace(times(constant(10)), front_ms=FrontTimes(request=2.0, piece=40.0))
    simulation = Simulation(step_times, EngineConfig())
    first, second = simulation.run([Arrival(-0.002, 1), Arrival(0.015, 1)])
    assert first.first_s == pytest.approx(0.050)
    assert second.first_s == pytest.approx(0.050 + 0.002 + 0.010 + 0.040)
    assert simulation.front_busy_s == pytest.approx(2 * 0.042)


def test_each_front_hands_out_its_own_listeners_audio() -> None:
    """A piece waits for those of its own front alone: the second listener's does not wait for the first one's."""
    step_times = replace(times(constant(10)), front_ms=FrontTimes(request=2.0, report=1.0, piece=3.0))
    simulation = Simulation(step_times, EngineConfig(), fronts=2)
    first, second = simulation.run([Arrival(0.0, 2), Arrival(0.001, 1)])
    assert (first.front, second.front) == (0, 1)
    assert first.first_s == pytest.approx(0.002 + 0.010 + 0.001 + 0.003)
    assert first.ended_s == second.first_s == pytest.approx(0.022 + 0.001 + 0.003)
    # Two requests, three pieces; the first's front has two reports, the second's one.
    assert simulation.front_busy_s == pytest.approx(2 * 0.002 + 3 * 0.001 + 3 * 0.003)


def test_a_request_goes_to_the_front_with_the_fewest_and_waits_for_that_one_alone() -> None:
    """A piece 40 ms. The third request comes while the first front hands out audio, the fourth when the second is free,
    so that the engine has it before the third. Listeners keep the order of arrival."""
    step_times = replace(times(constant(10)), front_ms=FrontTimes(request=2.0, piece=40.0))
    arrivals = [Arrival(-0.002, 1), Arrival(0.015, 1), Arrival(0.016, 1), Arrival(0.018, 1)]
    heard = Simulation(step_times, EngineConfig(), fronts=2).run(arrivals)
    assert [each.front for each in heard] == [0, 1, 0, 1]
    assert [each.arrival for each in heard] == arrivals
    # Frames of the second and the fourth end at 27 and 37 ms, that of the third, whose front is busy until 52, at 62.
    assert [each.first_s for each in heard] == pytest.approx([0.050, 0.027 + 0.040, 0.062 + 0.040, 0.067 + 0.040])


def test_who_is_refused_does_not_count_for_its_front() -> None:
    arrivals = [Arrival(0.0, 50), Arrival(0.001, 50), Arrival(0.002, 9), Arrival(0.050, 9)]
    heard = Simulation(times(constant(10)), EngineConfig(max_streams=1, max_queue=1), fronts=3).run(arrivals)
    assert [(each.refused, each.front) for each in heard] == [(False, 0), (False, 1), (True, 2), (True, 2)]


def test_steps_without_a_piece_are_no_work_of_the_front() -> None:
    """Of six steps four give a piece: of 1, 1 and 2 frames, and of the last one."""
    step_times = replace(times(constant(10)), front_ms=FrontTimes(report=1.0))
    simulation = Simulation(step_times, EngineConfig(max_chunk_frames=2))
    simulation.run([Arrival(0.0, 5)])
    assert simulation.steps == 6
    assert simulation.front_busy_s == pytest.approx(4 * 0.001)


def test_while_the_machine_stands_still_only_the_device_goes_on() -> None:
    """A frame ends at 10 ms, in a stall until 30; the next begins then. A request of the stall is taken at its end,
    before that frame's audio, since it came first."""
    step_times = replace(times(constant(10)), front_ms=FrontTimes(request=2.0))
    simulation = Simulation(step_times, EngineConfig(), stalls=[Stall(0.050, 0.001), Stall(0.005, 0.025)])
    first, second = simulation.run([Arrival(-0.002, 2), Arrival(0.007, 1)])
    assert first.first_s == pytest.approx(0.030 + 0.002)
    assert first.ended_s == pytest.approx(0.040)
    assert second.first_s == pytest.approx(0.051)


def test_long_speech_ends() -> None:
    """No frame is like another, and the ceiling of endless speech is above what was asked for."""
    (heard,) = simulate(times(constant(1)), Arrival(0.0, 3000))
    assert heard.ended_s == pytest.approx(3.0)
