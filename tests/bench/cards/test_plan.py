"""The steps of vivavoce_bench/cards/plan.py between the commands that it runs."""

import json
from pathlib import Path

from vivavoce_bench.cards.plan import take_over_front


def test_only_the_front_s_times_are_taken_over(tmp_path: Path) -> None:
    steps, like = tmp_path / "steps.json", tmp_path / "like.json"
    steps.write_text(json.dumps({"frame_ms": {"m": {"1": 2}}, "decoding_slows": 0.25}))
    like.write_text(json.dumps({"frame_ms": {"m": {"1": 9}}, "decoding_slows": 0.5, "front_ms": {"piece": 3}}))
    take_over_front(steps, like)
    assert json.loads(steps.read_text()) == {
        "frame_ms": {"m": {"1": 2}},
        "decoding_slows": 0.25,
        "front_ms": {"piece": 3},
    }
