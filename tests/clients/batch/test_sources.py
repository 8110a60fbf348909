"""Files of lines and books in Markdown: what is read of them, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
from vivavoce_client.batch.lines import Line, slug
from vivavoce_client.batch.prose import PIECE_CHARS, Block, Chapter, chapter_level, pieces_of
from vivavoce_client.batch.sources import read_source
from vivavoce_client.input_files import BadFile


def lines_of(path: Path, content: str | bytes) -> list[Line]:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return [line for track in read_source(str(path), 1).tracks for line in track.lines]


def test_each_row_of_a_text_is_a_line(tmp_path: Path) -> None:
    lines = lines_of(tmp_path / "a.txt", "\ufeffOne.\r\n\r\n  Two.\rThree\u2028four.")
    assert [(line.text, line.place) for line in lines] == [
        ("One.", "a.txt, line 1"),
        ("Two.", "a.txt, line 3"),
        ("Three\u2028four.", "a.txt, line 4"),
    ]


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_a_table_has_voices_by_column(tmp_path: Path, delimiter: str) -> None:
    rows = [
        ("Voice", "TEXT", "seed", "speed"),
        ("heart", "One.", "7", "1.5"),
        ("", "Two.", "", ""),
        ("x", "", "1", "1"),
    ]
    lines = lines_of(tmp_path / "a.csv", "\n".join(delimiter.join(row) for row in rows))
    assert [(line.text, dict(line.fields), line.place) for line in lines] == [
        ("One.", {"voice": "heart", "seed": 7, "speed": 1.5}, "a.csv, line 2"),
        ("Two.", {}, "a.csv, line 3"),
    ]


def test_a_cell_may_have_a_break_and_columns_that_say_nothing_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('id,text,\n1,"One,\ntwo.",\n2,Three.,\n')
    source = read_source(str(path), 1)
    assert [(track.name, track.lines[0].text) for track in source.tracks] == [
        ("0001", "One,\ntwo."),
        ("0002", "Three."),
    ]
    assert source.notes == ("columns that are not used: id",)
    assert not source.is_book


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b\n1,2\n", "has no text"),
        ("text,input\n1,2\n", "has two texts"),
        ("text,voise\nOne.,heart\n", "has a column 'voise'; did you mean voice?"),
        ("text,seed\nOne.,1.5\n", "line 2: seed is '1.5', not a whole number"),
        ("text,speed\nOne.,fast\n", "line 2: speed is 'fast', not a number"),
        ("text,speed\nOne.,nan\n", "line 2: speed is 'nan', not a number"),
        ("text,speed\nOne.,-inf\n", "line 2: speed is '-inf', not a number"),
        ("voice,text,Voice\nheart,One.,michael\n", "has the column 'voice' twice"),
        ("text,seed\nOne.\n", "line 2 has not as many cells"),
        ("text,seed\nOne.,1,2\n", "line 2 has not as many cells"),
        ('text\n"One', "line 2: unexpected end of data"),
        ("text\n\n", "has nothing to say"),
        ("", "has no text"),
        (b"text\n\xff\n", "is not UTF-8"),
    ],
)
def test_a_table_that_is_none_is_refused(tmp_path: Path, content: str | bytes, message: str) -> None:
    with pytest.raises(BadFile, match=message.replace("?", r"\?")):
        lines_of(tmp_path / "a.csv", content)


def test_json_lines_have_fields_of_a_request(tmp_path: Path) -> None:
    content = (
        '{"text": "One\u2028.", "voice": "heart", "temperature": 0.5}\n\n{"input": "Two.", "seed": null}\n{"text": " "}'
    )
    assert [(line.text, dict(line.fields), line.place) for line in lines_of(tmp_path / "a.jsonl", content)] == [
        ("One\u2028.", {"voice": "heart", "temperature": 0.5}, "a.jsonl, line 1"),
        ("Two.", {}, "a.jsonl, line 3"),
    ]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{", "line 2 is not JSON"),
        ("[" * 100_000, "line 2 is not JSON"),
        ('{"text": "One.", "speed": 1e999}', "line 2 is not JSON"),
        ('["One."]', "line 2 is no object such as"),
        ('{"text": "One.", "speed": NaN}', "line 2 is not JSON: NaN is no number"),
        ('{"text": "One \\ud800."}', "line 2 is not JSON: .* surrogates not allowed"),
        ('{"text": 1}', "line 2: text is 1, not a text"),
        ('{"voice": "heart"}', "line 2 has no text"),
        ('{"text": "One.", "voise": "heart"}', "a request has no field 'voise'; did you mean voice"),
        ('{"text": "One.", "response_format": "mp3"}', "response_format is the same for all lines; give --format"),
    ],
)
def test_json_lines_that_are_none_are_refused(tmp_path: Path, row: str, message: str) -> None:
    with pytest.raises(BadFile, match=message):
        lines_of(tmp_path / "a.jsonl", f'{{"text": "One."}}\n{row}\n')


def test_cues_have_their_text_without_markup_and_their_times(tmp_path: Path) -> None:
    content = (
        "\ufeff1\r\n00:00:01,500 --> 00:00:02,000 X1:40\r\n<i>Hello</i>\r\n{\\an8}there.\r\n\r\n"
        "2\r\n01:01:01.25 --> 01:01:03,000\r\nBlank\r\n\r\nline\r\n\r\n\r\n"
        "3\r\n01:02:00,000 --> 01:02:01,000\r\n<b></b>\r\n\r\n"
        "01:03:00,000 --> 01:03:01,000\r\n42\r\nis it"
    )
    assert [(line.text, line.start_s, line.place) for line in lines_of(tmp_path / "a.srt", content)] == [
        ("Hello there.", 1.5, "a.srt, line 2"),
        ("Blank line", 3661.25, "a.srt, line 7"),
        ("42 is it", 3780.0, "a.srt, line 17"),
    ]


@pytest.mark.parametrize("content", ["Hello.\n", "WEBVTT\n\n00:00:01.000 --> 00:00:02.000\nHello.\n", "\n"])
def test_subtitles_of_another_format_are_refused(tmp_path: Path, content: str) -> None:
    with pytest.raises(BadFile, match=r"no cue with times|not the number of a cue|nothing to say"):
        lines_of(tmp_path / "a.srt", content)


@pytest.mark.parametrize("hours", ["9999", "9" * 5000])
def test_a_cue_of_no_film_is_refused(tmp_path: Path, hours: str) -> None:
    """The whole would be silent up to it."""
    with pytest.raises(BadFile, match="no cue with times"):
        lines_of(tmp_path / "a.srt", f"1\n{hours}:00:00,000 --> {hours}:00:01,000\nHello.\n")


def test_a_suffix_tells_what_is_in_a_file(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=r"a\.docx has none of the suffixes .*\.csv, \.txt, \.srt, \.jsonl, \.epub"):
        lines_of(tmp_path / "a.docx", "One.")
    with pytest.raises(BadFile, match="cannot be read"):
        read_source(str(tmp_path / "missing.txt"), 1)


# ---- books --------------------------------------------------------------------------------------------------------

BOOK = """\
---
title: Not read
---
# The Book

By *somebody*.

## One: the [storm](http://example.com)

It   rained,
and `code` *fell*.

* * *

- first
- second

```
not read
```

<div>not read</div>

| a | b |
|---|---|
| c | d |

### A section

![picture](x.png)
More.

## Two?

The end.
"""


def book_of(path: Path, content: str, depth: int = 1) -> list[tuple[str, str | None, list[str]]]:
    path.write_text(content, encoding="utf-8")
    source = read_source(str(path), depth)
    assert source.is_book
    return [(track.name, track.title, [line.text for line in track.lines]) for track in source.tracks]


def test_a_markdown_book_has_a_chapter_for_each_heading_of_the_highest_level_that_comes_again(tmp_path: Path) -> None:
    assert book_of(tmp_path / "a.md", BOOK) == [
        ("01-the-book", "The Book", ["The Book.", "By somebody."]),
        (
            "02-one-the-storm",
            "One: the storm",
            [
                "One: the storm.",
                "It rained, and code fell.\n\nfirst\n\nsecond\n\na\n\nb\n\nc\n\nd",
                "A section.",
                "More.",
            ],
        ),
        ("03-two", "Two?", ["Two?", "The end."]),
    ]


def test_chapters_may_begin_at_lower_headings(tmp_path: Path) -> None:
    assert [title for _, title, _ in book_of(tmp_path / "a.md", BOOK, depth=2)] == [
        "The Book",
        "One: the storm",
        "A section",
        "Two?",
    ]


def test_a_book_without_headings_is_one_chapter(tmp_path: Path) -> None:
    assert book_of(tmp_path / "My tale.markdown", "One.\n\nTwo.") == [("01-my-tale", "My tale", ["One.\n\nTwo."])]


@pytest.mark.parametrize(
    ("levels", "depth", "level"),
    [
        ([], 1, 0),
        ([2, 2], 1, 2),
        ([1, 2, 2, 3], 1, 2),
        ([1, 2, 2, 3], 2, 3),
        ([1, 2, 2], 9, 2),
        ([1], 1, 1),
        ([1, 3, 1], 1, 1),
    ],
)
def test_the_level_of_chapters(levels: list[int], depth: int, level: int) -> None:
    assert chapter_level(levels, depth) == level


@pytest.mark.parametrize(
    "text",
    [
        " ".join(f"Sentence number {number} of a long paragraph, which goes on." for number in range(200)),
        "长句子没有空格。" * 900,
        "x" * 9000,
        ", ".join(f"word{number}" for number in range(2000)),
    ],
)
def test_a_long_paragraph_is_cut_and_loses_nothing(text: str) -> None:
    ((_, pieces),) = pieces_of([Chapter("t", [Block(text)])])
    assert "".join("".join(pieces).split()) == "".join(text.split())
    assert all(0 < len(piece) <= PIECE_CHARS for piece in pieces)
    assert len(pieces) < 2 * len(text) / PIECE_CHARS + 1
    if "Sentence" in text:
        assert all(piece.endswith(".") for piece in pieces)


def test_short_paragraphs_share_a_piece() -> None:
    blocks: list[Any] = [
        Block("a" * 900),
        Block("b" * 900),
        Block("c" * 900),
        Block("***"),
        Block("Title", 2),
        Block("d"),
    ]
    ((_, pieces),) = pieces_of([Chapter("t", blocks), Chapter("empty", [Block("* * *")])])
    assert pieces == ["a" * 900 + "\n\n" + "b" * 900, "c" * 900, "Title.", "d"]


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("The Storm!", "the-storm"),
        ("../../etc/passwd", "etc-passwd"),
        ("C:\\CON\0.txt", "c-con-txt"),
        ("第一章 风暴", "第一章-风暴"),
        ("\uff21\u202e_b", "a-b"),
        ("x" * 99, "x" * 40),
        ("...", ""),
    ],
)
def test_a_title_in_a_name_is_letters_and_figures(title: str, name: str) -> None:
    assert slug(title) == name
