"""Pieces of a text: the same for every fragmentation, and cut where no rule of reading looks across."""

import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vivavoce_text import STAGES, VOICE_TAG, Profile, Reading, Traced, speakable, voice_of_tag
from vivavoce_text.pieces import MOST_CHARS, MOST_MARKUP_CHARS, Piece, Pieces

from tests.text.marks import ANY_VOICE, ASCII_VOICE, OFF
from tests.text.pairs import pairs

MARKED = (
    "a `b c` $x y$ \\(a b\\) $$ q r $$ <!-- a > b --> [l k](u v) **one two** end of it all",
    "<script>\nvar x = 1;\n</script> after\n<!--\nmany words here\n--> more",
    "```py\nx = 1\n```\nAfter ```that``` comes\n~~~\n```\n~~~\nthe end",
    "see http://example.com/" + "path/" * 80 + " and go on",
    "One. [pause:2s] Two. <break time='1s'/> Three",
    "One,[voice:heart(2)+emma (1)] two $ a [voice: my own voice of many words ]*b* [voice:no tag of `any kind` Three",
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
        "[voice:a]",
        "[voice: ",
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
        ("a [voice:heart] b\n", ["text", "voice", "text"]),
        ("[VOICE: heart(2)+my-voice ][voice:]b\n", ["voice", "voice", "text"]),
        ("[voice:two\nlines] [voice heart]\n", ["text", "text"]),
        (f"[voice:{'x' * 257}]\n", ["text"]),
        ("```\n[voice:heart] x\n```\n", ["fence", "voice", "code", "fence"]),
        ('"[voice:heart]x" `[voice:emma]`\n', ["text", "voice", "text", "voice", "text"]),
        ("\\[voice:heart] $[voice:emma]$\n", ["text", "voice", "text", "voice", "text"]),
    ],
)
def test_a_piece_knows_the_kind_of_its_line(text: str, kinds: list[str]) -> None:
    assert [piece.kind for piece in pieces_of(text)] == kinds


def test_a_voice_tag_is_kept_whole_wherever_it_stands() -> None:
    name = "one two, three. Four five * six ` seven $ eight \u4e2d\u6587\u4e2d\u6587\u4e2d\u6587\u4e2d\u6587 (2)+nine"
    tag = f"[voice:{name.ljust(256, 'x')}]"
    for before in (
        "",
        "so it was ",
        "*so it was ",
        "`so ",
        "$",
        "word " * 39,
        "x" * 190,
        "*" + "word " * 95,
        "\u4e2d" * 30,
    ):
        assert tag in [piece.text for piece in pieces_of(f"{before}{tag} and more") if piece.kind == "voice"]


def test_voice_tags_may_be_text() -> None:
    pieces = Pieces(markup=True, voice_tags=False)
    assert {piece.kind for piece in [*pieces.append("a [voice:heart] b\n"), *pieces.close()]} == {"text"}


@pytest.mark.parametrize("profile", [ASCII_VOICE, ANY_VOICE, OFF], ids=["ascii", "any", "off"])
def test_no_stage_changes_a_voice_tag(profile: Profile) -> None:
    text = "Pay $5[voice:Z\u00f6e_2(5)+FBI]7 to me, 3 [voice: x ] km -- [voice:a]"
    said = speakable(text, "en", profile).text
    assert VOICE_TAG.findall(said) == ["Z\u00f6e_2(5)+FBI", " x ", "a"]
    assert [voice_of_tag(tag[0]) for tag in VOICE_TAG.finditer(said)] == ["Z\u00f6e_2(5)+FBI", "x", "a"]


def test_words_on_both_sides_of_a_voice_tag_are_read_alone() -> None:
    said = speakable("It costs $5[voice:a]50 or 3 [voice:b]km.", "en", Profile(frozenset(STAGES))).text
    assert said == "It costs five dollars[voice:a]fifty or three [voice:b]km."


def test_a_break_is_a_pause_where_markup_is_read() -> None:
    assert [piece.kind for piece in pieces_of("a <break/> b", markup=True)] == ["text", "pause", "text"]
    assert [piece.kind for piece in pieces_of("a <break/> b", markup=False)] == ["text"]


@pytest.mark.parametrize("char", ["x", "*", "[", "$", "<", "|", "\u4e2d", "\U0001f44d"])
def test_no_piece_is_longer_than_the_limit(char: str) -> None:
    assert max(len(piece.text) for piece in pieces_of(char * 5000)) <= MOST_CHARS + MOST_MARKUP_CHARS


@pytest.mark.parametrize("text", ["[v", "[voice:", "[voice:a ", "[voice:a", "x [voice: "])
def test_no_piece_with_a_begun_voice_tag_is_longer_than_the_limit(text: str) -> None:
    assert max(len(piece.text) for piece in pieces_of(text * 2000)) <= MOST_CHARS + MOST_MARKUP_CHARS


def test_an_address_may_be_as_long_as_markup() -> None:
    address = "https://example.com/" + "x" * 400
    assert any(address in piece.text for piece in pieces_of(f"see the {address} or not"))
