"""Generators in processes of their own, at a server in this one."""

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest
from vivavoce_bench.listener import limit
from vivavoce_bench.listener.generators import GeneratorFailed, Generators, generators_for
from vivavoce_bench.listener.load import Burst, Closed, Counts, GeneratorFacts, LoadPlan, Poisson, Run
from vivavoce_bench.listener.report import (
    generator_lag_ms,
    is_on_time,
    measurement_of,
    request_json,
    run_json,
    table,
    versions,
)
from vivavoce_bench.listener.servers import Target
from vivavoce_bench.listener.summary import summarize
from vivavoce_client.__main__ import main

from tests.support.live_server import LiveServer, live_server
from tests.support.programs import needs
from tests.support.speech_servers import Answer, ScriptedHttp, run_http, texts, tone
from tests.support.tls import tls_in_front


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with live_server() as running:
        yield running


def nothing(plan: LoadPlan, elapsed_s: float, counts: Sequence[Counts]) -> None:
    pass


def test_a_run_of_several_generators_is_one(server: LiveServer) -> None:
    plan = LoadPlan(Poisson(30.0), texts("Hi there.", "One two."), duration_s=1.0, warmup_s=0.3, seed=5)
    shown: list[int] = []

    def show(plan: LoadPlan, elapsed_s: float, counts: Sequence[Counts]) -> None:
        shown.append(sum(each.sent for each in counts))

    with Generators(2, show) as generators:
        runs = [generators.run(plan, Target("vivavoce", server.url)) for _ in range(2)]
        measured = [list(run.measurements) for run in runs]
    for run, each in zip(runs, measured, strict=True):
        assert run.summary.valid
        assert run.summary.faults == ()
        assert sorted(one.index for one in each if not one.warmup) == list(range(run.summary.requests))
        assert len(run.generators) == 2
        assert all(facts.tick_late_ms for facts in run.generators)
    assert [one.due_s for one in sorted(measured[0], key=lambda one: one.due_s)] == [
        one.due_s for one in sorted(measured[1], key=lambda one: one.due_s)
    ]
    assert shown[-1] == len(measured[1])


def test_a_generator_that_dies_ends_the_run(server: LiveServer) -> None:
    with Generators(2, nothing) as generators:
        pids = [each.process.pid for each in generators._processes]
        threading.Timer(0.8, lambda: os.kill(pids[0] or 0, signal.SIGKILL)).start()
        with pytest.raises(GeneratorFailed, match="a load generator ended by itself, with -9"):
            generators.run(
                LoadPlan(Closed(2), texts("Hi."), duration_s=60.0, warmup_s=0.0), Target("vivavoce", server.url)
            )


def test_a_fault_of_a_generator_is_told_with_its_trace() -> None:
    with Generators(1, nothing) as generators, pytest.raises(GeneratorFailed, match="is not the URL of an HTTP server"):
        generators.run(LoadPlan(Closed(1), texts("Hi."), duration_s=1.0, warmup_s=0.0), Target("vivavoce", "nowhere"))


def test_the_number_of_generators_follows_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    assert generators_for([Poisson(1.0)]) == 1
    assert generators_for([Poisson(1.0), Poisson(200.0)]) == 4
    assert generators_for([Closed(65)]) == 2
    assert generators_for([Burst(64)]) == 1
    assert generators_for([Poisson(4000.0)]) == 8, "at most half of the cores"
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    assert generators_for([Poisson(400.0)]) == 1


def with_ticks(late_ms: list[float]) -> Run:
    plan = LoadPlan(Closed(1), texts("Hi."), duration_s=1.0, warmup_s=0.0)
    run = run_http(plan, ScriptedHttp(lambda *_: Answer([(0.1, tone(0.5))])))
    return Run(plan, run.summary, run.measurements, [GeneratorFacts(0.5, late_ms), GeneratorFacts(0.25, [0.0])], 0.0)


def test_a_generator_that_is_late_says_so() -> None:
    late, on_time = with_ticks([1.0] * 17 + [5.1] * 2), with_ticks([1.0] * 18 + [5.1])
    assert (generator_lag_ms(late), is_on_time(late), run_json(late)["on_time"]) == (5.1, False, False)
    assert (generator_lag_ms(on_time), is_on_time(on_time), run_json(on_time)["on_time"]) == (1.0, True, True)
    assert "NOT ON TIME at 1 at once" in table([late])
    assert "NOT ON TIME" not in table([on_time])
    assert "own lag p95 1.0 ms; the generators took 0.50, 0.25 of a core" in table([on_time])
    assert run_json(on_time)["generators"]["loop_late_ms"]["count"] == 20


def test_requests_that_begin_late_count_as_lateness() -> None:
    run = with_ticks([0.0] * 20)
    late = replace(next(iter(run.measurements)), late_ms=7.5)
    summary = summarize([late], run.plan.window)
    assert generator_lag_ms(replace(run, summary=summary)) == 7.5


def test_versions_are_those_of_installed_packages() -> None:
    found = versions("h11", "no-such-package-anywhere")
    assert list(found) == ["python", "h11"]
    assert found["h11"] == version("h11")


def test_measurements_survive_json() -> None:
    script = Answer([(0.1, tone(0.1)), (0.5, tone(0.1))])
    plan = LoadPlan(Closed(1), texts("Hi."), duration_s=0.5, warmup_s=0.0)
    (measured,) = run_http(plan, ScriptedHttp(lambda *_: script)).measurements
    again = measurement_of(json.loads(json.dumps(request_json(measured))))
    assert request_json(again) == request_json(measured)
    assert again.buffered[0].count == len(again.gaps) == 1


def test_bursts_and_classes_on_the_command_line(
    server: LiveServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long = tmp_path / "long"
    long.write_text("One two three four five.\n")
    short = tmp_path / "short"
    short.write_text("Hi there.\n")
    line = ["bench", "load", "--url", server.url, "--burst", "6", "--burst-every", "2", "--generators", "2"]
    line += ["--prompts", f"long={long}", f"short={short}@2", "--duration", "4", "--warmup", "0"]
    assert main([*line, "-o", str(tmp_path / "result.json")]) == 0
    printed = capsys.readouterr().out
    assert "burst at 2 s: 6 of 6 heard, the last after" in printed
    document = json.loads((tmp_path / "result.json").read_text())
    (run,), (requests,) = document["runs"], document["requests"]
    assert run["load"] == {"burst": 6, "every_s": 2}
    assert [(burst["at_s"], burst["requests"], burst["heard"]) for burst in run["bursts"]] == [(0.0, 6, 6), (2.0, 6, 6)]
    assert {name: each["requests"] for name, each in run["classes"].items()} == {
        name: sum(request["text_class"] == name for request in requests) for name in ("long", "short")
    }
    assert {each["audio_s"] for each in requests if each["text_class"] == "long"} <= {1.92}
    assert document["command"].split()[0] == "vivavoce"
    assert set(document["versions"]) == {"python", "vivavoce-speech", "h11", "websockets"}


def test_the_generator_s_own_limit_is_measured_at_a_server_that_only_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "limit.json"
    monkeypatch.setattr(sys, "argv", ["limit", "--rate", "20", "--duration", "1", "-o", str(output)])
    monkeypatch.setattr("vivavoce_bench.listener.limit.WARMUP_S", 0.2)
    limit.main()
    (run,) = json.loads(output.read_text())["runs"]
    assert run["valid"]
    assert run["audio_s"] == pytest.approx(5.68 * run["requests"])
    assert len(run["generators"]["cores"]) == 1
    assert "20 requests/s" in capsys.readouterr().out


@needs("openssl")
def test_a_server_behind_tls(server: LiveServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = LoadPlan(Closed(2), texts("Hi there."), duration_s=0.5, warmup_s=0.0)
    with tls_in_front(server.url, tmp_path) as proxy:
        with Generators(1, nothing) as generators:
            (fault, *_) = generators.run(plan, Target("vivavoce", proxy.url)).summary.faults
        assert "certificate verify failed" in fault
        monkeypatch.setenv("SSL_CERT_FILE", str(proxy.certificate))
        with Generators(1, nothing) as generators:
            summary = generators.run(plan, Target("vivavoce", proxy.url)).summary
    assert (summary.faults, summary.valid) == ((), True)
