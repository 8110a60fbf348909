"""Word errors that do not count spelling, and the choice of pairs."""

from pathlib import Path

import pytest
from vivavoce_eval.errors import Unusable
from vivavoce_eval.pairs import Pair, choose, read_pairs
from vivavoce_eval.spelling import distance, wrong_words

HEADER = "language\tkind\twritten\tspoken\tnote\n"


def lower(text: str) -> str:
    """Stands for Whisper's normaliser."""
    return "".join(char if char.isalnum() else " " for char in text.lower())


@pytest.mark.parametrize(
    ("expected", "heard", "errors"),
    [
        ("f b i agents", "fbi agents", 0),
        ("321 go", "3 2 1 go", 0),
        ("twenty four seven", "twentyfour seven", 0),
        ("the cat sat", "the hat sat", 1),
        ("the cat sat", "the sat", 1),
        ("the cat sat", "the cat sat down", 1),
        ("the cat sat", "", 3),
        ("a b c", "abd", 3),
    ],
)
def test_blanks_alone_are_no_errors(expected: str, heard: str, errors: int) -> None:
    assert distance(expected.split(), heard.split()) == errors


def test_the_nearest_reading_counts() -> None:
    readings = ["It runs to the fifth.", "It runs till May fifth."]
    assert wrong_words(readings, "It runs till May fourth.", lower) == (1, 5)
    assert wrong_words(readings, "It runs to the fifth!", lower) == (0, 5)
    assert wrong_words(readings, "", lower) == (5, 5)
    assert wrong_words(["It is five.", "It is five, no more."], "", lower) == (5, 5)


@pytest.mark.parametrize(
    ("reading", "heard"),
    [
        ("The F B I called at three oh five p m today.", "The FBI called at 3:05 p.m. today."),
        ("It costs five dollars and fifty cents.", "It costs $5.50."),
        ("We are open twenty-four seven.", "We are open 24/7."),
        ("Doctor Smith has twenty-one cats.", "Dr. Smith has 21 cats."),
        ("Ask the F B I.", "Ask the eff bee eye."),
    ],
)
def test_spellings_of_a_transcriber_are_no_errors(reading: str, heard: str) -> None:
    assert wrong_words([reading], heard, lower)[0] == 0


def test_pairs_are_read_and_chosen(tmp_path: Path) -> None:
    file = tmp_path / "pairs.tsv"
    file.write_text(
        HEADER
        + "en\tmoney\tIt is $5.\tIt is five dollars. || It is five bucks.\tnote\n"
        + "en\tunchanged\tIt is.\tIt is.\t\n"
        + "zh\tmoney\t5元\t五元\t\n"
        + "en\tunicode\ta\\nb\\u00adc\ta bc\t\n",
        encoding="utf-8",
    )
    pairs = read_pairs(file)
    assert pairs[0] == Pair("en", "money", "It is $5.", ("It is five dollars.", "It is five bucks."))
    assert pairs[3].written == "a\nb\u00adc"
    assert choose(pairs, 60, 0) == [pairs[0], pairs[3]]
    assert {choose(pairs, 1, seed)[0].kind for seed in range(20)} == {"money", "unicode"}
    assert choose(pairs, 1, 3) == choose(pairs, 1, 3)


@pytest.mark.parametrize(
    ("line", "message"), [("en\tmoney\n", "line 2 is not"), ("zh\tmoney\t5元\t五元\n", "no English pair")]
)
def test_a_file_without_pairs_is_refused(tmp_path: Path, line: str, message: str) -> None:
    file = tmp_path / "pairs.tsv"
    file.write_text(HEADER + line, encoding="utf-8")
    with pytest.raises(Unusable, match=message):
        choose(read_pairs(file), 1, 0)
    with pytest.raises(Unusable, match=r"missing\.tsv cannot be read"):
        read_pairs(tmp_path / "missing.tsv")
