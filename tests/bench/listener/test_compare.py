"""The comparison finds a planted difference, and finds none if there is none."""

import asyncio
import random
from functools import cache
from typing import Any

import pytest
from vivavoce_bench.listener.compare import Pair, comparison_table, pair_plans, ratio, ratios
from vivavoce_bench.listener.load import LoadPlan, Poisson, Run
from vivavoce_bench.listener.prompts import TextClass
from vivavoce_bench.listener.servers import Target
from vivavoce_bench.listener.transports import HttpSpeaker

from tests.support.speech_servers import Answer, ScriptedHttp, run_load, texts, tone
from tests.support.virtual_time import run_in_virtual_time

pytestmark = pytest.mark.long

PLAN = LoadPlan(Poisson(2.0), texts("One.", "Two."), duration_s=30.0, warmup_s=2.0)


def noisy(seed: int, factor: float) -> ScriptedHttp:
    """First audio after about 100 ms times `factor`, with noise of its own from request to request."""
    noise = random.Random(seed)

    def answer(*_: object) -> Answer:
        return Answer([(0.1 * factor * noise.lognormvariate(0, 0.25), tone(0.4)), (0.3, tone(0.4))])

    return ScriptedHttp(answer)


@cache
def measured(factor_of_b: float, pairs: int = 6) -> list[Pair]:
    async def run() -> list[Pair]:
        a = HttpSpeaker(Target("vivavoce", "http://a"), noisy(1, 1.0))
        b = HttpSpeaker(Target("vivavoce", "http://b"), noisy(2, factor_of_b))
        return [Pair(await run_load(plan, a), await run_load(plan, b)) for plan, _ in pair_plans(PLAN, pairs)]

    return run_in_virtual_time(run())


def test_a_planted_difference_is_found() -> None:
    found = ratios(measured(1.2))
    for name in ("TTFA p50", "TTFA p95"):
        assert found[name].is_difference
        assert found[name].low < 1.2 < found[name].high
    assert found["TTFA p50"].high - found["TTFA p50"].low < 0.2
    assert "no difference" not in _line(comparison_table(measured(1.2)), "TTFA p50")


def test_classes_of_texts_are_compared_by_themselves() -> None:
    """B is slower with long texts alone."""
    classes = (TextClass("short", ("One.",)), TextClass("long", ("One two three four.",)))
    plan = LoadPlan(Poisson(4.0), classes, duration_s=10.0, warmup_s=0.0)

    def server(seed: int, factor: float) -> ScriptedHttp:
        noise = random.Random(seed)

        def answer(_: int, body: dict[str, Any]) -> Answer:
            slower = factor if len(body["input"]) > 5 else 1.0
            return Answer([(0.1 * slower * noise.lognormvariate(0, 0.1), tone(0.4))])

        return ScriptedHttp(answer)

    async def run() -> list[Pair]:
        a, b = (
            HttpSpeaker(Target("vivavoce", "http://a"), server(seed, factor)) for seed, factor in ((1, 1.0), (2, 2.0))
        )
        return [Pair(await run_load(each, a), await run_load(each, b)) for each, _ in pair_plans(plan, 4)]

    pairs = run_in_virtual_time(run())
    found = ratios(pairs)
    assert found["long: TTFA p50"].value == pytest.approx(2.0, rel=0.1)
    assert found["short: TTFA p50"].value == pytest.approx(1.0, rel=0.1)
    assert found["long: safe start p95"].is_difference
    assert "long: TTFA p50" in comparison_table(pairs)
    assert not any(name.startswith("all:") for name in ratios(measured(1.0))), "one class is the whole"


def test_no_difference_is_found_where_there_is_none() -> None:
    pairs = measured(1.0)
    found = ratios(pairs)
    assert not any(found[name].is_difference for name in ("TTFA p50", "TTFA p95", "end to end p50", "RTF p50"))
    assert "no difference shown" in _line(comparison_table(pairs), "TTFA p50")


def test_false_alarms_are_as_rare_as_the_interval_says() -> None:
    draw = random.Random(5)
    alarms = 0
    for _ in range(1000):
        a, b = ([draw.lognormvariate(0, 0.1) for _ in range(6)] for _ in range(2))
        alarms += ratio(a, b).is_difference
    assert 30 <= alarms <= 70, "5 % of 1000, give or take three standard deviations"


def test_ratio_of_exact_pairs() -> None:
    assert ratio([1.0, 2.0, 4.0], [2.0, 4.0, 8.0]).value == pytest.approx(2.0)
    each = ratio([1.0, 1.0, 1.0], [1.0, 2.0, 4.0])  # logarithms 0, 1, 2 in units of ln 2: mean 1, deviation 1
    assert each.value == pytest.approx(2.0)
    assert each.high == pytest.approx(2 ** (1 + 4.303 / 3**0.5))
    assert each.low == pytest.approx(2 ** (1 - 4.303 / 3**0.5))
    with pytest.raises(ValueError, match="at least 3 pairs"):
        ratio([1.0, 1.0], [1.0, 1.0])


def test_a_pair_has_the_same_load_and_each_pair_another_one() -> None:
    plans = list(pair_plans(PLAN, 4))
    assert [plan.seed for plan, _ in plans] == [0, 1, 2, 3]
    assert [a_first for _, a_first in plans] == [True, False, True, False]
    for pair in measured(1.2, pairs=3):
        assert [each.due_s for each in pair.a.measurements] == [each.due_s for each in pair.b.measurements]


def test_an_invalid_run_is_named() -> None:
    async def run() -> Run:
        return await run_load(PLAN, HttpSpeaker(Target("vivavoce", "http://b"), ScriptedHttp(lambda *_: Answer([]))))

    bad = run_in_virtual_time(run())
    pairs = [*measured(1.0, pairs=3)[:2], Pair(measured(1.0, pairs=3)[2].a, bad)]
    assert "INVALID: pair 2, B:" in comparison_table(pairs)
    assert "TTFA p50" not in ratios(pairs)


def _line(table: str, name: str) -> str:
    return next(line for line in table.splitlines() if line.startswith(name))


def test_virtual_time_does_not_hide_a_deadlock() -> None:
    with pytest.raises(AssertionError, match="wait for ever"):
        run_in_virtual_time(asyncio.Event().wait())
