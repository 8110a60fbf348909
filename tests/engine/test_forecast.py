"""The speed that is told of a model before it is loaded: what is added up, and the sentence of `vivavoce doctor`."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from vivavoce_engine import examine
from vivavoce_engine.config import EngineConfig
from vivavoce_engine.cpu import forecast as trials
from vivavoce_engine.cpu import library, threads
from vivavoce_engine.cpu.forecast import CONTEXT, SINE_PRODUCTS, Forecast, Trial, forecast
from vivavoce_engine.cpu.library import BFLOAT16, INT8, INT11, Library, Matrix
from vivavoce_engine.cpu.threads import Threads
from vivavoce_engine.cpu.work import RELEASED, Work
from vivavoce_engine.examine import check_speed
from vivavoce_voice import CHECKPOINT

WORK = Work(
    talker_weights=10_000_000,
    predictor_weights=5_000_000,
    passes=4,
    position_bytes=1000,
    code2wav_products=2_000_000,
    code2wav_sines=1000,
)


@pytest.mark.parametrize(
    ("frame_ms", "streams"),
    [
        ({1: 81.0}, 0),
        ({1: 65.0}, 0),
        ({1: 64.0, 2: 90.0}, 1),
        ({1: 40.0, 2: 64.0, 4: 100.0}, 2),
        ({1: 10.0, 2: 20.0, 4: 40.0, 8: 80.0}, 6),
        ({1: 1.0, 2: 1.0, 4: 1.0, 8: 1.0}, 8),
    ],
)
def test_streams_are_those_whose_frames_leave_a_fifth_of_their_time(frame_ms: dict[int, float], streams: int) -> None:
    assert Forecast(frame_ms).streams == streams
    assert Forecast(frame_ms).rtf == pytest.approx(frame_ms[1] / 80)


def test_a_frame_is_the_sum_of_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A weight takes 1 ns for each stream here, a multiply-add 0.5 ns."""
    monkeypatch.setattr(Trial, "weight_s", lambda _, rows, weights: rows * 1e-9)
    monkeypatch.setattr(Trial, "multiply_add_s", lambda _: 5e-10)
    told = forecast(library_of(lambda *_: 0), WORK, INT8, Threads(1, 0))
    products_ms = (4 * 5_000_000 + 10_000_000) * 1e-6
    keys_ms = CONTEXT * 1000 * 1e-6 / (1 + 4 / 64)
    code2wav_ms = (2_000_000 + SINE_PRODUCTS * 1000) * 5e-7
    assert told.frame_ms == {
        streams: pytest.approx(streams * (products_ms + keys_ms + code2wav_ms)) for streams in (1, 2, 4)
    }, "the trial ends where a frame takes longer than its sound"


@pytest.mark.parametrize(
    ("multiply_add_s", "expected_ms"),
    [
        (1e-11, {1: 30.2, 2: 60.4, 4: 120.8}),  # next to the frames, decoding takes no time
        (2e-8, {1: 43.0, 2: 73.2, 4: 146.4}),  # 43 ms a stream: of a lone one they cannot be shared
    ],
)
def test_a_thread_decodes_beside_the_frames(
    monkeypatch: pytest.MonkeyPatch, multiply_add_s: float, expected_ms: dict[int, float]
) -> None:
    monkeypatch.setattr(Trial, "weight_s", lambda _, rows, weights: rows * 1e-9)
    monkeypatch.setattr(Trial, "multiply_add_s", lambda _: multiply_add_s)
    told = forecast(library_of(lambda *_: 0), WORK, INT8, Threads(1, 1))
    assert told.frame_ms == {streams: pytest.approx(ms, rel=1e-2) for streams, ms in expected_ms.items()}


@pytest.mark.parametrize("kind", [INT8, BFLOAT16])
def test_a_trial_stays_inside_its_memory(kind: int) -> None:
    """Every product reads weights and scales of its own, and all of them are within what the trial owns."""
    seen: set[tuple[int, int, int]] = set()

    def product(matrix: int, pool: object, x: int, x_stride: int, rows: int, taps: int, *rest: Any) -> int:
        given = Matrix.from_address(matrix)
        count = given.inputs * given.outputs
        packed, scales = trial._packed, trial._scales
        assert packed.ctypes.data <= given.weights
        own = {INT8: 1, INT11: 2, BFLOAT16: 2}[given.kind]
        assert given.weights + count * own <= packed.ctypes.data + packed.nbytes
        if given.kind in (INT8, INT11):
            assert scales.ctypes.data <= given.scales
            assert given.scales + 4 * count // 64 <= scales.ctypes.data + scales.nbytes
        _, onto, out, out_stride = rest
        assert (x, onto, out) == (trial._x.ctypes.data, None, trial._out.ctypes.data)
        assert rows * x_stride <= trial._x.size
        assert rows * out_stride <= trial._out.size
        seen.add((given.weights, given.inputs, rows))
        return 0

    with Trial(library_of(product), kind, 1, 20_000_000) as trial:
        assert trial.weights == {INT8: 16_777_216, BFLOAT16: 8_388_608}[kind]
        trial.weight_s(64, trial.weights)
        assert len(seen) == trial.weights // (1024 * 4096)
        trial.weight_s(1, 3_000_000)
        assert len({place for place, _, rows in seen if rows == 1}) == 1
        trial.weight_s(1, 10**9)
        assert len({place for place, _, rows in seen if rows == 1}) == trial.weights // (1024 * 4096)
        trial.multiply_add_s()
        assert {(inputs, rows) for _, inputs, rows in seen} == {(1024, 64), (1024, 1), (7 * 384, 48)}


def library_of(product: Callable[..., int]) -> Library:
    functions = SimpleNamespace(
        vivavoce_product=product, vivavoce_pool=lambda _: None, vivavoce_pool_end=lambda pool: None
    )
    return Library("avx2", Path("libvivavoce-avx2.so"), functions, "")


# ---- the sentences


def told_by(monkeypatch: pytest.MonkeyPatch, frame_ms: Callable[[Work, int], float], **settings: Any) -> list[Any]:
    """Findings of a machine where a stream's frame takes this long for a kind of weights."""

    def told(_: Library, work: Work, kind: int, __: int) -> Forecast:
        ms = frame_ms(work, kind)
        return Forecast({1: ms, 2: 2 * ms})

    monkeypatch.setattr(trials, "forecast", told)
    monkeypatch.setattr(library, "load_library", lambda: library_of(lambda *_: 0))
    monkeypatch.setattr(threads, "usable_cores", lambda: 4)
    monkeypatch.setattr(examine, "_busy", lambda: "")
    chosen = examine._chosen
    monkeypatch.setattr(
        examine,
        "_chosen",
        lambda *asked: (found := chosen(*asked)) and (found[0], replace(found[1], runner="native")),
    )
    return check_speed(EngineConfig(device="cpu", **settings), {"mine": str(CHECKPOINT)})


def test_a_fast_machine_is_told_its_streams_and_the_released_models(monkeypatch: pytest.MonkeyPatch) -> None:
    by_work = {RELEASED["0.6B"]: 55.0, RELEASED["1.7B"]: 120.0}
    voice, released = told_by(monkeypatch, lambda work, _: by_work.get(work, 4.26))
    assert (voice.state, voice.mend) == ("ok", "")
    assert voice.text == (
        "By a trial on 2 threads, 1 of them for Code2Wav (avx2), mine takes about 4.3 ms for a frame of 80 ms, "
        "enough for 2 streams at once."
    )
    assert released.state == "ok"
    assert released.text == (
        "Of the released models with --dtype int8 on 4 threads, 0.6B would take about 55 ms for a frame of 80 ms, "
        "enough for 1 stream at once; 1.7B would take about 120 ms for a frame of 80 ms, too slow for real time."
    )


def test_a_model_that_int8_would_bring_to_real_time_has_a_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    voice, _ = told_by(monkeypatch, lambda _, kind: 50.0 if kind == INT8 else 90.0, threads=2)
    assert (voice.state, voice.mend) == ("warning", "vivavoce serve --dtype int8")
    assert "on 2 threads" in voice.text
    assert "too slow for real time" in voice.text


def test_a_frame_that_takes_almost_as_long_as_its_sound_leaves_no_reserve() -> None:
    assert str(Forecast({1: 77.0})) == "about 77 ms for a frame of 80 ms, without the reserve of real time"


def test_a_model_that_nothing_brings_to_real_time_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    voice, _ = told_by(monkeypatch, lambda *_: 300.0)
    assert (voice.state, voice.mend) == ("warning", "")


def test_a_released_model_that_is_served_stands_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vivavoce_engine.cpu.work.work_of", lambda *_: RELEASED["0.6B"])
    (only,) = told_by(monkeypatch, lambda *_: 60.0)
    assert only.text.startswith("By a trial on 2 threads, 1 of them for Code2Wav (avx2), mine takes about 60 ms")


def test_other_runners_have_no_trial() -> None:
    assert check_speed(EngineConfig(device="cpu", runner="torch"), {"mine": str(CHECKPOINT)}) == []
    assert check_speed(EngineConfig(device="cpu"), {"gone": "/nowhere"}) == []
