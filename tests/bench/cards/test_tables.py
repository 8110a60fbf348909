"""Tables in pages are what their files of results say."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from vivavoce_bench.cards import tables
from vivavoce_bench.cards.tables import (
    engine_table,
    load_table,
    markdown,
    number,
    server_table,
    summary_table,
    tables_made,
)
from vivavoce_bench.listener.load import Burst, Closed, LoadPlan
from vivavoce_bench.listener.prompts import TextClass
from vivavoce_bench.listener.report import run_json

from tests.support.speech_servers import Answer, ScriptedHttp, run_http, tone

ROOT = Path(__file__).parents[3]
PAGES = ("README.md", "bench/README.md")


@pytest.mark.parametrize("page", PAGES)
def test_pages_are_up_to_date(page: str) -> None:
    path = ROOT / page
    text = path.read_text(encoding="utf-8")
    assert tables_made(text, path.parent) == text, "run `make tables`"


def test_numbers_have_three_digits() -> None:
    assert [number(value) for value in (2.166, 16.9, 926.1, 1544.0, 0, 0.05, None)] == [
        "2.17", "16.9", "926", "1544", "0.00", "0.0500", "",
    ]  # fmt: skip


ENGINE: dict[str, Any] = {
    "card": "NVIDIA X",
    "command": "make bench-gpu",
    "versions": {"torch": "9"},
    "frame_ms": {"0.6b": {"1": 1.5, "64": 3.0, "256": 8.0}, "1.7b": {"1": 2.166, "8": 3.0, "64": 4.5, "256": 9.5}},
    "code2wav_us_per_frame": {"64x4": 14.0, "128x4": 13.5, "1x1": 500.0},
    "engine_audio_s_per_s": {"1.7b": {"1": 36.0, "64": 1000.0, "256": 2000.0}},
    "engine_dry_streams": {"1.7b": {"1": 0, "64": 0, "256": 3}},
    "first_pcm_ms": 6.79,
    "peers": {"other": {"versions": {"other": "1.2"}, "frame_ms": {"1.7b": {"1": 20.61}}}},
}


def test_the_engine_s_table() -> None:
    head, *rows = engine_table(ENGINE)
    assert head == ["", "1 row", "8 rows", "64 rows", "256 rows"]
    assert rows == [
        ["0.6B, milliseconds a frame", "1.50", "", "3.00", "8.00"],
        ["1.7B, milliseconds a frame", "2.17", "3.00", "4.50", "9.50"],
        ["Code2Wav, microseconds a frame, 4 frames a call", "", "", "14.0", "13.5 (128 rows)"],
        ["whole 1.7B engine, seconds of audio a second", "36.0", "", "1000", "2000"],
        ["whole 1.7B engine, streams that ran dry", "0", "", "0", "3"],
        ["first PCM of an idle engine, median, ms", "6.79", "", "", ""],
        ["other 1.2, 1.7B, milliseconds a frame", "20.6", "", "", ""],
    ]


def test_the_front_page_s_table() -> None:
    assert summary_table(ENGINE) == [
        ["", "0.6B", "1.7B"],
        ["a frame of 1, 64, 256 streams", "1.50, 3.00, 8.00 ms", "2.17, 4.50, 9.50 ms"],
        ["a frame of 1 stream by other 1.2, same machine", "", "20.6 ms"],
        ["first audio of an idle engine", "", "6.79 ms"],
        ["seconds of audio a second with 1, 64, 256 streams", "", "36.0, 1000, 2000"],
        ["streams of these that ran dry", "", "0, 0, 3"],
    ]
    nobody = {**ENGINE, "engine_dry_streams": {"1.7b": {"1": 0, "64": 0, "256": 0}}}
    told = "seconds of audio a second with 1, 64, 256 streams; none ran dry"
    assert summary_table(nobody)[-1] == [told, "", "36.0, 1000, 2000"]


def test_the_table_of_a_server_with_classes_and_bursts() -> None:
    heard = {
        "heard": 9,
        "ttfa_ms": {"p50": 20.0, "p95": 30.0, "p99": 40.0},
        "safe_start_ms": {"p50": 21.0, "p95": 31.0},
        "underrun_requests": 2,
        "longest_underrun_ms": 12.34,
        "buffered": {"250": {"requests": 1}},
    }
    run = {**heard, "requests": 10, "refused": 1, "failed": 0, "audio_s_per_s": 367.0, "server_cores": [[0.5, 0.95]]}
    burst = {"at_s": 5.0, "requests": 64, "heard": 64, "last_first_audio_ms": 71.25, "underrun_requests": 0}
    classes = {"short": heard, "long": {**heard, "heard": 3, "ttfa_ms": None}}
    entry = {"rate": {"100": {**run, "classes": classes}}, "burst": {"64": {**run, "bursts": [burst]}}}
    head, *rows = server_table({"server": {"1.7b": {"none": entry}}})
    assert head == tables.SERVER_HEAD
    assert rows == [
        ["1.7B, 100 requests/s", "1, 0, 10", "20.0 / 30.0 / 40.0", "21.0 / 31.0", "367", "2, 12.3", "1", "0.50, 0.95"],
        ["· short", "9", "20.0 / 30.0 / 40.0", "21.0 / 31.0", "", "2, 12.3", "1", ""],
        ["· long", "3", "", "21.0 / 31.0", "", "2, 12.3", "1", ""],
        [
            "1.7B, 64 at once, idle",
            "1, 0, 10",
            "20.0 / 30.0 / 40.0",
            "21.0 / 31.0",
            "367",
            "2, 12.3",
            "1",
            "0.50, 0.95",
        ],
        ["· burst at 5 s", "64", "last of 64: 71.2", "", "", "0", "", ""],
    ]


def test_the_table_of_a_load_is_that_of_its_file() -> None:
    classes = (TextClass("short", ("Hi.",)), TextClass("long", ("One two three.",)))
    server = ScriptedHttp(lambda *_: Answer([(0.1, tone(0.1)), (0.2, tone(0.4))]))
    runs = [
        run_http(LoadPlan(load, classes, duration_s=4.0, warmup_s=0.0), server) for load in (Closed(2), Burst(4, 2.0))
    ]
    document = json.loads(json.dumps({"runs": [run_json(run) for run in runs]}))
    head, closed, *by_class, burst, _, _ = load_table(document)
    assert closed[0] == "2 listeners"
    assert closed[2:4] == ["100 / 100 / 100", "200 / 200"]
    assert closed[head.index("dry with 250 ms held")] == "0"
    assert [row[0] for row in by_class] == ["· long", "· short"]
    assert sum(int(row[1].partition(", ")[2]) for row in by_class) == runs[0].summary.requests
    assert burst[:2] == ["4 at once, idle", "0, 8"]


def test_columns_that_no_row_fills_are_left_out() -> None:
    times = {"p50": 1.0, "p95": 2.0, "p99": 3.0}
    counts = {"requests": 5, "refused": 0, "failed": 0, "underrun_requests": 0, "longest_underrun_ms": 0}
    run = {**counts, "audio_s_per_s": 3.0, "ttfa_ms": times}
    head, row = server_table({"server": {"0.6b": {"none": {"rate": {"1": run}}}}})
    assert "safe start p50 / p95, ms" not in head
    assert row == ["0.6B, 1 requests/s", "0, 0, 5", "1.00 / 2.00 / 3.00", "3.00", "0"]


def test_a_page_gets_its_table_and_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.json").write_text(json.dumps(ENGINE))
    page = tmp_path / "page.md"
    page.write_text("Before.\n\n<!-- table: engine x.json -->\nold\n<!-- /table -->\n\nAfter.\n")
    monkeypatch.setattr(sys, "argv", ["tables", str(page), "--check"])
    with pytest.raises(SystemExit, match="tables that are not"):
        tables.main()
    assert "old" in page.read_text()
    monkeypatch.setattr(sys, "argv", ["tables", str(page)])
    tables.main()
    made = page.read_text()
    assert made.startswith("Before.\n\n<!-- table: engine x.json -->\n\n| | 1 row | 8 rows |")
    assert "\n<sub>[x.json](x.json): NVIDIA X; torch 9; `make bench-gpu`</sub>\n\n<!-- /table -->\n\nAfter.\n" in made
    monkeypatch.setattr(sys, "argv", ["tables", str(page), "--check"])
    tables.main()
    assert markdown([["a", "b"], ["1", ""]]) == ["| a | b |", "|---|---|", "| 1 | |"]
    with pytest.raises(ValueError, match="no kind of table 'new'"):
        tables_made("<!-- table: new x.json -->\n<!-- /table -->", tmp_path)
