"""Scripts of letters and of languages."""

from collections import Counter

import pytest
from vivavoce_text.scripts import foreign_letters, language_of, script_of, scripts_of


@pytest.mark.parametrize(
    ("char", "script"),
    [
        ("a", "Latin"),
        ("ß", "Latin"),
        ("\uff21", "Latin"),
        ("\U0001d407", "Latin"),
        ("\u2113", "Latin"),
        ("º", "Latin"),
        ("你", "Chinese"),
        ("々", "Chinese"),
        ("ㄅ", "Chinese"),
        ("の", "Japanese"),
        ("ｶ", "Japanese"),
        ("ー", "Japanese"),
        ("한", "Korean"),
        ("\u1112", "Korean"),
        ("ж", "Cyrillic"),
        ("π", "Greek"),
        ("\U0001d6fc", "Greek"),
        ("ع", "Arabic"),
        ("ש", "Hebrew"),
        ("ह", "Devanagari"),
        ("ก", "Thai"),
        ("Ա", "Armenian"),
        ("አ", "Ethiopic"),
        ("𐌀", "Old italic"),
        ("µ", ""),
        ("\u02c8", ""),
        ("1", ""),
        ("!", ""),
        ("😀", ""),
    ],
)
def test_script_of_a_character(char: str, script: str) -> None:
    assert script_of(char) == script


def test_a_language_has_latin_letters_beside_its_own() -> None:
    assert scripts_of("en") == scripts_of("de") == {"Latin"}
    assert scripts_of("ja") == {"Latin", "Japanese", "Chinese"}
    assert scripts_of("ru") == {"Latin", "Cyrillic"}


def test_foreign_letters_are_counted_by_script() -> None:
    assert foreign_letters("Say 你好 and привет, 5 µm!", scripts_of("en")) == Counter(Chinese=2, Cyrillic=6)
    assert foreign_letters("Say 你好 and привет!", {"Latin", "Chinese", "Cyrillic"}) == Counter()
    assert foreign_letters("1, 2, 3 😀", set()) == Counter()


@pytest.mark.parametrize(
    ("text", "language"),
    [("你好", "zh"), ("日本語の", "ja"), ("한국", "ko"), ("Hello", ""), ("привет", ""), ("12", ""), ("ㄅ", "zh")],
)
def test_language_that_a_script_shows(text: str, language: str) -> None:
    assert language_of(text) == language
