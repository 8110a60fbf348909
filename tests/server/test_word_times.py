"""Words of a written text, from those that an engine spoke: their places, their times, and their characters."""

import math
import random
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from vivavoce_engine import WORD_BREAK, AudioChunk, WordTime
from vivavoce_server.said import PartTimes
from vivavoce_server.word_times import Alignment, CharacterTimes, Word, WordJoiner, WordMap, spoken_times, written_times
from vivavoce_text import PAUSE_TAG, STAGES, Profile, Reading, Traced, speakable

from tests.support.scripts import parts_of

WORDS_PROFILE = Profile(stages=frozenset(STAGES))
PLAIN = Profile(stages=frozenset({"clean"}))
FRAME_S = 0.08
WORD = re.compile(r"\S+")


def words_of(text: str) -> list[WordTime]:
    """Every spoken word of a part's text, a second for each character."""
    bounds = [0, *(each.end() for each in WORD_BREAK.finditer(text)), len(text)]
    runs = [each for bound in pairwise(bounds) for each in WORD.finditer(text, *bound)]
    return [WordTime(*word.span(), float(word.start()), float(word.end())) for word in runs]


def joined(written: str, profile: Profile = WORDS_PROFILE, most_chars: int = 1000) -> list[Word]:
    """The written words, with times in which the parts follow each other without a pause."""
    said = speakable(written, "en", profile).traced
    texts = [part for part in parts_of(said.text, "english", most_chars) if isinstance(part, str)]
    places = WordMap.of(written, said, texts)
    joiner = WordJoiner(places)
    done: list[Word] = []
    for number, text in enumerate(texts):
        for word in words_of(text):
            done += joiner.add(number, word)
    return done + joiner.finish()


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("Hello, this is Vivavoce.", ["Hello", "this", "is", "Vivavoce"]),
        ("It costs $5.50, no more!", ["It", "costs", "$5.50", "no", "more"]),
        ("Walk 5 km today.", ["Walk", "5 km", "today"]),
        ("A **bold** [link](https://example.com/a) here", ["A", "bold", "link", "here"]),
        ("The state-of-the-art thing: don't.", ["The", "state-of-the-art", "thing", "don't"]),
        ("See example.com now", ["See", "example.com", "now"]),
        ("Yes\u2014no \u2026 maybe", ["Yes", "no", "maybe"]),
        ("One. [pause:1s] Two. ... !", ["One", "Two"]),
        ("One[pause:1s]two<break/>three", ["One", "two", "three"]),
        ("  At 6:40 on May 5, 2026 the FBI came. ", ["At", "6:40", "on", "May 5, 2026", "the", "FBI", "came"]),
        ("<p>One.</p><p>Two.</p>three<br>four", ["One", "Two", "three", "four"]),
        ("<p>One.</p>&amp; two <b>&amp;</b> a ] </p> &amp; <p>b", ["One", "&amp;", "two", "&amp;", "a", "&amp;", "b"]),
        ("one|two&nbsp;three", ["one", "two", "three"]),
        ("\u2022 one\u2022two", ["one", "two"]),
        ("hi!there?yes,so;be it", ["hi", "there", "yes", "so", "be", "it"]),
        ("Hi\U0001f600there \u201cone\u201d\u201ctwo\u201d", ["Hi", "there", "one", "two"]),
        ("A&amp;B, R&D, and/or 1,000 word(s) it's", ["A&amp;B", "R&D", "and/or", "1,000", "word(s)", "it's"]),
        ("caf\u00e9 (na\u00efve) \u201cquoted\u201d", ["caf\u00e9", "na\u00efve", "quoted"]),
    ],
)
def test_words_are_those_that_were_written(written: str, words: list[str]) -> None:
    found = joined(written)
    assert [word.text for word in found] == words
    for word in found:
        assert written[word.start : word.end] == word.text


def test_a_text_that_is_read_as_it_is_keeps_signs_of_money() -> None:
    assert [word.text for word in joined("Pay $5.50 (or 5%) now.", PLAIN)] == ["Pay", "$5.50", "or", "5%", "now"]


def test_words_of_a_number_are_one_word_from_the_first_to_the_last() -> None:
    word = joined("It costs $5.50.")[-1]
    spoken = "It costs five dollars and fifty cents."
    assert (word.start_s, word.end_s) == (float(spoken.index("five")), float(len(spoken)))
    assert [spoken[each.start : each.end] for each in word.spoken] == ["five", "dollars", "and", "fifty", "cents"]
    assert word.fields() == {"word": "$5.50", "start": 9.0, "end": 38.0, "text_start": 9, "text_end": 14}


def test_words_of_a_number_in_two_parts_are_one_word() -> None:
    written = "It costs $5.50 there"
    for most_chars in range(6, 30):
        assert [word.text for word in joined(written, most_chars=most_chars)] == ["It", "costs", "$5.50", "there"]


def test_a_script_without_blanks_keeps_the_words_that_the_engine_tells_apart() -> None:
    written = "\u4f60\u597d\u4e16\u754c"
    places = WordMap.of(written, Traced.source(written), [written])
    joiner = WordJoiner(places)
    done = joiner.add(0, WordTime(0, 2, 0.0, 0.4)) + joiner.add(0, WordTime(2, 4, 0.4, 0.8)) + joiner.finish()
    assert [word.text for word in done] == ["\u4f60\u597d", "\u4e16\u754c"]


def test_a_word_leaves_once_nothing_can_join_it() -> None:
    written = "It costs $5.50 now"
    said = speakable(written, "en", WORDS_PROFILE).traced
    joiner = WordJoiner(WordMap.of(written, said, [said.text]))
    left = [[word.text for word in joiner.add(0, word)] for word in words_of(said.text)]
    assert left == [["It"], ["costs"], [], [], [], [], ["$5.50"], ["now"]]


def test_a_word_without_a_known_time_makes_the_whole_word_unknown() -> None:
    written = "now $5 yes"
    said = speakable(written, "en", WORDS_PROFILE).traced
    assert said.text == "now five dollars yes"
    joiner = WordJoiner(WordMap.of(written, said, [said.text]))
    times = [
        WordTime(0, 3, 0.0, 1.0),
        WordTime(4, 8, 1.0, 2.0),
        WordTime(9, 16, None, None),
        WordTime(17, 20, 3.0, 4.0),
    ]
    words = [word for time in times for word in joiner.add(0, time)]
    assert [(word.text, word.start_s, word.end_s) for word in words] == [
        ("now", 0.0, 1.0),
        ("$5", None, None),
        ("yes", 3.0, 4.0),
    ]


@pytest.mark.parametrize("seed", range(20))
def test_live_text_has_the_same_words(seed: int) -> None:
    rng = random.Random(seed)
    written = " ".join(
        rng.choices(["Hello,", "$5.50", "3 km", "**so**", "[pause:1s]", "FBI", "a-b", "yes.", "6:40"], k=30)
    )
    places = WordMap()
    joiner = WordJoiner(places)
    reading = Reading("en", WORDS_PROFILE)
    done: list[Word] = []
    given = ""

    def hear(pieces: list[Traced]) -> None:
        nonlocal given
        for piece in pieces:
            if not PAUSE_TAG.fullmatch(piece.text):
                places.append(piece)
                places.say(piece.text)
                given += piece.text

    places.begin_part()
    at = heard = 0
    while at < len(written):
        fragment = written[at : at + rng.randint(1, 9)]
        at += len(fragment)
        places.written += fragment
        hear(reading.append(fragment))
        for word in [word for word in words_of(given)[:-1] if word.start >= heard]:
            done += joiner.add(0, word)
            heard = word.end
        done += joiner.settled()
    hear(reading.close())
    places.close()
    for word in [word for word in words_of(given) if word.start >= heard]:
        done += joiner.add(0, word)
    done += joiner.finish()
    assert [(word.text, word.start, word.end) for word in done] == [
        (word.text, word.start, word.end) for word in joined(written)
    ]


# ---- times ----------------------------------------------------------------------------------------------------


def chunk(frames: int, *words: WordTime) -> AudioChunk:
    return AudioChunk(np.zeros(frames * 8, np.float32), np.zeros((frames, 1), np.int16), words)


def timed_words(said: Traced) -> list[WordTime]:
    """A frame for each spoken word."""
    words = words_of(said.text)
    return [replace(word, start_s=at * FRAME_S, end_s=(at + 1) * FRAME_S) for at, word in enumerate(words)]


async def speak(times: PartTimes, chunks: list[AudioChunk], dropped_s: float = 0.0, *, is_cut: bool = False) -> None:
    """Plays a part, of which the first `dropped_s` are dropped, like silence at its beginning."""

    async def given() -> AsyncIterator[AudioChunk]:
        for each in chunks:
            yield each

    times.begin(is_speech=True)
    async for each in times.noted(given()):
        seconds = each.frames * FRAME_S
        heard_s, dropped_s = max(0.0, seconds - dropped_s), max(0.0, dropped_s - seconds)
        times.add(heard_s)
    times.end(is_cut=is_cut)


def two_parts(speed: float = 1.0) -> tuple[str, PartTimes]:
    written = "One two. [pause:1s] Three four."
    places = WordMap.of(written, Traced.source(written), ["One two.", " Three four."])
    return written, PartTimes(speed, FRAME_S, places)


FIRST = [chunk(5, WordTime(0, 3, 0.2, 0.4)), chunk(5, WordTime(4, 8, 0.4, 0.8))]
SECOND = [chunk(10, WordTime(1, 6, 0.1, 0.5), WordTime(7, 12, 0.5, 0.8))]


async def play(times: PartTimes, dropped_s: float = 0.0) -> None:
    await speak(times, FIRST, dropped_s)
    times.begin(is_speech=False)
    times.add(1.0)
    times.end()
    await speak(times, SECOND)


@pytest.mark.parametrize("speed", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("dropped_s", [0.0, 0.16])
async def test_times_are_those_of_the_delivered_audio(speed: float, dropped_s: float) -> None:
    written, times = two_parts(speed)
    await play(times, dropped_s)
    words = times.take_words()
    assert [word.text for word in words] == ["One", "two", "Three", "four"]
    expected = [(0.2, 0.4), (0.4, 0.8), (1.9, 2.3), (2.3, 2.6)]
    for word, (start_s, end_s) in zip(words, expected, strict=True):
        assert word.start_s == pytest.approx((start_s - dropped_s) / speed)
        assert word.end_s == pytest.approx((end_s - dropped_s) / speed)
        assert written[word.start : word.end] == word.text


async def test_a_word_waits_for_the_audio_in_which_it_begins() -> None:
    _, times = two_parts()
    await play(times)
    assert [word.text for word in times.take_words(0.3)] == ["One"]
    assert times.take_words(0.3) == []
    assert [word.text for word in times.take_words(2.0, held_s=0.35)] == ["two"]
    assert [word.text for word in times.take_words(2.0)] == ["Three"]
    assert [word.text for word in times.take_words()] == ["four"]


async def test_words_behind_the_end_of_speech_that_was_cut_off_are_left_out() -> None:
    _, times = two_parts()
    await speak(times, [chunk(6, WordTime(0, 3, 0.1, 0.4))], is_cut=True)
    assert [(word.text, word.start_s, word.end_s) for word in times.take_words()] == [("One", 0.1, 0.4)]
    said = times.said("One two. [pause:1s] Three four.", [8, 19, 31])
    assert (said.text, said.begun) == ("One", " two.")
    await speak(times, SECOND)
    assert [word.text for word in times.take_words()] == ["Three", "four"]
    assert times.said("One two. [pause:1s] Three four.", [8, 31]).text == "One", "what is said is told up to the cut"


@pytest.mark.parametrize(("spoken", "words"), [(2, ["now"]), (5, ["now"]), (6, ["now", "$5.50"])])
async def test_a_written_word_is_told_only_if_all_that_it_says_was_said(spoken: int, words: list[str]) -> None:
    written = "now $5.50 yes"
    said = speakable(written, "en", WORDS_PROFILE).traced
    assert said.text == "now five dollars and fifty cents yes"
    times = PartTimes(1.0, FRAME_S, WordMap.of(written, said, [said.text]))
    await speak(times, [chunk(spoken, *timed_words(said)[:spoken])], is_cut=True)
    assert [word.text for word in times.take_words()] == words
    left = times.said(written, [len(written)])
    assert (left.text, left.begun) == (("now", " $5.50") if len(words) == 1 else ("now $5.50", " yes"))


MARKED = [
    ("[link](https://a.example/b) here", "[link](https://a.example/b)", " here"),
    ('[link](https://a.example "b c") here', '[link](https://a.example "b c")', " here"),
    ('**One** <font color="red">two</font>', "**One**", ' <font color="red">two</font>'),
    ("<p>One.</p><p>Two.</p>", "<p>One.", "</p><p>Two.</p>"),
    ("One, **two** three", "One,", " **two**"),
    ("One [link](https://a.example/b) two", "One", " [link](https://a.example/b)"),
    ("One (two) three", "One", " (two)"),
    ("$5.50, no", "$5.50,", " no"),
    ("One \u2014 two", "One \u2014 ", "two"),
    ("One... two", "One...", " two"),
    ("One, two,three;four", "One,", " two,"),
    ("hi!there?yes", "hi!", "there?"),
    ("One", "One", ""),
]


@pytest.mark.parametrize(("written", "text", "begun"), MARKED)
async def test_said_text_is_not_cut_in_markup(written: str, text: str, begun: str) -> None:
    said = speakable(written, "en", WORDS_PROFILE).traced
    times = PartTimes(1.0, FRAME_S, WordMap.of(written, said, [said.text]))
    spoken = 5 if written.startswith("$") else 1
    await speak(times, [chunk(spoken, *timed_words(said)[:spoken])], is_cut=True)
    found = times.said(written, [len(written)])
    assert (found.text, found.begun) == (text, begun)


@pytest.mark.parametrize(
    ("sent_s", "text", "begun"),
    [
        (0.1, "", ""),
        (0.3, "", "One"),
        (0.41, "One", " two."),
        (0.8, "One two.", ""),
        (1.85, "One two. [pause:1s]", ""),
        (2.0, "One two. [pause:1s]", " Three"),
        (2.31, "One two. [pause:1s] Three", " four."),
        (math.inf, "One two. [pause:1s] Three four.", ""),
    ],
)
async def test_said_text_ends_with_a_word(sent_s: float, text: str, begun: str) -> None:
    written, times = two_parts()
    await play(times)
    said = times.said(written, [8, 19, len(written)], sent_s)
    assert (said.text, said.begun, said.chars) == (text, begun, len(text))


async def test_the_last_said_part_ends_with_its_word() -> None:
    written, times = two_parts()
    await play(times)
    said = times.said(written, [8, 19, len(written)], 2.31)
    assert said.parts[-1].text == " Three"
    assert said.parts[-1].end_s == pytest.approx(2.3)


# ---- characters -----------------------------------------------------------------------------------------------


def test_characters_share_the_time_of_their_word() -> None:
    words = [WordTime(1, 3, 1.0, 2.0), WordTime(4, 5, 3.0, 3.5)]
    times = CharacterTimes()
    text = "(ab c)"
    first = times.take(text, words[:1])
    assert first == Alignment(("(", "a", "b"), (0.0, 1.0, 1.5), (1.0, 1.5, 2.0))
    assert times.take(text, []) == Alignment()
    assert times.take(text, words[1:]) == Alignment((" ", "c"), (2.0, 3.0), (3.0, 3.5))
    assert times.finish(text, 4.0) == Alignment((")",), (3.5,), (4.0,))


def test_characters_of_an_unknown_word_lie_between_known_ones() -> None:
    times = CharacterTimes()
    made = times.take("a b c", [WordTime(0, 1, 0.0, 1.0), WordTime(2, 3, None, None), WordTime(4, 5, 4.0, 5.0)])
    assert made == Alignment(tuple("a b c"), (0.0, 1.0, 2.0, 3.0, 4.0), (1.0, 2.0, 3.0, 4.0, 5.0))


def test_both_texts_have_all_of_their_characters() -> None:
    written = "It costs $5.50, no more!"
    said = speakable(written, "en", WORDS_PROFILE).traced.text
    words = joined(written)
    for text, times in ((written, written_times(words)), (said, spoken_times(words))):
        made = CharacterTimes()
        pieces = [made.take(text, [word]) for word in times] + [made.finish(text, 100.0)]
        assert "".join(char for piece in pieces for char in piece.characters) == text
        starts = [start for piece in pieces for start in piece.starts_s]
        ends = [end for piece in pieces for end in piece.ends_s]
        assert starts == sorted(starts)
        assert starts[1:] == ends[:-1]


def test_a_pause_tag_is_a_blank_in_what_is_said() -> None:
    said = speakable("One[pause:1s]two. [pause:1s] Three", "en", WORDS_PROFILE).traced
    places = WordMap.of("One[pause:1s]two. [pause:1s] Three", said, ["One", "two. ", " Three"])
    assert places.spoken == "One two. Three"
