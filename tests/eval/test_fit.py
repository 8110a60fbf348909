"""`vivavoce eval fit`: the threshold, the rates of errors, and the shipped voice's own figures."""

import argparse
import json
from pathlib import Path

import numpy as np
import pytest
from vivavoce_engine.text.transcript import LEAST_FIT
from vivavoce_eval import fit
from vivavoce_eval.errors import Unusable
from vivavoce_eval.fit import Errors, as_table, choose, errors, texts


def evaluate(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    fit.add_arguments(parser)
    return fit.run(parser.parse_args(arguments))


def test_the_threshold_is_in_the_middle_of_what_tells_them() -> None:
    right, wrong = np.array([3.0, 4.0, 5.0]), np.array([-1.0, 0.0, 1.0])
    assert choose(right, wrong) == 2.0
    assert errors(right, wrong, 2.0) == Errors(0.0, 0.0)


def test_an_outlier_does_not_move_the_threshold_to_itself() -> None:
    right, wrong = np.array([-5.0, 3.0, 4.0, 5.0]), np.array([-1.0, 0.0, 1.0, 1.0])
    assert choose(right, wrong) == 2.0
    assert errors(right, wrong, 2.0) == Errors(0.25, 0.0)
    assert errors(right, wrong, 1.0) == Errors(0.25, 0.5)


def test_the_wrong_texts_are_wrong() -> None:
    kinds = texts("One two three four.", "Five six.", 1)
    assert kinds["in small letters, no signs"] == "one two three four"
    assert kinds["first half missing"] == "three four."
    assert kinds["second half missing"] == "One two"
    assert kinds["another text behind"] == "One two three four. Five six."
    replaced = kinds["half of the words replaced"].split()
    assert len(replaced) == 4
    assert sum(word in ("Five", "six.") for word in replaced) == 2


def test_the_table_has_the_share_that_is_taken() -> None:
    fits = {"right": np.array([3.0, 5.0]), "other": np.array([-1.0, 1.0])}
    table = as_table(fits, {"other": Errors(0.25, 0.5)}).splitlines()
    assert [line.split()[-1] for line in table[1:]] == ["75.0%", "50.0%"]


def test_the_shipped_voice_tells_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "fit.json"
    assert evaluate("--pairs", "8", "--json", str(out)) == 0
    figures = json.loads(out.read_text())
    assert figures["kinds"]["other"]["most"] < LEAST_FIT < figures["kinds"]["right"]["least"]
    assert figures["errors"]["other"] == {"right_refused": 0.0, "wrong_taken": 0.0}
    assert figures["least_fit"] == {"threshold": LEAST_FIT, "right_refused": 0.0, "wrong_taken": 0.0}
    assert "0.0% of right texts refused, 0.0% of other texts taken" in capsys.readouterr().out


def test_a_few_pairs_tell_nothing() -> None:
    with pytest.raises(Unusable, match="--pairs must be at least 8, not 7"):
        evaluate("--pairs", "7")
