"""The map from spoken characters to written ones."""

import re

import pytest
from vivavoce_text import Traced, speakable
from vivavoce_text.traced import Edit

from tests.text.marks import ASCII_VOICE
from tests.text.pairs import pairs


def test_a_source_is_its_own_origin() -> None:
    assert Traced.source("abc", 5) == Traced("abc", (5, 6, 7), (6, 7, 8))


def test_replaced_characters_come_from_all_that_they_replace() -> None:
    text = Traced.source("a 12 b").replaced(re.compile(r"\d+"), "twelve")
    assert text.text == "a twelve b"
    assert text.span(2, 8) == (2, 4)
    assert text.span(0, 1) == (0, 1)
    assert text.span(9, 10) == (5, 6)


def test_a_replacement_of_a_replacement_keeps_the_origin() -> None:
    text = Traced.source("x $5 y").edited([Edit(2, 4, "5 dollars")]).replaced(re.compile("5"), "five")
    assert text.text == "x five dollars y"
    assert text.span(2, 6) == (2, 4)


def test_an_insertion_comes_from_the_character_before_it() -> None:
    assert Traced.source("ab").edited([Edit(2, 2, ".")]) == Traced("ab.", (0, 1, 1), (1, 2, 2))
    assert Traced.source("ab").edited([Edit(0, 0, "-")]) == Traced("-ab", (0, 0, 1), (1, 1, 2))


def test_a_function_that_returns_none_keeps_its_match() -> None:
    text = Traced.source("1 2")
    assert text.replaced(re.compile(r"\d"), lambda match: None if match[0] == "1" else "two").text == "1 two"
    assert text.replaced(re.compile("x"), "y") is text


def test_another_form_is_compared_word_by_word() -> None:
    text = Traced.source("we sold 3 cats today").became("we sold three cats today")
    assert text.span(8, 13) == (8, 9)
    assert text.span(14, 18) == (10, 14)


def test_slices_and_joins_keep_the_map() -> None:
    text = Traced.source("one two")
    assert Traced.join([text.slice(0, 3), text.slice(3, 7)]) == text


WORDS = [
    ("It was **late** \u2014 we left.", "late", "late"),
    ("It was **late** \u2014 we left.", "left", "left"),
    ("See [the guide](https://example.com/a) first.", "guide", "guide"),
    ("See [the guide](https://example.com/a) first.", "first", "first"),
    ("See https://example.com/docs now", "example dot com slash docs", "https://example.com/docs"),
    ("See https://example.com/docs now", "now", "now"),
    ("- milk\n- eggs", "eggs", "eggs"),
    ("<p>Tom &amp; Jerry</p>", "and", " &amp; "),
    ("<p>Tom &amp; Jerry</p>", "Jerry", "Jerry"),
    ("\U0001f44d Well\u2026 pre\u00adfix", "prefix", "pre\u00adfix"),
    ("\U0001f44d Well\u2026 pre\u00adfix", "...", "\u2026"),
    ("So $E = mc^2$ holds", "m c squared", "$E = mc^2$"),
    ("So $E = mc^2$ holds", "holds", "holds"),
    ("Let's go!!!!!! Yes", "!", "!!!!!!"),
    ("Let's go!!!!!! Yes", "Yes", "Yes"),
    ("![A red barn](barn.png) \\*x\\* `code` <b>bold</b> end", "code", "code"),
    ("![A red barn](barn.png) \\*x\\* `code` <b>bold</b> end", "bold", "bold"),
    ("![A red barn](barn.png) \\*x\\* `code` <b>bold</b> end", "red", "red"),
]


@pytest.mark.parametrize(("text", "words", "written"), WORDS)
def test_words_know_what_they_were_written_as(text: str, words: str, written: str) -> None:
    said = speakable(text, "en", ASCII_VOICE).traced
    at = said.text.index(words)
    start, end = said.span(at, at + len(words))
    assert text[start:end] == written


def test_the_map_of_every_pair_goes_forward() -> None:
    for pair in pairs():
        said = speakable(pair.written, pair.language, ASCII_VOICE).traced
        assert len(said.text) == len(said.starts) == len(said.ends)
        assert list(said.starts) == sorted(said.starts)
        assert list(said.ends) == sorted(said.ends)
        assert all(start < end for start, end in zip(said.starts, said.ends, strict=True))
