"""The plot of time to first audio shows the figures of the file it is made from."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from vivavoce_bench.cards import plot_server
from vivavoce_bench.cards.plot_server import first_audio, plot

RESULTS = Path(__file__).parents[3] / "bench/results"


def run(p50: float, p95: float, refused: int = 0) -> dict[str, Any]:
    return {"requests": 100, "completed": 100 - refused, "ttfa_ms": {"p50": p50, "p95": p95, "p99": 99.0}}


def document(**rates: dict[str, Any]) -> dict[str, Any]:
    by_rate = {name.removeprefix("at_"): value for name, value in rates.items()}
    return {"cards": ["NVIDIA H200"], "server": {"1.7b": {"none": {"rate": by_rate}}}}


def test_a_line_has_the_percentiles_in_the_order_of_the_rates() -> None:
    measured = first_audio(document(at_100=run(24.0, 31.0), at_20=run(17.0, 20.0)))
    (axes,) = plot(measured, "1 May 2026").axes
    lines = {line.get_label(): np.asarray(line.get_xydata()).tolist() for line in axes.get_lines()}
    assert lines == {"p50": [[20, 17], [100, 24]], "p95": [[20, 20], [100, 31]]}
    assert axes.get_title() == "One NVIDIA H200, 1.7B model, 1 May 2026"
    assert sorted(text.get_text() for text in axes.texts) == ["17", "20", "24", "31"]


def test_a_run_that_is_not_complete_is_not_plotted() -> None:
    with pytest.raises(ValueError, match=r"\[220\.0\]"):
        first_audio(document(at_20=run(17.0, 20.0), at_220=run(50.0, 160.0, refused=1)))


def test_texts_of_other_lengths_are_not_mixed_in() -> None:
    assert first_audio(document(**{"at_20": run(17.0, 20.0), "at_100 en:5.7s": run(90.0, 99.0)})).rates == (20,)


def test_several_servers_are_not_mixed() -> None:
    several = document(at_20=run(17.0, 20.0))
    several["server"]["0.6b"] = several["server"]["1.7b"]
    with pytest.raises(ValueError, match="2 servers"):
        first_audio(several)


def test_a_file_of_measurements_is_read() -> None:
    measured = first_audio(json.loads((RESULTS / "server-h200.json").read_text(encoding="utf-8")))
    assert measured.rates == (20, 100, 180, 220)
    assert measured.ms["p95"] == (20.402, 31.264, 51.138, 168.03)


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_the_same_file_gives_the_same_picture(suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pictures = [tmp_path / f"{name}{suffix}" for name in ("one", "two")]
    for picture in pictures:
        command = ["plot_server", str(RESULTS / "server-h200.json"), "--out", str(picture)]
        monkeypatch.setattr(sys, "argv", command)
        plot_server.main()
    assert pictures[0].read_bytes() == pictures[1].read_bytes()
