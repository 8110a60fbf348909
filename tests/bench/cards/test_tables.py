"""Tables in pages are what their files of results say."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from vivavoce_bench.cards import tables
from vivavoce_bench.cards.cells import markdown, number
from vivavoce_bench.cards.overviews import front_page, sizes
from vivavoce_bench.cards.result_tables import (
    SERVER_HEAD,
    engine_table,
    load_name,
    load_table,
    pace_table,
    roofline_table,
    server_table,
)
from vivavoce_bench.cards.tables import tables_made
from vivavoce_bench.listener.load import Burst, Closed, LoadPlan
from vivavoce_bench.listener.prompts import TextClass
from vivavoce_bench.listener.report import run_json

from tests.support.speech_servers import Answer, ScriptedHttp, run_http, tone

ROOT = Path(__file__).parents[3]
PAGES = ("README.md", "bench/README.md", "docs/cpu.md", "deploy/OPERATIONS.md")


@pytest.mark.parametrize("page", PAGES)
def test_pages_are_up_to_date(page: str) -> None:
    path = ROOT / page
    text = path.read_text(encoding="utf-8")
    assert "<!-- table: " in text
    assert tables_made(text, path.parent) == text, "run `make tables`"


def test_no_page_with_tables_is_forgotten() -> None:
    pages = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    marked = [page for page in pages.stdout.splitlines() if "\n<!-- table: " in (ROOT / page).read_text("utf-8")]
    assert sorted(marked) == sorted(PAGES)
    (target,) = re.findall(r"cards\.tables (.*)", (ROOT / "Makefile").read_text("utf-8"))
    assert tuple(target.split()) == PAGES


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


def load(audio_s_per_s: float, dry: int = 0, **facts: Any) -> dict[str, Any]:
    times = {"p50": 19.5, "p95": 23.6, "p99": 25.0}
    counts = {"requests": 50, "refused": 0, "failed": 0, "underrun_requests": dry, "longest_underrun_ms": 20.0 * dry}
    return {**counts, "ttfa_ms": times, "audio_s_per_s": audio_s_per_s, **facts}


def measured(**loads: Any) -> dict[str, Any]:
    entry = {"rate": {}, "listeners": {}, "burst": {}, **loads}
    facts = {"cards": ["NVIDIA X"], "machine": "x86_64, 16 cores", "versions": {"torch": "9"}}
    return {**facts, "command": f"serve {list(loads)}", "server": {"1.7b": {"0": entry}}}


BURST = {"at_s": 0, "requests": 64, "heard": 64, "underrun_requests": 0}
BURSTS: dict[str, Any] = {"bursts": [{**BURST, "last_first_audio_ms": ms} for ms in (70.0, 87.7)]}
FRONTS: dict[str, Any] = {
    "card": "NVIDIA X",
    "fronts": {
        "1": measured(listeners={"256": load(679.1, 1)}, rate={"20": load(76.0)}),
        "4": measured(listeners={"256": load(1285.1)}, burst={"64": load(39.0, **BURSTS)}),
        "8": measured(listeners={"256": load(1280.0)}, rate={"100 p=en:5.7s": load(546.4), "200": load(700.0)}),
    },
}
STREAMS: dict[str, Any] = {
    "engines": [
        {"runs": [{"streams": count, "rtf": 0.05 * count, "ttfa_ms_median": 14.0 + count} for count in (1, 4, 16)]}
    ]
}


def test_the_front_page_has_a_cpu_and_a_card_and_the_server_with_the_most_audio() -> None:
    listeners = {"bench": "load", "runs": [
        {"load": {"listeners": count}, "requests": 248, "underrun_requests": 0} for count in (16, 8)
    ]}  # fmt: skip
    omni = {"experts": {}, "times": {f"frame ms, {rows} rows at 200": {"ms": 2.6 + rows} for rows in (1, 32)}}
    lines = front_page([STREAMS, listeners, ENGINE, FRONTS, omni])
    assert max(map(len, lines[:3])) <= 145
    assert " ".join(lines[:3]) == (
        "Two cores of a server CPU (AMD EPYC), shipped voice: one stream takes 0.05 of its duration, first audio after "
        "15 ms; four 0.20, 18 ms; sixteen 0.80, 30 ms. With 16 listeners over HTTP none of 248 requests ran dry. One "
        "X, random weights of the released shapes, bfloat16. A frame is everything but the codec decoder; one of a "
        "Qwen3-Omni answer takes 3.60 ms, of 32 34.6 ms:"
    )
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[4:]]
    assert cells[0] == ["", "0.6B", "1.7B"]
    assert cells[2:] == [
        ["a frame of 1, 64, 256 streams; of 1 by other 1.2", "1.50, 3.00, 8.00 ms", "2.17, 4.50, 9.50 ms; 20.6 ms"],
        ["seconds of audio a second with 1, 64, 256 streams, some dry; first audio of an idle engine", "",
         "36.0, 1000, 2000; 6.79 ms"],
        ["seconds of audio a second for 256 listeners over HTTP, 4 fronts, none dry (one process: 679)", "", "1285"],
        ["100 requests/s of 5.7 s, 8 fronts: first audio p50, p95, none dry; 64 in one moment: last first audio", "",
         "19.5, 23.6 ms; 87.7 ms"],
    ]  # fmt: skip


def test_the_front_page_tells_of_those_that_ran_dry_and_leaves_out_what_was_not_measured() -> None:
    nobody = {**ENGINE, "engine_dry_streams": {"1.7b": {"1": 0, "64": 0, "256": 0}}, "peers": {}}
    one = {"card": "NVIDIA X", "fronts": {"1": measured(listeners={"256": load(679.1, 3)})}}
    about, _, _, _, frames, audio, *others = front_page([nobody, one])
    assert about == (
        "One X, random weights of the released shapes, bfloat16. A frame is everything but the codec decoder:"
    )
    assert frames == "| a frame of 1, 64, 256 streams | 1.50, 3.00, 8.00 ms | 2.17, 4.50, 9.50 ms |"
    assert "streams, none dry;" in audio
    dry = "| seconds of audio a second for 256 listeners over HTTP, one HTTP process, 3 of 50 dry | | 679 |"
    assert others == [dry]
    assert len(front_page([nobody])) == 6


def test_operators_see_each_load_with_its_machine() -> None:
    assert sizes([measured(rate={"20": load(76.0, 2)}), FRONTS])[2:] == [
        "| NVIDIA X, 16 cores | 20 requests/s | 20, 24 ms | 76.0 | 2 of 50 | |",
        "| NVIDIA X, 16 cores, one HTTP process | 20 requests/s | 20, 24 ms | 76.0 | 0 of 50 | |",
        "| NVIDIA X, 16 cores, one HTTP process | 256 listeners | 20, 24 ms | 679 | 1 of 50 | |",
        "| NVIDIA X, 16 cores, 4 fronts | 256 listeners | 20, 24 ms | 1285 | 0 of 50 | |",
        "| NVIDIA X, 16 cores, 8 fronts | 100 requests/s of 5.7 s | 20, 24 ms | 546 | 0 of 50 | |",
        "| NVIDIA X, 16 cores, 8 fronts | 200 requests/s | 20, 24 ms | 700 | 0 of 50 | |",
        "| NVIDIA X, 16 cores, 8 fronts | 256 listeners | 20, 24 ms | 1280 | 0 of 50 | |",
    ]


def test_kernels_farthest_from_their_bound_are_named() -> None:
    """Bounds of 20 x 5 µs by bytes, and 10 x 20 by FLOPs; the third kernel's cost is not counted."""
    kernels = [
        {"kernel": "near", "launches": 20, "us": 120.0, "mbytes_each": 20.0, "gflop_each": 1.0},
        {"kernel": "far", "launches": 10, "us": 500.0, "mbytes_each": 1.0, "gflop_each": 10.0},
        {"kernel": "small", "launches": 5, "us": 40.4, "mbytes_each": 0.0, "gflop_each": 0.0},
    ]
    rates = {"read bytes_per_s": 4e12, "copied bytes_per_s": 1.0, "cublas flops_per_s": 500e12}
    rows = roofline_table({"card": "NVIDIA X", "measured": rates, "1.7b, 8 rows": {"ms": 0.66, "kernels": kernels}})
    assert rows == [
        [
            "",
            "measured, ms",
            "bound at 4.00 TB/s and 500 TFLOP/s, ms",
            "the 3 largest gaps: launches, µs in all (bound)",
        ],
        ["1.7b, 8 rows", "0.660", "0.300", "far: 10, 500 (200); small: 5, 40 (0); near: 20, 120 (100)"],
    ]


def test_a_load_is_named_with_the_length_of_its_texts() -> None:
    assert load_name("rate", "100 p=en:5.7s") == "100 requests/s of 5.7 s"
    assert load_name("listeners", "256 short=en@8 long=en:20s@1 zh") == "256 listeners of short=en@8, 20 s, zh"
    assert load_name("burst", "64") == "64 at once, idle"


def test_processes_of_a_server_are_told_by_kind() -> None:
    kinds = ["server", "engine", "front", "front", "other"]
    cores: dict[str, Any] = {
        "server_cores": [[0.0, 0.93, 0.48, 0.47, 0.01], [0.9, 0.5]],
        "server_processes": [kinds, kinds[:2]],
    }
    rows = server_table({"server": {"1.7b": {"0": {"rate": {"1": load(3.0, **cores)}}}}})
    assert rows[1][-1] == "0.47 to 0.48, 0.93; 0.90, 0.50"


def test_each_command_of_a_document_is_named_under_its_table() -> None:
    told = "<sub>[x.json](results/x.json): NVIDIA X; torch 9; `serve {}`</sub>"
    assert tables.sources(FRONTS, "results/x.json") == [
        told.format("['listeners', 'rate']"),
        told.format("['listeners', 'burst']"),
    ], "that of eight fronts is the first one's"


def test_fronts_and_cards_have_rows_of_their_own() -> None:
    rows = server_table(FRONTS)
    assert [row[0] for row in rows[1:]][:2] == [
        "1.7B, one HTTP process, 20 requests/s",
        "1.7B, one HTTP process, 256 listeners",
    ]
    one = measured(rate={"1": load(3.0)})
    two = {"server": {"1.7b": {"0": one["server"]["1.7b"]["0"], "0+1": one["server"]["1.7b"]["0"]}}}
    assert [row[0] for row in server_table(two)[1:]] == ["1.7B, cards 0, 1 requests/s", "1.7B, cards 0+1, 1 requests/s"]


def test_pace_has_its_drift_in_percent() -> None:
    pace = {"chars": 1000, "words": 200, "speech_s": 50.0, "thirds": [20.0, 21.0, 22.0]}
    slower = {"chars": 1000, "words": 200, "speech_s": 100.0, "thirds": [10.0, 10.0, 10.0]}
    ratio = {"value": 1.0153, "low": 0.998, "high": 1.031}
    part = {
        "arguments": {"texts": 2, "chars": 900},
        "paces": {"whole": [pace, slower], "live": [pace, pace]},
        "drift": {"whole": ratio, "live": ratio},
        "articulation_drift": {"whole": ratio, "live": ratio},
        "against_first": {"live": ratio},
    }
    told = "+1.5 % (-0.2 to +3.1)"
    assert pace_table({"machine": "x", "some": part})[1:] == [
        ["2 of 900 characters", "whole", "75.0", "15.00", "180", "15.00, 15.50, 16.00", told, told, ""],
        ["", "live", "50.0", "20.00", "240", "20.00, 21.00, 22.00", told, told, told],
    ]


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
    assert head == SERVER_HEAD
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
    with pytest.raises(ValueError, match="no kind 'new'"):
        tables_made("<!-- table: new x.json -->\n<!-- /table -->", tmp_path)
