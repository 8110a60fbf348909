"""`vivavoce bench plan` and `steps`: the fewest replicas, the check against a run, and the recorder."""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from vivavoce_bench.engine import steps as bench_steps
from vivavoce_bench.engine.steps import Recorder, decoding_slows, host_ms
from vivavoce_bench.listener.metrics import percentile
from vivavoce_bench.planning import plan as bench_plan
from vivavoce_bench.planning.plan import SimulatedEngine, Workload, fewest_replicas, simulate
from vivavoce_bench.planning.simulation import Arrival, Stall
from vivavoce_bench.planning.step_times import Curve, StepTimes, read_step_times
from vivavoce_engine import EngineConfig
from vivavoce_engine.batching.capacity import DEVICE, HOST
from vivavoce_engine.batching.runner import Step
from vivavoce_engine.batching.scheduler import Plan
from vivavoce_engine.fake_runner import FakeRunner

pytestmark = pytest.mark.long

STEPS = {
    "machine": "by hand",
    "frame_ms": {"m": {"1": 10, "64": 20}},
    "prefill_ms": {"m": {"1": 3, "2": 5}},
    "code2wav_us_per_frame": {"1x1": 1000, "64x8": 100},
}


@pytest.fixture
def steps(tmp_path: Path) -> Path:
    path = tmp_path / "engine-byhand.json"
    path.write_text(json.dumps(STEPS), encoding="utf-8")
    return path


def engine(steps: Path, **settings: int) -> SimulatedEngine:
    config = EngineConfig(max_streams=64, **settings)  # type: ignore[arg-type]
    return SimulatedEngine(read_step_times(steps, None), config, 0.0)


def plan(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    bench_plan.add_arguments(parser)
    return bench_plan.run(parser.parse_args(arguments))


def last_line(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return document


def test_the_workload_is_the_one_asked_for() -> None:
    arrivals = list(Workload(rate=40.0, audio_s=4.0, shortest_s=490.0, seed=1).arrivals(replicas=2))
    assert len(arrivals) == pytest.approx(20 * 500, rel=0.03)
    assert sum(each.frames for each in arrivals) / len(arrivals) * 0.08 == pytest.approx(4.0, rel=0.03)
    assert arrivals == list(Workload(40.0, 4.0, 490.0, 1).arrivals(2))


def test_a_replica_gets_enough_requests_at_any_rate() -> None:
    workload = Workload(rate=0.1, audio_s=4.0, shortest_s=60.0, seed=0)
    assert len(list(workload.arrivals(replicas=3))) == pytest.approx(500, rel=0.15)


def test_the_fewest_replicas_are_found(steps: Path) -> None:
    workload = Workload(rate=120.0, audio_s=4.5, shortest_s=10.0, seed=0, warmup_s=5.0)
    replicas, tried = fewest_replicas(engine(steps), workload, ttfa_ms=60.0, underruns=0.0)
    assert replicas is not None
    assert replicas > 1
    assert simulate(engine(steps), workload, replicas).keeps(60.0, 0.0)
    assert not simulate(engine(steps), workload, replicas - 1).keeps(60.0, 0.0)
    assert {each.replicas for each in tried} >= {replicas, replicas - 1}


def test_what_one_request_alone_breaks_no_number_keeps(steps: Path) -> None:
    workload = Workload(rate=0.2, audio_s=4.5, shortest_s=60.0, seed=0)
    assert fewest_replicas(engine(steps), workload, ttfa_ms=5.0, underruns=0.0)[0] is None


def test_the_command(steps: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--steps", str(steps), "--rate", "30", "--max-streams", "64", "--duration", "10"]
    assert plan(*arguments, "--ttfa-ms", "80") == 0
    document = last_line(capsys)
    assert document["replicas"] >= 1
    assert document["assumed"] == ["host_ms"]
    assert plan(*arguments, "--ttfa-ms", "1") == 1
    assert last_line(capsys)["replicas"] is None


def test_a_card_by_its_name(steps: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(bench_plan, "RESULTS", steps.parent)
    assert plan("--gpu", "ByHand", "--rate", "1", "--duration", "5") == 0
    assert plan("--gpu", "Z9000", "--rate", "1") == 2
    assert "there are no step times at" in capsys.readouterr().err


def test_wrong_numbers_are_named(steps: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan("--steps", str(steps), "--rate", "0") == 2
    assert "--rate must be above 0" in capsys.readouterr().err
    assert plan("--steps", str(steps), "--rate", "1", "--fronts", "0") == 2
    assert "--fronts must be above 0" in capsys.readouterr().err


def a_run(steps: Path, *stalls: Stall) -> list[dict[str, Any]]:
    """A result as `bench load` writes it, of a server that does exactly what is simulated."""
    arrivals = [Arrival(0.1 * number, 20 + number % 7) for number in range(60)]
    return [
        {
            "error": None,
            "warmup": heard.arrival.at_s < 1,
            "sent_s": heard.arrival.at_s,
            "audio_s": heard.arrival.frames * 0.08,
            "first_playable_ms": 1000 * (heard.ttfa_s or 0),
            "end_to_end_ms": 1000 * ((heard.ended_s or 0) - heard.arrival.at_s),
            "gaps": [{}] * heard.underruns,
        }
        for heard in engine(steps).simulation(stalls).run(arrivals)
    ]


def test_the_check_against_a_run(steps: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = tmp_path / "result.json"
    requests = a_run(steps)
    result.write_text(json.dumps({"runs": [{"load": {"poisson_rate": 10}, "requests": 50}], "requests": [requests]}))
    arguments = ["--steps", str(steps), "--check", str(result), "--max-streams", "64"]
    assert plan(*arguments) == 0
    (checked,) = last_line(capsys)["checked"]
    assert [each["figure"] for each in checked["figures"]] == [
        "first audio p50 ms",
        "first audio p95 ms",
        "end to end p50 ms",
        "end to end p95 ms",
        "requests with underruns",
    ]
    assert [each["ratio"] for each in checked["figures"][:4]] == pytest.approx([1.0] * 4)
    assert plan(*arguments, "--serving-ms", "10") == 0
    first = last_line(capsys)["checked"][0]["figures"][0]
    assert first["simulated"] == pytest.approx(first["measured"] + 10)


def test_stalls_of_the_machine_are_simulated_as_they_were(
    steps: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stalls = [Stall(1.0 + 0.5 * number, 0.2) for number in range(8)]
    run = {"load": {"poisson_rate": 10}, "requests": 50}
    ratios = {}
    for name, facts in (("told", {"stalls": [[each.start_s, each.length_s] for each in stalls]}), ("untold", {})):
        result = tmp_path / f"{name}.json"
        result.write_text(json.dumps({"runs": [{**run, **facts}], "requests": [a_run(steps, *stalls)]}))
        assert plan("--steps", str(steps), "--check", str(result), "--max-streams", "64") == 0
        (checked,) = last_line(capsys)["checked"]
        ratios[name] = checked["figures"][1]["ratio"]
        assert checked["stalled_ms"] == (pytest.approx(1600) if name == "told" else None)
    assert ratios["told"] == pytest.approx(1.0)
    assert ratios["untold"] < 0.5


def test_the_work_of_the_http_process_is_as_it_was_measured(
    steps: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """60 requests of 5 ms each, and nothing else, are 0.3 s. They took 0.6: 10 ms each, as in the run."""
    steps.write_text(json.dumps({**STEPS, "front_ms": {"request": 10}}))
    run = a_run(steps)
    steps.write_text(json.dumps({**STEPS, "front_ms": {"request": 5}}))
    result = tmp_path / "result.json"
    facts = {"load": {"poisson_rate": 10}, "requests": 50, "front_cpu_s": 0.6}
    result.write_text(json.dumps({"runs": [facts], "requests": [run]}))
    assert plan("--steps", str(steps), "--check", str(result), "--max-streams", "64") == 0
    (checked,) = last_line(capsys)["checked"]
    *latencies, _, work = checked["figures"]
    assert work["figure"] == "HTTP processes, CPU s"
    assert work["ratio"] == pytest.approx(0.5)
    assert checked["front_ms"] == {"request": 10, "report": 0, "piece": 0}
    assert [each["ratio"] for each in latencies] == pytest.approx([1.0] * 4)


def test_several_http_processes_share_their_work(
    steps: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """15 requests a second of 100 ms each are the work of one and a half processes: one cannot follow, four can."""
    steps.write_text(json.dumps({**STEPS, "front_ms": {"request": 100}}))
    asked = ["--steps", str(steps), "--rate", "15", "--audio-s", "0.4", "--max-streams", "64", "--ttfa-ms", "400"]
    asked += ["--underruns", "0.05", "--duration", "20"]
    assert plan(*asked, "--fronts", "4") == 0
    (verdict,) = (told := last_line(capsys))["tried"]
    assert (told["fronts"], told["replicas"]) == (4, 1)
    assert 114 < verdict["ttfa_ms_p50"] < 130, "100 of the process, 13 of the engine, and what is waited for"
    assert plan(*asked) == 0
    told = last_line(capsys)
    assert (told["fronts"], told["replicas"]) == (1, 4)
    assert told["tried"][0]["ttfa_ms_p50"] > 1000
    run = a_run(steps)
    result = tmp_path / "result.json"
    facts = {"load": {"poisson_rate": 10}, "requests": 50, "front_cpu_s": 6.0}
    result.write_text(json.dumps({"runs": [facts], "requests": [run]}))
    assert plan("--steps", str(steps), "--check", str(result), "--max-streams", "64", "--fronts", "3") == 0
    (checked,) = last_line(capsys)["checked"]
    assert checked["figures"][-1]["ratio"] == pytest.approx(1.0), "60 requests of 100 ms, whoever has done them"


def test_the_check_of_a_closed_loop_is_closed_too(
    steps: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Replayed at their times, requests of a slower simulation would pile up."""
    heard = engine(steps).simulation().run_closed([20, 30, 25, 40], listeners=1, pause_s=0.002)
    ends_s = [each.ended_s or 0.0 for each in heard]
    assert [each.arrival.at_s for each in heard[1:]] == pytest.approx([end_s + 0.002 for end_s in ends_s[:-1]])
    requests: list[dict[str, Any]] = [
        {
            "error": None,
            "warmup": False,
            "sent_s": 10 + each.arrival.at_s / 2,  # a machine twice as fast
            "lag_ms": 2.0,
            "audio_s": each.arrival.frames * 0.08,
            "first_playable_ms": 500 * (each.ttfa_s or 0),
            "end_to_end_ms": 500 * ((each.ended_s or 0) - each.arrival.at_s),
            "gaps": [],
        }
        for each in heard
    ]
    result = tmp_path / "result.json"
    result.write_text(json.dumps({"runs": [{"load": {"listeners": 1}, "requests": 4}], "requests": [requests]}))
    assert plan("--steps", str(steps), "--check", str(result)) == 0
    (checked,) = last_line(capsys)["checked"]
    assert [each["ratio"] for each in checked["figures"][:4]] == pytest.approx([2.0] * 4)


def test_a_result_that_is_none(steps: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x").write_text("{}")
    assert plan("--steps", str(steps), "--check", str(tmp_path / "x")) == 2
    assert "is no result of `vivavoce bench load -o`" in capsys.readouterr().err


def test_percentiles_are_nearest_ranks() -> None:
    assert [percentile(range(1, 21), percent) for percent in (50, 95, 100)] == [10, 19, 20]


class Device(FakeRunner):
    """A device a step ahead of its host, with times of its own: it moves the clock instead of taking time."""

    def __init__(self, times: StepTimes, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.times = times
        self.capacity = replace(DEVICE, steps_ahead=times.steps_ahead) if times.steps_ahead else HOST
        self.now_s = self.talker_free_s = self.decoder_free_s = 0.0
        monkeypatch.setattr("vivavoce_bench.engine.steps.time.perf_counter", lambda: self.now_s)

    def launch(self, plan: Plan) -> Step:
        self.now_s += self.times.host_ms_of(plan) / 1000
        made_s = max(self.now_s, self.talker_free_s) + self.times.talking_ms_of(plan) / 1000
        decoding_s = self.times.decoding_ms_of(plan) / 1000
        done_s = self.decoder_free_s = max(made_s, self.decoder_free_s) + decoding_s
        self.talker_free_s = made_s + self.times.decoding_slows * decoding_s

        def wait() -> None:
            self.now_s = max(self.now_s, done_s)

        return Step(self.run(plan), wait)


@pytest.fixture
def device_times() -> StepTimes:
    """Code2Wav 0.25 ms and 0.25 a frame: a call of 8 frames of 2 rows is 4.25 ms, longer than one of 4."""
    return StepTimes(
        machine="by hand",
        model="m",
        frame_ms=Curve({1: 3.0, 2: 3.5}),
        prefill_ms=Curve({1: 2.0, 2: 2.5}),
        code2wav_ms=Curve({0: 0.25, 16: 4.25}),
        host_ms=Curve({0: 0.5, 1: 0.5}),
        start_host_ms=Curve({1: 1.0, 2: 1.2}),
        steps_ahead=1,
        decoding_slows=0.4,
    )


def test_what_a_device_hides_is_not_recorded(device_times: StepTimes, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = Recorder(Device(device_times, monkeypatch), rounds=3).frames(2)
    assert recorded.frame_ms == pytest.approx(3.5)
    assert recorded.decoding_ms == pytest.approx({1: 0.75, 2: 1.25, 4: 2.25, 8: 4.25})
    assert decoding_slows([recorded]) == pytest.approx(0.4)


def test_a_host_that_waits_for_every_step_hides_nothing(
    device_times: StepTimes, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = replace(device_times, steps_ahead=0, decoding_slows=0.0)
    recorder = Recorder(Device(waiting, monkeypatch), rounds=1)
    recorded = recorder.frames(2)
    assert recorded.frame_ms == pytest.approx(3.5 + 0.5)
    assert recorded.decoding_ms == pytest.approx({1: 0.75, 2: 1.25, 4: 2.25, 8: 4.25})
    assert recorder.starts(2).host_ms == 0.0


@pytest.mark.parametrize("count", [1, 2])
def test_a_start_costs_an_idle_engine_the_hosts_work_too(
    device_times: StepTimes, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """What every step costs the host is in it as well."""
    starts = Recorder(Device(device_times, monkeypatch), rounds=2).starts(count)
    assert starts.prefill_ms == pytest.approx(device_times.prefill_ms(count))
    assert starts.host_ms == pytest.approx(device_times.start_host_ms(count) + 0.5)


def test_steps_are_those_that_the_loop_would_begin() -> None:
    plans: list[tuple[int, int, tuple[int, ...]]] = []

    def note(plan: Plan) -> None:
        plans.append((len(plan.start), len(plan.step), tuple(frames for _, frames in plan.vocode)))

    recorder = Recorder(FakeRunner(before_step=note), rounds=1)
    assert list(recorder.frames(2).decoding_ms) == [1, 2, 4, 8]
    frame = (0, 2, ())
    assert plans == [
        (2, 0, ()),
        *[frame, frame, (0, 2, (1, 1))],
        *[frame, frame, (0, 2, (2, 2))],
        *[*3 * [frame], (0, 2, (4, 4))],
        *[*7 * [frame], (0, 2, (8, 8))],
    ]
    plans.clear()
    recorder.starts(2)
    frames = 3 * [frame]
    assert plans == [(2, 0, ()), *frames, (2, 2, ()), *frames, (2, 2, (1, 1)), *frames]


def test_an_utterance_that_ends_is_begun_anew() -> None:
    """Each of 9 frames, the last of which is not counted: room for the calls of 1, 2 or of 4, or for one of 8."""
    starts = 0

    def note(plan: Plan) -> None:
        nonlocal starts
        starts += len(plan.start)

    runner = FakeRunner(frames_per_character=9 / len(bench_steps.TEXT), before_step=note)
    recorded = Recorder(runner, rounds=2).frames(1)
    assert list(recorded.decoding_ms) == [1, 2, 4, 8]
    assert starts == 2 * 3


def test_the_loop_itself_takes_time() -> None:
    assert host_ms(4, steps_ahead=1) > 0


def test_steps_of_the_shipped_voice_can_be_planned_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    bench_steps.add_arguments(parser)
    path = tmp_path / "engine-here.json"
    assert (
        bench_steps.run(parser.parse_args(["--rows", "1", "2", "--rounds", "1", "--device", "cpu", "-o", str(path)]))
        == 0
    )
    times = read_step_times(path, "shipped")
    assert times.assumed == ()
    assert times.frame_ms(2) > 0
    assert times.prefill_ms(1) > 0
    assert times.code2wav_ms(8) > 0
    assert last_line(capsys) == json.loads(path.read_text())
