"""The bookkeeping of vivavoce_bench/cards/server.py, and a whole run of it with the fake engine."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from vivavoce_bench.cards.server import (
    Generated,
    SharedLoad,
    card_flags,
    checkable,
    common,
    main,
    parse,
    pooled,
    scaling,
)
from vivavoce_bench.listener.metrics import Measurement, Stalls
from vivavoce_bench.listener.report import request_json


def request(**facts: Any) -> dict[str, Any]:
    measured = Measurement(
        index=0,
        text_class="en",
        warmup=False,
        due_s=1.0,
        begun_s=1.0,
        finished_s=1.75,
        sent_s=1.25,
        error=None,
        late_ms=0.0,
        ttfa_ms=10.0,
        first_playable_ms=9.0,
        end_to_end_ms=500.0,
        rtf=0.5,
        lag_ms=1.0,
        buffered=(Stalls(),) * 4,
    )
    return {**request_json(measured), **facts}


def refused(why: str, **facts: Any) -> dict[str, Any]:
    return request(error=why, ttfa_ms=None, first_playable_ms=None, rtf=None, end_to_end_ms=None, **facts)


def generated(requests: list[dict[str, Any]], audio_s_per_s: float = 0.0, started_s: float = 0.0) -> Generated:
    run = {
        "warmup_s": 0.0,
        "duration_s": 10.0,
        "on_time": True,
        "bursts": [],
        "received_audio_s_per_s": audio_s_per_s,
        "generators": {"lag_p95_ms": 2.5, "cores": [0.25]},
    }
    return Generated(run, requests, started_s)


def test_shares_make_up_the_whole() -> None:
    assert [SharedLoad("rate", 10.0).share(number, 4) for number in range(4)] == [["--rate", "2.5"]] * 4
    shares = [SharedLoad("listeners", 6).share(number, 4) for number in range(4)]
    assert shares == [["--concurrency", count] for count in ("2", "2", "1", "1")]
    assert [SharedLoad("listeners", 1).share(number, 2) for number in range(2)] == [["--concurrency", "1"], None]
    assert SharedLoad("burst", 65).share(0, 2) == ["--burst", "33"]


def test_each_then_begins_loads_with_flags_of_their_own() -> None:
    words = ["--model", "m", "--out", "o", "--listeners", "256", "--burst", "64", "--duration", "60"]
    words += ["--then", "--rate", "100", "20", "--prompts", "p=en:5.7s", "zh", "--warmup", "1"]
    args, loads = parse([*words, "--", "--fronts", "4", "--", "--then"])
    assert args.settings == ["--fronts", "4", "--", "--then"], "all of it belongs to the server"
    assert loads == [
        SharedLoad("listeners", 256, ("en",), 60.0, 5.0),
        SharedLoad("burst", 64, ("en",), 60.0, 5.0),
        SharedLoad("rate", 100.0, ("p=en:5.7s", "zh"), 20.0, 1.0),
        SharedLoad("rate", 20.0, ("p=en:5.7s", "zh"), 20.0, 1.0),
    ]
    assert [load.name for load in loads] == ["256", "64", "100 p=en:5.7s zh", "20 p=en:5.7s zh"]
    assert loads[2].flags == ["--duration=20", "--warmup=1", "--prompts", "p=en:5.7s", "zh"]


def test_a_load_given_twice_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--model", "m", "--out", "o", "--rate", "5", "--then", "--rate", "6", "5"]
    with pytest.raises(SystemExit):
        parse(words)
    assert "given twice: rate 5" in capsys.readouterr().err
    assert parse([*words, "--prompts", "zh"])[1][-1].name == "5 zh", "other texts are another load"


def test_each_server_has_a_card_of_its_own() -> None:
    assert card_flags(None) == [[]]
    assert card_flags("3") == [["--device", "cuda:3"]]
    assert card_flags("0+1") == [["--device", "cuda:0"], ["--device", "cuda:1"]]


def test_what_was_measured_at_two_servers_is_pooled() -> None:
    full = "HTTP 429: The server is full"
    dry = {"gaps": [{"at_s": 2.0, "length_s": 0.1}], "pieces": 2}
    first = [request(ttfa_ms=20.0), request(ttfa_ms=90.0, **dry), refused(full)]
    second = [refused("the connection failed"), request(ttfa_ms=30.0, text_class="zh"), refused(full, warmup=True)]
    stalls = [(7.0, 7.02), (9.0, 9.01)]
    figures = pooled([generated(first, 12.0), generated(second, 8.5)], stalls)
    assert {name: figures[name] for name in ("requests", "completed", "refused", "failed", "underrun_requests")} == {
        "requests": 5,
        "completed": 3,
        "refused": 1,
        "failed": 1,
        "underrun_requests": 1,
    }
    assert not figures["valid"]
    assert figures["faults"] == {full: 2, "the connection failed": 1}
    assert figures["ttfa_ms"] == {"p50": 30.0, "p95": 90.0, "p99": 90.0}
    assert (figures["audio_s_per_s"], figures["longest_underrun_ms"]) == (20.5, 100.0)
    assert figures["continuity"] == {"c50": 0, "c100": 1, "c200": 1, "of": 1}
    assert {name: heard["ttfa_ms"] for name, heard in figures["classes"].items()} == {
        "en": {"p50": 20.0, "p95": 90.0, "p99": 90.0},
        "zh": {"p50": 30.0, "p95": 30.0, "p99": 30.0},
    }
    assert (figures["on_time"], figures["generator_lag_p95_ms"], figures["generator_cores"]) == (
        True,
        2.5,
        [0.25, 0.25],
    )
    assert (figures["machine_stalls"], figures["machine_stalled_ms"]) == (2, 30.0)


def test_a_run_of_which_nothing_came_has_no_times() -> None:
    figures = pooled([generated([refused("HTTP 429: The server is full")])], [])
    assert (figures["completed"], figures["refused"], figures["ttfa_ms"], figures["valid"]) == (0, 1, None, False)
    assert figures["classes"] == {}, "one class is the whole"


def test_requests_come_back_by_one_clock_in_the_order_in_which_they_were_due() -> None:
    """The second generator began half a second before the first."""
    first = generated([request(due_s=1.75, sent_s=2.0)], started_s=100.5)
    second = generated([request(due_s=2.5, sent_s=None), request(due_s=0.5, warmup=True)], started_s=100.0)
    facts, requests = checkable(SharedLoad("rate", 3.0), [first, second], [(101.0, 101.02)], 0.5)
    assert facts == {
        "load": {"poisson_rate": 3.0},
        "requests": 2,
        "front_cpu_s": 0.5,
        "stalls": [[1.0, 0.02]],
    }
    assert [(each["due_s"], each["sent_s"]) for each in requests] == [(0.5, 1.25), (2.25, 2.5), (2.5, None)]
    assert checkable(SharedLoad("listeners", 3), [first], [], 0.0)[0]["load"] == {"listeners": 3}


def test_the_machine_stood_still_when_both_watchers_were_late() -> None:
    first = [(1.0, 1.05), (2.0, 2.03), (3.0, 3.02)]
    second = [(0.99, 1.02), (1.03, 1.2), (2.027, 2.1), (4.0, 4.5)]
    assert common(first, second) == [(1.0, 1.02), (1.03, 1.05)], "a common lateness of 3 ms is none"


def test_scaling_is_relative_to_the_first() -> None:
    entries = {
        name: {"listeners": {"4": {"audio_s_per_s": audio_s_per_s}}}
        for name, audio_s_per_s in (("0", 50.0), ("0+1", 95.0))
    }
    assert scaling(entries) == {"0": {"4": 1.0}, "0+1": {"4": 1.9}}


def test_a_server_is_started_loaded_and_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, requests = tmp_path / "server.json", tmp_path / "requests.json"
    flags = ["--model", "fake", "--out", str(out), "--requests", str(requests), "--generators", "2"]
    loads = ["--rate", "40", "--listeners", "3", "--duration", "0.5", "--warmup", "0"]
    loads += ["--then", "--burst", "4", "--prompts", "en:2s", "--duration", "0.6", "--warmup", "0"]
    monkeypatch.setattr(sys, "argv", ["cards/server.py", *flags, *loads, "--", "--device", "cpu"])
    main()
    document = json.loads(out.read_text(encoding="utf-8"))
    (entry,) = document["server"]["fake"].values()
    for run in (entry["rate"]["40"], entry["listeners"]["3"], entry["burst"]["4 en:2s"]):
        assert run["valid"]
        assert run["completed"] == run["requests"] > 0
        assert run["ttfa_ms"]["p50"] > 0
        assert len(run["generator_cores"]) == 2
        assert run["machine_stalls"] >= 0
        ((first, *others),) = run["server_processes"]
        assert (first, "engine" in others) == ("server", True)
    (burst,) = entry["burst"]["4 en:2s"]["bursts"]
    assert (burst["requests"], burst["heard"]) == (4, 4)
    assert burst["last_first_audio_ms"] >= entry["burst"]["4 en:2s"]["ttfa_ms"]["p50"]
    saved = json.loads(requests.read_text(encoding="utf-8"))
    assert [run["load"] for run in saved["runs"]] == [{"poisson_rate": 40.0}, {"listeners": 3}, {"burst": 4}]
    assert all(run["front_cpu_s"] > 0 for run in saved["runs"])
    assert all(length_s >= 0.005 for run in saved["runs"] for _, length_s in run["stalls"]), "rounded to 0.1 ms"
    # Texts of 9 to 200 characters at 0.83 frames each, and 80 ms a frame.
    assert all(0.5 < each["audio_s"] < 14 for load in saved["requests"] for each in load)
