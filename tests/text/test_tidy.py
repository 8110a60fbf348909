"""Blanks, commas and full stops where pieces meet."""

import pytest
from vivavoce_text import Profile, Traced, speakable
from vivavoce_text.tidy import Tidy

from tests.text.marks import ANY_VOICE, ASCII_VOICE, OFF, english
from tests.text.pairs import pairs

JOINED = {
    "blanks": (["a ", " b", "  c  "], "a b c"),
    "a blank before a sign": (["a", " , b", " . c ", "!"], "a, b. c!"),
    "a number with a point": (["hits", " .275"], "hits .275"),
    "a leading comma": ([", ", "a"], "a"),
    "doubled commas": (["a,", " ,", ", b"], "a, b"),
    "a comma before another sign": (["a,", " .", " b,", "!"], "a. b!"),
    "a comma after a sign": (["a!", ", b?", " , c"], "a! b? c"),
    "a comma after an abbreviation": (["etc.", ", and"], "etc., and"),
    "a trailing comma": (["a", ","], "a,"),
    "parentheses": (["a (", " b ", ") ", "( )", " c"], "a (b) c"),
    "lines": (["a\n", "b\n", "\n", "c\n"], "a b. c"),
    "a paragraph after a sign": (["a!\n", "\n", "b:\n\n", "c"], "a! b: c"),
    "a paragraph after a quote": (['"a"\n\n', "b"], '"a". b'),
    "a paragraph after a comma": (["a, \n\n", "b"], "a. b"),
    "a last paragraph": (["a\n", "\n"], "a."),
    "no text": ([" ", "\n"], ""),
    "a run": (["a!", "!!", "!", " b"], "a! b"),
    "a run of letters": (["aaa", "aaa", "ab"], "aaab"),
    "a tag": (["a ", "[pause:1s]", " b"], "a [pause:1s] b"),
}


def joined(parts: list[str], profile: Profile) -> str:
    tidy = Tidy(profile)
    return Traced.join([*(tidy.append(Traced.source(part)) for part in parts), *tidy.close()]).text


@pytest.mark.parametrize(("parts", "whole"), JOINED.values(), ids=JOINED)
def test_pieces_are_joined(parts: list[str], whole: str) -> None:
    assert joined(parts, ASCII_VOICE) == whole


def test_an_empty_line_behind_a_tag_ends_no_sentence() -> None:
    """The tag has ended it. A full stop behind the tag would come from characters before it."""
    tag = "[pause:1s]"
    spoken = speakable(f"a {tag}\n\nb\n\nc", "en", Profile(frozenset({"markup"}), alphabet="ascii")).traced
    assert spoken.text == f"a {tag} b. c"
    assert sorted(spoken.starts) == list(spoken.starts)
    assert sorted(spoken.ends) == list(spoken.ends)


def test_a_voice_of_any_alphabet_keeps_lines_and_paragraphs() -> None:
    assert joined(["a \n", " b\n", "\n\n", "c.\n"], ANY_VOICE) == "a\nb.\n\nc."


def test_without_stages_every_character_stays() -> None:
    parts = [" a ,", ",b  ", "\n\n", "!", "!!", " . "]
    assert joined(parts, OFF) == "".join(parts)


def test_clean_alone_joins_runs_and_nothing_else() -> None:
    assert joined(["a  , ,", "!", "!!", "\n\n"], Profile(frozenset({"clean"}))) == "a  , ,!\n\n"


def test_only_markup_ends_paragraphs() -> None:
    assert joined(["a\n\n", "b"], Profile(frozenset({"clean", "emoji"}))) == "a\n\nb"


def test_text_that_needs_nothing_is_unchanged() -> None:
    for pair in pairs():
        if pair.kind == "unchanged" and pair.language == "en":
            assert english(pair.written) == pair.written


def test_pairs_of_marks_are_right() -> None:
    """The kinds that these stages read alone, except rows with numbers and letters, which later stages say."""
    kinds = [
        "punctuation",
        "unicode",
        "html",
        "markdown",
        "latex",
        "url",
        "email",
        "identifier",
        "social",
        "emoji",
        "word_sign",
    ]
    wrong = {pair.written for pair in pairs() if pair.kind in kinds and not pair.is_right(english(pair.written))}
    assert all(any(char.isdigit() for char in written) for written in wrong)


@pytest.mark.parametrize("sign", [*"$\u00a9%\u00b1\u221a|&\u00bd\u00b2\u0301"])
@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_run_of_a_sign_longer_than_a_piece_is_read_like_a_short_one(sign: str, language: str) -> None:
    profile = ASCII_VOICE if language == "en" else ANY_VOICE
    short, long = (speakable(f"a {sign * count} b", language, profile) for count in (10, 4096))
    assert long.text == short.text
    assert long.traced.span(len(long.text) - 1, len(long.text)) == (4099, 4100)


def test_a_pause_ends_a_run_of_a_sign() -> None:
    assert speakable("$[pause:1s]$", "en", ANY_VOICE).text == "$[pause:1s]$"
    assert speakable("[[[[[pause:1s]", "en", ANY_VOICE).text.endswith("[pause:1s]")
