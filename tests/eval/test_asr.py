"""Normalisation and comparison of words."""

import pytest
from vivavoce_eval.asr import same_words, word_errors
from vivavoce_eval.errors import Unusable


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("on the 14th of may", "on the 14 of may"),
        ("at 6:40 p m", "at 6 40 pm"),
        ("256 gb", "256 gigabytes"),
        ("by the sea shells", "by the seashells"),
        ("well, yes.", "well yes"),
        ("the ninth of may", "the 9 of may"),
    ],
)
def test_spellings_of_the_same_speech_are_equal(one: str, other: str) -> None:
    assert same_words(one) == same_words(other)


def test_other_words_stay_other_words() -> None:
    assert same_words("forty") != same_words("fourteen")
    assert same_words("$14 and £14") == "$14 and £14"


def test_substituted_missing_and_inserted_words_are_wrong() -> None:
    assert word_errors("a b c d", "a x c d") == (1, 4)
    assert word_errors("a b c d", "a c d") == (1, 4)
    assert word_errors("a b c d", "a b c d e") == (1, 4)
    assert word_errors("a b c d", "") == (4, 4)
    with pytest.raises(Unusable, match="without a word"):
        word_errors("", "a")
