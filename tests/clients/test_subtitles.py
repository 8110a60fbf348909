"""Subtitles from the times of words: where cues are cut, and both formats to the letter."""
# ruff: noqa: RUF001 - the signs of other scripts are meant

import itertools
import re
from collections.abc import Sequence

import pytest
from vivavoce_client import SpokenTurn, SpokenWord, srt, vtt
from vivavoce_client.subtitles import CUE_S, LINE_COLUMNS, LINES

CHARACTER_S = 0.06
TALE = (
    "It was a bright cold day in April, and the clocks were striking thirteen. Winston Smith, his chin nuzzled into "
    "his breast in an effort to escape the vile wind, slipped quickly through the glass doors of Victory Mansions, "
    "though not quickly enough to prevent a swirl of gritty dust from entering along with him."
)


def words_of(text: str, character_s: float = CHARACTER_S, unknown: Sequence[str] = ()) -> list[SpokenWord]:
    """The words of a text whose characters take equal times."""
    return [
        SpokenWord(found.group(), None, None, *found.span())
        if found.group() in unknown
        else SpokenWord(found.group(), found.start() * character_s, found.end() * character_s, *found.span())
        for found in re.finditer(r"\S+", text)
    ]


def cues_of(file: str) -> list[tuple[float, float, list[str]]]:
    """Start, end and lines of each cue of an SRT file."""
    cues = []
    for number, block in enumerate(file.removesuffix("\n\n").split("\n\n"), 1):
        index, times, *lines = block.split("\n")
        assert index == str(number)
        assert re.fullmatch(r"\d\d:[0-5]\d:[0-5]\d,\d{3} --> \d\d:[0-5]\d:[0-5]\d,\d{3}", times)
        start_s, end_s = (
            sum(float(part) * 60**at for at, part in enumerate(reversed(time.replace(",", ".").split(":"))))
            for time in times.split(" --> ")
        )
        cues.append((start_s, end_s, lines))
    return cues


def test_srt_to_the_letter() -> None:
    text = "Hello there, you.\nSo it goes on!"
    assert srt(words_of(text, 0.1), text) == (
        "1\n00:00:00,000 --> 00:00:01,700\nHello there, you.\n\n2\n00:00:01,800 --> 00:00:03,200\nSo it goes on!\n\n"
    )


def test_vtt_to_the_letter() -> None:
    text = "Hello there, you.\nSo it goes on!"
    assert vtt(words_of(text, 0.1), text) == (
        "WEBVTT\n\n"
        "00:00:00.000 --> 00:00:01.700\nHello <00:00:00.600>there, <00:00:01.300>you.\n\n"
        "00:00:01.800 --> 00:00:03.200\nSo <00:00:02.100>it <00:00:02.400>goes <00:00:02.900>on!\n\n"
    )


def test_nothing_was_said() -> None:
    assert (srt([]), vtt([])) == ("", "WEBVTT\n\n")


def test_cues_can_be_read_and_lose_nothing() -> None:
    cues = cues_of(srt(words_of(TALE), TALE))
    assert " ".join(line for *_, lines in cues for line in lines) == TALE
    assert all(len(lines) <= LINES and len(line) <= LINE_COLUMNS for *_, lines in cues for line in lines)
    assert all(0 < end_s - start_s <= CUE_S for start_s, end_s, _ in cues)
    assert all(cue[1] <= following[0] for cue, following in itertools.pairwise(cues))
    assert [lines[-1] for *_, lines in cues] == [
        "and the clocks were striking thirteen.",
        "breast in an effort to escape the vile",
        "glass doors of Victory Mansions,",
        "enough to prevent a swirl",
        "entering along with him.",
    ]


def test_slow_speech_is_cut_by_time() -> None:
    text = "one two three four five six seven eight"
    cues = cues_of(srt(words_of(text, 0.4), text))
    assert len(cues) == 3
    assert all(end_s - start_s <= CUE_S for start_s, end_s, _ in cues)


def test_a_cue_ends_at_a_pause_and_where_another_voice_begins() -> None:
    words = [SpokenWord("One", 0, 1.1, 0, 3), SpokenWord("two", 2.0, 3.2, 4, 7), SpokenWord("three", 3.3, 4.5, 8, 13)]
    assert [lines for *_, lines in cues_of(srt(words, "One two three"))] == [["One"], ["two three"]]
    turns = (SpokenTurn(0, "heart", 0, 3.2), SpokenTurn(1, "a<b & c", 3.3, 4.5))
    assert [lines for *_, lines in cues_of(srt(words, "One two three", turns))] == [["One"], ["two"], ["three"]]
    assert vtt(words, "One two three", turns).splitlines()[3::3] == [
        "<v heart>One",
        "<v heart>two",
        "<v a&lt;b &amp; c>three",
    ]


def test_short_sentences_share_a_cue_or_stay_a_second() -> None:
    text = "Yes! No. Perhaps."
    assert [lines for *_, lines in cues_of(srt(words_of(text), text))] == [[text]]
    alone = [SpokenWord("Yes!", 0.5, 0.8, 0, 4), SpokenWord("No.", 9, 9.3, 5, 8)]
    assert [cue[:2] for cue in cues_of(srt(alone, "Yes! No."))] == [(0.5, 1.5), (9, 10)]
    close = [SpokenWord("Yes!", 0.5, 0.6, 0, 4), SpokenWord("No.", 1.4, 1.5, 5, 8)]
    assert [cue[:2] for cue in cues_of(srt(close, "Yes! No."))] == [(0.5, 1.4), (1.4, 2.4)]


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("Doctors such as Dr. Smith and Prof. Jones came.", 1),
        ("He met Mr. J. R. Smith, i.e. the U.S. President.", 1),
        ("Wait till approx. noon etc. or longer.", 1),
        ("The 3. May. Then it rained, and it did not stop.", 2),
        ("It was in 1984. Then it ended, as all things do.", 2),
        ("He said (of Dr. Smith.) Then he went away at last.", 2),
        ("Then we left... Nobody saw us, and nobody cared.", 2),
        ("Was that all? indeed it was, and it was enough!", 2),
        ("Это г. Москва, т.е. столица и ул. Ленина.", 1),
    ],
)
def test_a_point_of_an_abbreviation_ends_no_cue(text: str, sentences: int) -> None:
    assert len(cues_of(srt(words_of(text, 0.1), text))) == sentences


@pytest.mark.parametrize(("pause_s", "cues"), [(0.1, 1), (0.3, 2)])
def test_behind_an_abbreviation_the_pause_tells_whether_a_sentence_ends(pause_s: float, cues: int) -> None:
    for text in ("It is Acme Inc. Nobody", "He came at 5 p.m. Nobody", "They live in the U.S. Nobody"):
        words = words_of(text, 0.1)
        begins_s = (words[-2].end_s or 0) + pause_s
        last = SpokenWord("Nobody", begins_s, begins_s + 1, words[-1].text_start, words[-1].text_end)
        assert len(cues_of(srt([*words[:-1], last], text))) == cues


def test_behind_a_title_no_sentence_ends_however_long_the_pause() -> None:
    words = [SpokenWord("Dr.", 0, 1.1, 0, 3), SpokenWord("Smith", 1.5, 2.6, 4, 9)]
    assert len(cues_of(srt(words, "Dr. Smith"))) == 1


def test_no_cue_outlasts_the_audio() -> None:
    text = "Yes. Nobody knew."
    words = [
        SpokenWord("Yes.", 0, 1.1, 0, 4),
        SpokenWord("Nobody", 1.4, 1.5, 5, 11),
        SpokenWord("knew.", 1.5, 1.7, 12, 17),
    ]
    assert [cue[1] for cue in cues_of(srt(words, text, audio_s=1.8))] == [1.1, 1.8]
    assert [cue[1] for cue in cues_of(srt(words, text))] == [1.1, 2.4]
    unknown = [*words[:1], SpokenWord("Nobody", None, None, 5, 11), SpokenWord("knew.", None, None, 12, 17)]
    assert [cue[1] for cue in cues_of(srt(unknown, text, audio_s=1.3))] == [1.1, 1.3]
    assert vtt(words, text, audio_s=1.8).splitlines()[5] == "00:00:01.400 --> 00:00:01.800"


def test_unknown_times_lie_between_known_neighbours() -> None:
    text = "Words known. Nobody knew it. Then known."
    words = words_of(text, 0.1, unknown=["Nobody", "knew", "it."])
    known = words_of(text, 0.1)
    cues = cues_of(srt(words, text))
    assert [lines for *_, lines in cues] == [["Words known."], ["Nobody knew it."], ["Then known."]]
    assert cues[1][:2] == pytest.approx((known[1].end_s, known[5].start_s))
    assert vtt(words, text).splitlines()[6] == "Nobody knew it.", "a word without times got a timestamp"


def test_without_any_times_characters_take_what_is_usual() -> None:
    text = "Nobody could tell that."
    words = words_of(text, unknown=text.split())
    assert cues_of(srt(words, text))[0][1] == pytest.approx(20 * CHARACTER_S)


def test_signs_come_from_the_text_and_markup_does_not() -> None:
    text = '"Stop," (she said) [pause:1s] **now**!'
    words = [SpokenWord(word, at, at + 0.9, text.index(word), text.index(word) + len(word)) for at, word in
             enumerate(("Stop", "she", "said", "now"))]  # fmt: skip
    assert srt(words, text).splitlines()[2] == '"Stop," (she said) now'
    assert srt(words, "another text").splitlines()[2] == "Stop she said now"


def test_what_a_player_would_read_as_markup_is_escaped() -> None:
    text = "a<b> & c --> d {\\an8} &amp; <00:00:01.000> x"
    body = "\n".join(vtt(words_of(text), text).splitlines()[3:])
    assert re.sub(r"<[\d:.]+>", "", body).split() == [
        *("a&lt;b&gt;", "&amp;", "c", "--&gt;", "d", "{\\an8}", "&amp;amp;", "&lt;00:00:01.000&gt;", "x")
    ]
    plain = "\n".join(line for *_, lines in cues_of(srt(words_of(text), text)) for line in lines)
    assert "-->" not in plain
    assert "<b>" not in plain
    assert "{\\" not in plain
    assert plain.replace("\u2060", "").replace("\n", " ") == text


def test_breaks_and_controls_inside_a_word_are_blanks() -> None:
    text = "New\r\n\r\nYork\x07 \u2028is"
    words = [SpokenWord(text[:11], 0, 1, 0, 11), SpokenWord("is", 1, 2, len(text) - 2, len(text))]
    assert srt(words, text).splitlines()[2] == "New York is"


def test_text_from_right_to_left_keeps_its_order() -> None:
    text = "\u200fשלום, עולם! 'مرحبا' (abc)."
    assert [lines for *_, lines in cues_of(srt(words_of(text), text))] == [[text]]


def test_text_without_blanks_is_cut_at_its_signs_and_by_its_width() -> None:
    text = "那是四月里一个晴朗寒冷的日子，时钟敲了十三下。温斯顿史密斯为了躲避恶风，把下巴贴在胸前，" + "长" * 30
    cues = cues_of(srt(words_of(text, 0.2), text))
    assert "".join(line for *_, lines in cues for line in lines) == text
    assert all(len(line) <= LINE_COLUMNS // 2 for *_, lines in cues for line in lines)
    assert cues[0][2] == ["那是四月里一个晴朗寒冷的日子，", "时钟敲了十三下。"]


def test_times_of_more_than_an_hour_and_of_no_length() -> None:
    words = [SpokenWord("late", 4000.0005, 4000.0005, 0, 4)]
    assert cues_of(srt(words, "late"))[0][:2] == pytest.approx((4000.001, 4001.001))
