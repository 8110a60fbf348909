"""Pieces of a text: the same for every fragmentation, and cut where no rule of reading looks across."""

import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vivavoce_text import Profile, Reading, Traced, speakable
from vivavoce_text.pieces import MOST_CHARS, MOST_MARKUP_CHARS, Piece, Pieces

from tests.text.marks import ANY_VOICE, ASCII_VOICE, OFF
from tests.text.pairs import pairs

MARKED = (
    "a `b c` $x y$ \\(a b\\) $$ q r $$ <!-- a > b --> [l k](u v) **one two** end of it all",
    "<script>\nvar x = 1;\n</script> after\n<!--\nmany words here\n--> more",
    "```py\nx = 1\n```\nAfter ```that``` comes\n~~~\n```\n~~~\nthe end",
    "see http://example.com/" + "path/" * 80 + " and go on",
    "One. [pause:2s] Two. <break time='1s'/> Three",
    "\u6211\u4eec\u53bb\u516c\u56ed\u5427\uff0c\u4eca\u5929\u5929\u6c14\u5f88\u597d\u3002He said so.",
)
ATOMS = [
    *" \n.,!?-'\"*_`~#[]()<>&|$\\/@:;=+%\u2014\u2026\u201c\u00bd\u00b2\u200d\u00ad\u0301",
    *[
        "word",
        "Word",
        "WORD",
        "x",
        "12",
        "<b>",
        "</p>",
        "<!--",
        "-->",
        "<script>",
        "</script>",
        "&amp;",
        "**",
        "- ",
        "1. ",
    ],
    *[
        "> ",
        "```",
        "$x^2$",
        "\\(",
        "\\)",
        "file.pdf",
        "http://a.com/b",
        "a@b.org",
        ":)",
        "[pause:1s]",
        "<break/>",
        "...",
    ],
    *["\U0001f44d", "\u2764\ufe0f", "1\ufe0f\u20e3", "\u4e2d\u6587\u5b57", "\u3002", "e.g.", "Dr.", "---", "==="],
]
TEXTS = st.lists(st.sampled_from(ATOMS), max_size=30).map("".join)


def cut(text: str, seed: int) -> Iterator[str]:
    """Fragments of a text, of 1 to 40 characters."""
    chance = random.Random(seed)
    longest = chance.choice((1, 3, 12, 40))
    at = 0
    while at < len(text):
        end = at + chance.randint(1, longest)
        yield text[at:end]
        at = end


def pieces_of(text: str, markup: bool = True) -> list[Piece]:
    pieces = Pieces(markup)
    return pieces.append(text) + pieces.close()


def read_in_fragments(text: str, language: str, profile: Profile, seed: int) -> Traced:
    reading = Reading(language, profile)
    said = [part for fragment in cut(text, seed) for part in reading.append(fragment)]
    return Traced.join([*said, *reading.close()])


@pytest.mark.parametrize("text", [*(pair.written for pair in pairs()), *MARKED])
def test_pieces_are_the_same_for_every_fragmentation(text: str) -> None:
    whole = pieces_of(text)
    assert "".join(piece.text for piece in whole) == text
    assert [piece.start for piece in whole] == [sum(len(p.text) for p in whole[:n]) for n in range(len(whole))]
    for seed in range(3):
        pieces = Pieces(markup=True)
        assert [*(piece for part in cut(text, seed) for piece in pieces.append(part)), *pieces.close()] == whole


@pytest.mark.parametrize("profile", [ASCII_VOICE, ANY_VOICE, OFF], ids=["ascii", "any", "off"])
@pytest.mark.parametrize("language", ["en", "zh", ""])
def test_reading_is_the_same_for_every_fragmentation(language: str, profile: Profile) -> None:
    chance = random.Random(20)
    texts = [*(pair.written for pair in pairs()), *MARKED]
    for seed in range(40):
        text = chance.choice((" ", "\n", "\n\n")).join(chance.sample(texts, 6))
        assert read_in_fragments(text, language, profile, seed) == speakable(text, language, profile).traced


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(text=TEXTS, seed=st.integers(0, 1000))
def test_reading_of_any_text_is_the_same_for_every_fragmentation(text: str, seed: int) -> None:
    for language, profile in (("en", ASCII_VOICE), ("zh", ANY_VOICE), ("en", OFF)):
        said = speakable(text, language, profile).traced
        assert read_in_fragments(text, language, profile, seed) == said
        assert list(said.starts) == sorted(said.starts)
        assert list(said.ends) == sorted(said.ends)
        assert all(0 <= start < end <= len(text) for start, end in zip(said.starts, said.ends, strict=True))


def test_plain_words_wait_for_one_word() -> None:
    pieces = Pieces(markup=True)
    assert pieces.append("the old man went") == [Piece("the", 0, starts_line=True), Piece(" old", 3)]
    assert pieces.append(" ") == [Piece(" man", 7)]
    assert pieces.close() == [Piece(" went ", 11, ends_line=True)]


@pytest.mark.parametrize(
    "whole",
    [
        "**one two three**",
        "[one two](three four)",
        "<a href='x' title='one two'>",
        "$one two three$",
        "$$one two three$$",
        "\\(one two three\\)",
        "\\[one two three\\]",
        "`one two three`",
        "<!-- one > two three -->",
        "Dr. Lee",
        "5 km",
        "May 5",
        "World War II",
        "code is 4821",
    ],
)
def test_a_piece_keeps_whole_what_a_rule_reads_as_one(whole: str) -> None:
    pieces = pieces_of(f"so it was {whole} and then it went on")
    assert any(whole in piece.text for piece in pieces)


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("# Head\nText\n- item\n1. one\n| a |\n", ["heading", "text", "item", "item", "table"]),
        ("```\n# x\n```\ny\n", ["fence", "code", "fence", "text"]),
        ("```\n~~~\n```sh\n````\ny\n", ["fence", "code", "code", "fence", "text"]),
        ("```x``` y\nz\n", ["text", "text"]),
        ("<script>\nx\n</script>\ny\n", ["hidden", "hidden", "hidden", "text"]),
        ("<!-- x\ny -->\nz\n", ["hidden", "hidden", "text"]),
        ("<!-- x --> y\n", ["text"]),
        ("a [pause:1s] b\n", ["text", "pause", "text"]),
    ],
)
def test_a_piece_knows_the_kind_of_its_line(text: str, kinds: list[str]) -> None:
    assert [piece.kind for piece in pieces_of(text)] == kinds


def test_a_break_is_a_pause_where_markup_is_read() -> None:
    assert [piece.kind for piece in pieces_of("a <break/> b", markup=True)] == ["text", "pause", "text"]
    assert [piece.kind for piece in pieces_of("a <break/> b", markup=False)] == ["text"]


@pytest.mark.parametrize("char", ["x", "*", "[", "$", "<", "|", "\u4e2d", "\U0001f44d"])
def test_no_piece_is_longer_than_the_limit(char: str) -> None:
    assert max(len(piece.text) for piece in pieces_of(char * 5000)) <= MOST_CHARS + MOST_MARKUP_CHARS


def test_an_address_may_be_as_long_as_markup() -> None:
    address = "https://example.com/" + "x" * 400
    assert any(address in piece.text for piece in pieces_of(f"see the {address} or not"))
