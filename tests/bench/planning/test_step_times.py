"""Recorded step times: values between the points, and errors in files."""

import json
from pathlib import Path
from typing import Any

import pytest
from vivavoce_bench.planning.step_times import Curve, FrontTimes, StepTimes, StepTimesError, read_step_times

FILE = {
    "machine": "a card",
    "card": "further keys are not read",
    "frame_ms": {"0.6b": {"1": 5.6, "64": 7.6}, "1.7b": {"1": 6.0, "2": 7.0, "4": 10.0}},
    "prefill_ms": {"1.7b": {"1": 3.0, "2": 4.0}},
    "code2wav_us_per_frame": {"1x1": 1000, "4x2": 500, "2x4": 600, "4x4": 400},
    "host_ms": {"1": 0.1, "2": 0.3},
    "start_host_ms": {"1.7b": {"1": 1.0, "2": 1.5}},
    "front_ms": {"request": 2, "piece": 0.5},
}


def write(path: Path, document: object) -> Path:
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("x", "y"), [(1, 6.0), (1.5, 6.5), (2, 7.0), (3, 8.5), (4, 10.0), (8, 16.0), (0.5, 6.0)], ids=str
)
def test_between_points_times_are_linear_and_beyond_they_go_on(x: float, y: float) -> None:
    assert Curve({1: 6.0, 2: 7.0, 4: 10.0})(x) == pytest.approx(y)


def test_one_point_is_proportional() -> None:
    assert Curve({4: 2.0})(10) == pytest.approx(5.0)


def test_a_file(tmp_path: Path) -> None:
    times = read_step_times(write(tmp_path / "f.json", FILE), "1.7b")
    assert (times.machine, times.model, times.assumed) == ("a card", "1.7b", ())
    assert times.frame_ms(3) == pytest.approx(8.5)
    assert times.prefill_ms(2) == 4.0
    assert times.code2wav_ms(1) == 1.0
    assert times.code2wav_ms(8) == pytest.approx(8 * 0.55), "calls of the same size are averaged"
    assert times.code2wav_ms(16) == pytest.approx(6.4)
    assert times.host_ms(2) == pytest.approx(0.3)
    assert times.start_host_ms(2) == pytest.approx(1.5)
    assert times.front_ms == FrontTimes(request=2.0, report=0.0, piece=0.5)


def test_what_is_missing_is_assumed_and_said(tmp_path: Path) -> None:
    bare = {key: FILE[key] for key in ("frame_ms", "code2wav_us_per_frame")}
    times = read_step_times(write(tmp_path / "engine-x.json", bare), "0.6b")
    assert times.machine == "engine-x"
    assert times.assumed == ("prefill_ms", "host_ms")
    assert times.prefill_ms(1) == 5.6
    assert times.host_ms(100) == times.start_host_ms(2) == 0.0
    assert times.front_ms == FrontTimes(0.0, 0.0, 0.0)


def no_times(**changes: Any) -> dict[str, Any]:
    return {**FILE, **changes}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "holds no step times"),
        ({}, "holds no step times: KeyError\\('frame_ms'\\)"),
        (no_times(frame_ms={"1.7b": {"one": 6}}), "holds no step times"),
        (no_times(frame_ms={"1.7b": {}}), "holds no step times"),
        (no_times(code2wav_us_per_frame={}), "holds no step times"),
        (no_times(code2wav_us_per_frame={"4": 1}), "holds no step times"),
        (no_times(front_ms={"reply": 1}), "holds no step times: .*'reply'"),
    ],
)
def test_a_file_that_cannot_be_used(document: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(StepTimesError, match=message):
        read_step_times(write(tmp_path / "f.json", document), "1.7b")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StepTimesError, match=r"no step times at .*nowhere"):
        read_step_times(tmp_path / "nowhere", None)


@pytest.mark.parametrize("model", [None, "7b"])
def test_which_model(model: str | None, tmp_path: Path) -> None:
    with pytest.raises(StepTimesError, match=r"There are step times of 0\.6b, 1\.7b"):
        read_step_times(write(tmp_path / "f.json", FILE), model)
    only = {**FILE, "frame_ms": {"0.6b": {"1": 5.6}}}
    assert isinstance(read_step_times(write(tmp_path / "f.json", only), None), StepTimes)
