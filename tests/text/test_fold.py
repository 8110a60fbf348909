"""Stage fold: text of ASCII letters, digits and marks."""

import pytest
from vivavoce_text import Profile, Spoken, speakable

ASCII = Profile(frozenset(["fold"]), alphabet="ascii")
ROMANIZING = Profile(frozenset(["fold"]), alphabet="ascii", romanize=True)


def read(written: str, profile: Profile = ASCII) -> Spoken:
    return speakable(written, "en", profile)


@pytest.mark.parametrize(
    ("written", "spoken"),
    [
        ("The café was naïve, Zoë and Łódź.", "The cafe was naive, Zoe and Lodz."),
        ("Straße and Æsir", "Strasse and Aesir"),
        ("Lego™ bricks®", "Lego bricks"),
        ("“Hello” \u2018there\u2019…", "\"Hello\" 'there'..."),
        ("He/she [knows] {it}", "He she (knows) (it)"),
        ("The β test", "The beta test"),
        ("one%two", "one percent two"),
        ("snake_case", "snake case"),
        ("A, b; c: d! e? (f) - \"g\" 'h'.", "A, b; c: d! e? (f) - \"g\" 'h'."),
    ],
)
def test_characters_outside_ascii(written: str, spoken: str) -> None:
    assert read(written).text == spoken


def test_letters_of_other_scripts_are_left_out_and_noted() -> None:
    spoken = read("Say 你好 and привет now.")
    assert " ".join(spoken.text.split()) == "Say and now."
    assert spoken.left_out == ("你好", "привет")


def test_letters_of_other_scripts_can_be_romanized() -> None:
    spoken = read("Say привет now.", ROMANIZING)
    assert spoken.text == "Say privet now."
    assert spoken.left_out == ()


def test_nothing_is_folded_without_an_alphabet() -> None:
    assert read("Café ™ 你好", Profile(frozenset(["fold"]))).text == "Café ™ 你好"
