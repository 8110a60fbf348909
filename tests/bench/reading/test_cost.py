"""`vivavoce bench reading`: its texts and figures."""

import argparse
import json
from pathlib import Path

import pytest
from vivavoce_bench.reading import cost

PAIRS = (
    "language\tkind\twritten\tspoken\tnote\n"
    "en\tmoney\tIt is $5.\tIt is five dollars.\t\n"
    "en\tunchanged\tIt stays.\tIt stays.\t\n"
    "zh\tcardinal\t5只\t五只\t\n"
)


def test_it_measures_the_held_out_sentences_and_the_pairs_of_each_language(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text(PAIRS, encoding="utf-8")
    parser = argparse.ArgumentParser()
    cost.add_arguments(parser)
    assert cost.run(parser.parse_args(["--pairs", str(pairs)])) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    texts = {name: figures["texts"] for name, figures in found["cost"].items()}
    assert texts == {"held-out sentences": 100, "pairs, en": 2, "pairs, zh": 1}
    for figures in found["cost"].values():
        assert 0 < figures["median_us"] <= figures["p95_us"] <= figures["most_us"]
    steps_mb = [step["memory_mb"] for step in found["start"].values()]
    assert list(found["start"]) == ["import", "first text, en", "first text, zh"]
    assert 0 < steps_mb[0] < steps_mb[1] < steps_mb[2], "each step loads more"


def test_the_95th_percentile_is_of_the_sorted_times(monkeypatch: pytest.MonkeyPatch) -> None:
    times_us = {str(number): float(number) for number in range(100)}
    monkeypatch.setattr(cost, "time_us", lambda language, text: times_us[text])
    figures = cost.cost_of("en", sorted(times_us))
    assert (figures.median_us, figures.mean_us, figures.p95_us, figures.most_us) == (50, 50, 95, 99)
