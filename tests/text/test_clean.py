"""Invisible characters, one form of a character, runs of one sign, emoji."""

import pytest
from vivavoce_text import speakable
from vivavoce_text.tables import words_of

from tests.text.marks import OFF, english, said

INVISIBLE = {
    "soft hyphens": ("pre\u00adrequi\u00adsite", "prerequisite"),
    "zero width": ("some\u200bthing\u2060 \ufeffnew", "something new"),
    "directions": ("\u202ehello\u202c \u2066you\u2069", "hello you"),
    "controls": ("be\x07ll\x00", "bell"),
    "controls that part words": ("one\x0btwo\x85three", "one two three"),
    "line ends of Windows": ("one\r\ntwo", "one\ntwo"),
    "line ends of old": ("one\rtwo", "one two"),
    "lone selectors": ("a\ufe0f b\u200dc \U000e0101", "a bc "),
    "lone surrogates": ("a\ud800b", "ab"),
    "fillers": ("a\u3164b\u115fc", "abc"),
}


@pytest.mark.parametrize(("written", "seen"), INVISIBLE.values(), ids=INVISIBLE)
def test_invisible_characters_are_removed_by_every_profile(written: str, seen: str) -> None:
    assert speakable(written, "en", OFF).text == seen


@pytest.mark.parametrize(
    "text",
    [
        "  Two  blanks , a 'quote' \u201ctwo\u201d \u2026\n\n\tand <b>tags</b> **stars** !!!! \u2014 $x^2$ :)  ",
        "\U0001f468\u200d\U0001f469\u200d\U0001f467 \u2764\ufe0f",
        "1\ufe0f\u20e3 \U0001f44d\U0001f3fd \U0001f1eb\U0001f1f7",
        "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
        "\uff28\u3000\u00a0\u2160 \u4ed6\u8bf4\uff1a\u201c\u4f60\u597d\uff01\u201d",
    ],
)
def test_without_stages_the_visible_text_stays_character_by_character(text: str) -> None:
    assert speakable(text, "en", OFF).text == text
    assert speakable(text, "", OFF).text == text


ONE_FORM = {
    "\uff28\uff45\uff4c\uff4c\uff4f \uff54\uff48\uff45\uff52\uff45\uff01": "Hello there!",
    "\U0001d407\U0001d41e\U0001d425\U0001d425\U0001d428 there": "Hello there",
    "\u24d7\u24d8 \u2460\u2461 a": "hi 1 2 a",
    "I am \ufb01ne": "I am fine",
    "Act \u2163 at 10 \u2103": "Act IV at 10 \u00b0C",
    "5 \u339e of 9 \u33a1": "5 km of 9 m\u00b2",
    "\u00bd of 2\u00b3": "\u00bd of 2\u00b3",
    "went\u00a0home\u2009at\u3000ten\tsharp": "went home at ten sharp",
    "cafe\u0301 \u212b": "caf\u00e9 \u00c5",
    "H\u0337e\u0337y": "Hey",
    "tele\u2011phone": "tele-phone",
    "\ue000private": "private",
}


@pytest.mark.parametrize(("written", "clean"), ONE_FORM.items())
def test_characters_get_one_form(written: str, clean: str) -> None:
    assert said(written, "en", "clean") == clean
    assert said(clean, "en", "clean") == clean


RUNS = {
    "Let's go!!!!!!!!!!!!!!!!!!!!": "Let's go!",
    "What?!?! No!!!!!": "What?! No!",
    "Really ? ? ?": "Really ?",
    "Wait...... what": "Wait... what",
    "Well.. and . . . hm": "Well... and ... hm",
    "one,,,, two;;; three": "one, two; three",
    "a" * 180: "aaa",
    "Nooooooo": "Nooo",
    "ha" * 60: "hahaha",
    "1000000 and 5555": "1000000 and 5555",
    "First part ----- second part.": "First part, second part.",
    "first --second": "first --second",
    "first--second, third -- fourth": "first, second, third, fourth",
    "$$$$$ %%%%": "$ %",
    "!" * 4096: "!",
    "." * 4096: "...",
    "e" * 4096: "eee",
}


@pytest.mark.parametrize(("written", "clean"), RUNS.items(), ids=range(len(RUNS)))
@pytest.mark.parametrize("language", ["en", "de"])
def test_runs_of_one_sign_become_one_sign(written: str, clean: str, language: str) -> None:
    assert said(written, language, "clean") == clean
    assert said(clean, language, "clean") == clean


DASHES = {
    "It was late \u2014 we went home.": "It was late, we went home.",
    "It was late\u2014we went home.": "It was late, we went home.",
    "late \u2013 we": "late, we",
    "late - we": "late, we",
    "Yes! \u2014 he said": "Yes! he said",
    "I thought\u2014": "I thought...",
    "\u2014 Who is there?": "Who is there?",
    "1914\u20141918": "1914-1918",
    "5\u20139 tonight": "5\u20139 tonight",
    "\u221280 at night": "-80 at night",
}


@pytest.mark.parametrize(("written", "clean"), DASHES.items())
def test_english_dashes_are_commas(written: str, clean: str) -> None:
    assert english(written) == clean


QUOTES = {
    "She said \u201chello\u201d and left\u2026": 'She said "hello" and left...',
    "We\u2019re \u2018never\u2019 late": "We're 'never' late",
    "\u00abHello\u00bb, she said": '"Hello", she said',
    "\u201eJa\u201c, 5\u203210\u2033": '"Ja", 5\'10"',
    "don`t and don\u00b4t": "don't and don't",
    "``quoted'' word": '"quoted" word',
}


@pytest.mark.parametrize(("written", "plain"), QUOTES.items())
def test_quotes_of_an_ascii_voice_are_plain(written: str, plain: str) -> None:
    assert english(written) == plain


def test_quotes_stay_for_a_voice_of_any_alphabet() -> None:
    assert said("We\u2019re \u201chere\u201d\u2026", "en") == "We\u2019re \u201chere\u201d\u2026"


@pytest.mark.parametrize(
    ("written", "clean"),
    [
        ("\u4ed6\u8bf4\uff1a\u201c\u4f60\u597d\uff01\u201d", "\u4ed6\u8bf4\uff1a\u201c\u4f60\u597d\uff01\u201d"),
        ("\u597d\uff01\uff01\uff01\uff01", "\u597d\uff01"),
        ("\u597d\u2026\u2026\u2026\u2026", "\u597d\u2026\u2026"),
        ("\u4ed6\u2014\u2014\u597d", "\u4ed6\u2014\u2014\u597d"),
        ("\uff11\uff12\uff1a\uff13\uff10\uff0c\u597d", "12:30\uff0c\u597d"),
    ],
)
def test_chinese_signs_stay(written: str, clean: str) -> None:
    assert said(written, "zh") == clean


EMOJI = {
    "Great job \U0001f44d": "Great job",
    "I \u2764\ufe0f this song.": "I this song.",
    "a family \U0001f468\u200d\U0001f469\u200d\U0001f467 now": "a family now",
    "and thanks \U0001f64f\U0001f3fd!": "and thanks!",
    "\U0001f1eb\U0001f1f7\U0001f1e9\U0001f1ea here": "here",
    "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f won": "won",
    "1\ufe0f\u20e3 Open 2\ufe0f\u20e33\ufe0f\u20e3.": "1 Open 2 3.",
    "Great\U0001f44djob": "Great job",
    "\U0001f389, hello (\U0001f382) there": "hello there",
    "nice :smile: and :+1: at 10:30:00": "nice and at 10:30:00",
    "thanks:) (see below:)": "thanks (see below:)",
    "\u00a9 2024": "copyright 2024",
}


@pytest.mark.parametrize(("written", "left"), EMOJI.items())
def test_emoji_are_not_said(written: str, left: str) -> None:
    assert english(written) == left


@pytest.mark.parametrize("face", sorted(words_of("any", "emoticons")))
def test_emoticons_are_not_said(face: str) -> None:
    assert english(f"see you {face} soon") == "see you soon"
    assert english(f"See you {face}") == "See you"


def test_stages_that_are_off_change_nothing() -> None:
    text = "We\u2019re here\u2026 \U0001f44d\U0001f44d **now**, see a.com!!!!"
    assert said(text, "en", "clean") == text.replace("!!!!", "!")
    assert said(text, "en", "emoji") == text.replace(" \U0001f44d\U0001f44d", "")
