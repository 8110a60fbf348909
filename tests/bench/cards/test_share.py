"""`vivavoce bench card`: its row and files, and the order of measuring on cards that this machine has not."""

import argparse
import json
import os
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from vivavoce_bench.cards import share as bench_card
from vivavoce_bench.cards.share import (
    COLUMNS,
    ISSUES,
    ROWS,
    add_arguments,
    alone,
    cells,
    figures,
    file_name,
    kernel_cache,
    largest_first,
    measure,
    run,
    share,
    table,
    weights_gb,
)

ROOT = Path(__file__).parents[3]
RUNS = [{"streams": 1, "audio_s_per_s": 36.4}, {"streams": 8, "audio_s_per_s": 170.2}]
MEASURED: dict[str, Any] = {
    "card": "NVIDIA GeForce RTX 3060",
    "capability": "sm_86",
    "multiprocessors": 28,
    "memory_gb": 12.5,
    "driver": "580.65.06",
    "versions": {"python": "3.12.3", "torch": "2.13.0", "triton": "3.7.1", "vivavoce-speech": "0.1.0"},
    "date": "2026-11-29",
    "command": "vivavoce bench card",
    "by": "@ann",
    "frame_ms": {"0.6b": {"1": 12.42, "8": 13.0, "64": 20.55}, "1.7b": {"1": 18.8}},
    "engine": {"0.6b": {"first_pcm_ms": 30.04, "gpu_gb": 9.31, "runs": RUNS}, "1.7b": None},
    "start_s": {"first": 92.3, "second": 14.6},
    "skipped": {},
    "faults": {"1.7b engine": "RuntimeError: CUDA error"},
    "took_s": 200,
}


def test_a_row_has_the_tables_columns() -> None:
    assert dict(zip(COLUMNS, cells(MEASURED), strict=True)) == {
        "card": "NVIDIA GeForce RTX 3060 (sm_86, 12 GB)",
        "driver, torch, Triton": "580.65.06, 2.13.0, 3.7.1",
        "0.6B: ms a frame of 1, 8, 64 rows": "12.4, 13.0, 20.6",
        "1.7B: ms a frame": "18.8, -, -",
        "0.6B: seconds of audio a second, 1, 8, 64 streams": "36, 170, -",
        "1.7B: seconds of audio": "-",
        "first PCM, ms: 0.6B, 1.7B": "30.0, -",
        "start, s: first, second": "92, 15",
        "GPU memory, GB: 0.6B, 1.7B": "9.3, -",
        "Vivavoce, date, by": "0.1.0, 2026-11-29, @ann",
    }
    lines = table([MEASURED, MEASURED])
    assert len(lines) == 4
    assert {text.count("|") for text in lines} == {len(COLUMNS) + 1}


def test_the_document_of_results_has_the_table_with_all_measured_cards() -> None:
    page = (ROOT / "bench/README.md").read_text(encoding="utf-8").splitlines()
    measured = [json.loads(path.read_text()) for path in sorted((ROOT / "bench/results/cards").glob("*.json"))]
    head = page.index(table([])[0])
    assert page[head : head + 2 + len(measured)] == table(measured)


def test_a_shared_card_is_two_files_and_a_row_with_the_place_to_post_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    share(MEASURED, tmp_path / "cards")
    path = tmp_path / "cards" / "geforce-rtx-3060.json"
    assert json.loads(path.read_text(encoding="utf-8")) == MEASURED
    rows = path.with_suffix(".md").read_text(encoding="utf-8").splitlines()
    assert rows == table([MEASURED])
    told = capsys.readouterr().out.splitlines()
    assert told[:3] == rows
    assert told[-1] == f"Post the last line, with {path}, at {ISSUES}"


def test_the_place_to_post_a_row_exists() -> None:
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    address, _, form = ISSUES.partition("/new?template=")
    assert address == urls["Issues"]
    assert (ROOT / ".github/ISSUE_TEMPLATE" / form).is_file()


def test_figures_say_what_is_missing() -> None:
    lines = figures(MEASURED)
    assert lines[0].split() == ["card", "NVIDIA", "GeForce", "RTX", "3060", "(sm_86,", "12", "GB)"]
    assert "1.7b engine failed: RuntimeError: CUDA error" in lines


@pytest.mark.parametrize(
    ("card", "name"),
    [
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "geforce-rtx-4090-laptop-gpu"),
        ("NVIDIA H100 80GB HBM3", "h100-80gb-hbm3"),
        ("NVIDIA", "card"),
    ],
)
def test_cards_of_different_kinds_have_different_files(card: str, name: str) -> None:
    assert file_name(card) == name


def arguments(*given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(given)


def in_this_process(work: Callable[..., Any], *arguments: Any) -> Any:
    return work(*arguments)


def test_without_a_card_the_reason_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_card, "alone", in_this_process)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert run(arguments("--share")) == 2
    told = capsys.readouterr().err
    assert told.startswith("vivavoce bench card measures an NVIDIA card, and there is none to measure: device cuda ")
    assert len(told.splitlines()) == 1


def test_the_table_is_printed_without_a_card(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(MEASURED))
    assert run(arguments("--table", str(path), str(path))) == 0
    assert capsys.readouterr().out.splitlines() == table([MEASURED, MEASURED])


def test_a_measurement_has_a_process_of_its_own() -> None:
    assert alone(os.getpid) != os.getpid()


def test_fewer_rows_are_timed_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_card, "alone", in_this_process)
    asked = []

    def timed(size: str, rows: Sequence[int]) -> dict[str, float] | None:
        asked.append((size, tuple(rows)))
        return {str(count): 1.0 for count in rows} if max(rows) <= 8 else None

    assert largest_first(timed, "0.6b") == {"1": 1.0, "8": 1.0}
    assert asked == [("0.6b", (1, 8, 64)), ("0.6b", (1, 8))]
    with pytest.raises(MemoryError):
        largest_first(lambda *_: None, "0.6b")


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """A card of 6 GB, without anything that needs it. Returns the list of what is measured."""
    done: list[tuple[str, ...]] = []

    def start_s(model: Path, folder: Path) -> float:
        done.append(("start", model.name))
        assert os.environ["TRITON_CACHE_DIR"] == str(folder / "kernels")
        return 10.0

    def write_weights(size: str, folder: Path, memory_gb: float) -> bool:
        done.append(("weights", size))
        folder.mkdir()
        return True

    def time_engine(model: Path, frames: int, streams: Sequence[int]) -> dict[str, Any]:
        done.append(("engine", model.name, str(frames)))
        raise RuntimeError("CUDA error: unspecified launch failure")

    def time_frames(size: str, rows: Sequence[int]) -> dict[str, float]:
        done.append(("frames", size))
        return dict.fromkeys(map(str, rows), 2.0)

    card = {name: MEASURED[name] for name in ("card", "capability", "multiprocessors", "driver")}
    monkeypatch.setattr(bench_card, "alone", in_this_process)
    monkeypatch.setattr(bench_card, "describe_card", lambda: {**card, "memory_gb": 5.8})
    for planted in (start_s, write_weights, time_engine, time_frames):
        monkeypatch.setattr(bench_card, planted.__name__, planted)
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    return done


def test_a_fault_costs_its_own_figures_and_a_large_model_is_left_out(pretended: list[tuple[str, ...]]) -> None:
    document = measure(quick=False)
    assert pretended == [
        ("weights", "0.6b"), ("start", "0.6b"), ("start", "0.6b"), ("engine", "0.6b", "250"), ("frames", "0.6b")
    ]  # fmt: skip
    assert "TRITON_CACHE_DIR" not in os.environ
    assert document["faults"] == {"0.6b engine": "RuntimeError: CUDA error: unspecified launch failure"}
    assert document["skipped"] == {"1.7b": "its weights take 4.5 GB, and the card has 5.8 GB"}
    assert document["frame_ms"] == {"0.6b": dict.fromkeys(map(str, ROWS), 2.0)}
    assert document["start_s"] == {"first": 10.0, "second": 10.0}
    assert document.keys() == MEASURED.keys() - {"by"}
    assert cells(document | {"by": ""})[2:5] == ["2.0, 2.0, 2.0", "-", "-"]


def test_a_quick_run_measures_the_small_model_with_the_usual_kernels(pretended: list[tuple[str, ...]]) -> None:
    document = measure(quick=True)
    assert pretended == [("weights", "0.6b"), ("engine", "0.6b", "100"), ("frames", "0.6b")]
    assert document["skipped"] == {}
    assert document["command"] == "vivavoce bench card --quick"
    assert cells(document | {"by": ""})[7] == "-"


def test_the_cache_that_was_set_is_set_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", "/mine")
    with kernel_cache(tmp_path):
        assert os.environ["TRITON_CACHE_DIR"] == str(tmp_path)
    with kernel_cache(None):
        assert os.environ["TRITON_CACHE_DIR"] == "/mine"


def test_weights_are_counted_as_the_files_are_written() -> None:
    assert (round(weights_gb("0.6b"), 2), round(weights_gb("1.7b"), 2)) == (2.49, 4.52)
