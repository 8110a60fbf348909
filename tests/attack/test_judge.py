"""Judges of an attack: each bound that is broken is told, and a planted fault is found from outside."""

import asyncio
import os
import time
from dataclasses import replace

import pytest

from tests.attack.__main__ import MOST_LINES, faults_of_log
from tests.attack.judge import MORE_MIB, MOST_RATIO, Attack, Undisturbed, broken, ratios, row
from tests.attack.listeners import Listeners
from tests.attack.strike import BY_NAME, INPUTS
from tests.attack.watch import Memory, Scrape, largest_lags_s, parse_metrics
from tests.support.live_server import fake_engine, live_server

UNDISTURBED = Undisturbed({"HTTP stream": 0.2, "events": 0.01}, {1: 100.0, 2: 50.0})
KEPT = Attack("nothing", {"HTTP stream": [0.2, 0.59, 0.3], "events": [0.29]}, {1: 110.0, 2: 50.0}, {"400": 3})
METRICS = """# TYPE vivavoce_engine_restarts counter
vivavoce_engine_restarts_total{model="a",reason="crash"} 2.0
vivavoce_engine_restarts_total{model="a",reason="hang"} 1.0
# TYPE vivavoce_event_loop_lag_seconds histogram
vivavoce_event_loop_lag_seconds_bucket{le="0.05"} 90.0
vivavoce_event_loop_lag_seconds_bucket{le="1.0"} 91.0
vivavoce_event_loop_lag_seconds_bucket{le="+Inf"} 91.0
"""


def test_an_attack_within_all_bounds() -> None:
    assert broken(KEPT, UNDISTURBED) == []
    assert row(KEPT, UNDISTURBED) == "| nothing | 2.9 x | ? | 0.00 s | +10 MiB | 0 | 3 of 400 | kept |"


def test_first_audio_is_judged_by_the_median_and_a_least_baseline() -> None:
    attack = replace(KEPT, first_audio_s={"HTTP stream": [9.0, 0.2, 0.3], "events": [0.05, 0.3, 0.5]})
    assert ratios(attack, UNDISTURBED) == pytest.approx({"HTTP stream": 1.5, "events": 3.0})
    assert broken(attack, UNDISTURBED) == []


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ({"first_audio_s": {"HTTP stream": [0.2 * MOST_RATIO + 0.1] * 3}}, "first audio of the HTTP stream took 3.5"),
        ({"first_audio_s": {"events": []}}, "first audio of the events took inf"),
        ({"most_mib": {2: 51.0 + MORE_MIB}}, "a process held 385 MiB more"),
        ({"most_mib": {3: 1.0 + MORE_MIB}}, "a process held 385 MiB more"),
        ({"lags_s": [1.0, 1.0, 1.0]}, "the event loop was late by up to 1, 1, 1 s"),
        ({"lags_s": [5.0, 0.1, 0.1]}, "the event loop was late by up to 5 s"),
        ({"restarts": 1.0}, "the engine was restarted 1 times"),
        ({"answers": {"400": 1, "500": 2, "503": 1, "507": 1}}, "2 times the answer 500"),
        ({"answers": {"ws 1006": 1, "ws 1008": 1, "ws 1011": 1}}, "1 times the answer ws 1011"),
        ({"answers": {"never answered": 1}}, "1 times the answer never answered"),
        ({"faults": ["events: ReadTimeout"]}, "events: ReadTimeout"),
    ],
)
def test_a_broken_bound_is_told(fault: dict[str, object], told: str) -> None:
    attack = replace(KEPT, **fault)  # type: ignore[arg-type]
    [said] = broken(attack, UNDISTURBED)
    assert said.startswith(f"nothing: {told}")
    assert row(attack, UNDISTURBED).endswith("| BROKEN |")


def test_the_metrics_of_a_server() -> None:
    now = parse_metrics(METRICS)
    assert now.restarts == 3.0
    assert largest_lags_s(Scrape(0.0, {0.05: 80.0, 1.0: 80.0, float("inf"): 80.0}), now, 3) == [1.0, 0.05, 0.05]
    assert largest_lags_s(Scrape(0.0, {0.05: 89.0, 1.0: 90.0, float("inf"): 90.0}), now, 3) == [0.05]
    assert largest_lags_s(Scrape(0.0, {}), Scrape(0.0, {}), 3) == []


def test_a_busy_machine_delays_the_loop_twice() -> None:
    assert broken(replace(KEPT, lags_s=[2.5, 1.0, 0.5]), UNDISTURBED) == []


def test_the_log_of_a_server() -> None:
    assert faults_of_log("GET /x 404\nGET /x\\nFORGED 404") == []
    assert faults_of_log("GET /x\nFORGED 404") == ["the log: a client forged a line"]
    assert faults_of_log("\x1b[31m") == ["the log: a client forged a line"]
    assert faults_of_log("a\nTraceback (most recent call last):\nb") == [
        "the log has 1 tracebacks: a / Traceback (most recent call last): / b"
    ]
    assert faults_of_log("a\n" * (MOST_LINES + 1)) == [f"the log has {MOST_LINES + 1} lines"]


def test_the_memory_of_this_process() -> None:
    memory = Memory()
    memory.look(os.getpid())
    assert memory.most_mib[os.getpid()] > 10
    assert memory.killed == []


def test_inputs_have_names_of_their_own() -> None:
    assert len(BY_NAME) == len(INPUTS)


async def test_a_planted_fault_breaks_the_bounds() -> None:
    """A server whose engine is slow under attack: the listeners notice, and the judge says so."""
    struck = False

    def before_step(_: object) -> None:
        if struck:
            time.sleep(1.0)

    with live_server(fake_engine(before_step=before_step)) as server:
        listeners = Listeners(server.url, {})
        calm = await listeners.hear(asyncio.sleep(0), 1)
        struck = True
        heard = await listeners.hear(asyncio.sleep(0), 1)
        struck = False
    assert calm.faults == heard.faults == []
    assert calm.health_s
    undisturbed = Undisturbed(dict.fromkeys(calm.first_audio_s, 0.0), {})
    assert len(broken(Attack("a slow step", heard.first_audio_s, {}, {}), undisturbed)) == 3
