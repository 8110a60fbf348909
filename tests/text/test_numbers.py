"""Stages phone_numbers, units and numbers: every line of their tables, and what the stages leave alone."""

import pytest
from vivavoce_text import STAGES, Profile, Stage, speakable
from vivavoce_text.grammar import _read
from vivavoce_text.number_words import READERS, cardinal, chinese, number, ordinal, pairs, roman_value, year
from vivavoce_text.profile import Context, Notes
from vivavoce_text.rules import Rule, rules_of
from vivavoce_text.stages import numbers, phone_numbers
from vivavoce_text.traced import Traced

TABLES = {
    "phone_numbers": (phone_numbers.apply, ("phone_numbers",)),
    "units": (numbers.apply_units, numbers.MEASURE_TABLES),
    "numbers": (numbers.apply, (*numbers.WORD_TABLES, *numbers.NUMBER_TABLES)),
}
ENGLISH_RULES = [(stage, rule) for stage, (_, names) in TABLES.items() for rule in rules_of("en", *names)]
OTHER_RULES = [(language, rule) for language in ("zh", "ja") for rule in rules_of(language, "numbers")]


def context(language: str) -> Context:
    return Context(language, Profile(frozenset(STAGES)), Notes(), starts_line=True, ends_line=True)


def read(written: str, *stages: Stage, language: str = "en") -> str:
    return speakable(written, language, Profile(frozenset(stages))).text


@pytest.mark.parametrize(("stage", "rule"), ENGLISH_RULES, ids=lambda value: str(getattr(value, "example", value)))
def test_the_example_of_each_english_rule(stage: str, rule: Rule) -> None:
    apply, _ = TABLES[stage]
    assert apply(Traced.source(rule.example), context("en")).text == rule.said


@pytest.mark.parametrize(("language", "rule"), OTHER_RULES, ids=lambda value: str(getattr(value, "example", value)))
def test_the_example_of_each_rule_before_the_grammar(language: str, rule: Rule) -> None:
    assert numbers.apply(Traced.source(rule.example), context(language)).text == rule.said


def test_each_rule_changes_its_example_or_protects_it() -> None:
    assert all((rule.example != rule.said) or not rule.reading for _, rule in [*ENGLISH_RULES, *OTHER_RULES])


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("0", "zero"),
        ("15", "fifteen"),
        ("21", "twenty-one"),
        ("100", "one hundred"),
        ("1,204", "one thousand two hundred four"),
        ("1000000", "one million"),
        (
            "1234567890123456789",
            "one two three four five six seven eight nine zero one two three four five six seven eight nine",
        ),
        ("007", "zero zero seven"),
    ],
)
def test_cardinals(written: str, words: str) -> None:
    assert cardinal(written) == words


def test_other_number_words() -> None:
    assert [ordinal(text) for text in ("1", "12", "20", "21", "103", "05")] == [
        *("first", "twelfth", "twentieth", "twenty-first", "one hundred third", "fifth")
    ]
    assert [year(text) for text in ("1999", "1905", "1900", "2000", "2008", "2024", "476", "05")] == [
        *("nineteen ninety-nine", "nineteen oh five", "nineteen hundred", "two thousand", "two thousand eight"),
        *("twenty twenty-four", "four seventy-six", "oh five"),
    ]
    assert [pairs(text) for text in ("66", "747", "1204", "500", "1000", "12345")] == [
        *("sixty-six", "seven forty-seven", "twelve oh four", "five hundred", "one thousand"),
        "one two three four five",
    ]
    assert [chinese(text) for text in ("1", "10", "12", "20", "100", "110", "222", "1001", "2005", "9000")] == [
        *("一", "十", "十二", "二十", "一百", "一百一十", "两百二十二", "一千零一", "两千零五", "九千")
    ]
    assert number("1,000.50") == "one thousand point five zero"
    assert [roman_value(text) for text in ("IV", "XIV", "XL", "MCMXCIV")] == [4, 14, 40, 1994]


@pytest.mark.parametrize(
    ("reader", "written"), [("roman", "IIX"), ("chinese", "12345"), ("ordinal", "0"), ("digits", "abc"), ("roman", "")]
)
def test_a_text_that_a_reader_cannot_read_is_an_error(reader: str, written: str) -> None:
    with pytest.raises(ValueError, match=r"numeral|ordinal|digit"):
        READERS[reader](written)


def test_units_alone_leave_other_numbers_and_words() -> None:
    assert read("It is 5 km and 3 cats for $5 m.", "units") == "It is five kilometers and 3 cats for $5 m."
    assert read("Route 66 W, a 5 g network.", "units") == "Route 66 W, a five G network."
    assert read("Wait. [pause:500ms] Go 10 ms on.", "units") == "Wait. [pause:500ms] Go ten milliseconds on."


def test_the_word_behind_a_single_letter_is_seen() -> None:
    assert read("We built a 5 g network here today.", "units") == "We built a five G network here today."


def test_numbers_alone_leave_units_and_telephone_numbers_aside() -> None:
    assert read("It is 5 km for $5 m.", "numbers") == "It is five km for five million dollars."


@pytest.mark.parametrize("written", ["On 2024-02-29 it was.", "It has 12 345 678 stars.", "Pages 100-2000 are here."])
def test_no_telephone_number_is_seen_in_a_date_a_sum_or_a_range(written: str) -> None:
    assert read(written, "phone_numbers") == written


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("(1991 - 1995)", "(nineteen ninety-one to nineteen ninety-five)"),
        ("the 1960s - 1970s", "the nineteen sixties to nineteen seventies"),
        ("at 1:1 - 2:1", "at one to one to two to one"),
        ("it fell - 5 degrees", "it fell minus five degrees"),
        ("a ² here", "a two here"),
        ("add ½½½ cup", "add one half one half one half cup"),
        ("(-12345678901)", "(minus twelve billion three hundred forty-five million six hundred seventy-eight thousand"
         " nine hundred one)"),
        ("it (+44 20 7946 0958) here", "it (plus four four, two zero, seven nine four six, zero nine five eight) here"),
        ("at 10:00-11:00", "at ten to eleven"),
        ("on 2020-01-01T10:00:00-05:00", "on January first, twenty twenty, ten oh oh minus five hours"),
    ],
)  # fmt: skip
def test_relatives_of_ranges_raised_digits_and_offsets(written: str, said: str) -> None:
    assert read(f"see {written}", "phone_numbers", "units", "numbers").lower() == f"see {said.lower()}"


def test_no_telephone_number_has_more_than_15_digits_or_stands_behind_a_minus() -> None:
    for written in ("-02079460958", "\u2212555-123-4567", "-+44 20 7946 0958", "1234567890123456"):
        assert read(f"it is {written}", "phone_numbers") == f"it is {written}"


def test_other_languages_keep_their_numbers() -> None:
    assert (
        read("Es kostet 5 km und $5.", "units", "numbers", "phone_numbers", language="de") == "Es kostet 5 km und $5."
    )


def test_words_keep_their_places_in_the_written_text() -> None:
    text = speakable("It cost $5.50 here.", "en", Profile(frozenset(["numbers"]))).traced
    at = text.text.index("dollars")
    assert text.text == "It cost five dollars and fifty cents here."
    assert text.span(at, at + 7) == (8, 13)
    at = text.text.index("here")
    assert text.span(at, at + 4) == (14, 18)


# ---- the grammar of Chinese and Japanese ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("language", "written", "spoken"),
    [
        ("zh", "我有3只猫。", "我有三只猫。"),
        ("zh", '他说"5个"。', '他说"五个"。'),
        ("zh", "那儿有100会儿。", "那儿有一百会儿。"),
        ("ja", "私は猫が3匹います。", "私は猫が三匹います。"),
        ("ja", "14:45に着く", "十四時四十五分に着く"),
        ("zh", "今天天气很好。", "今天天气很好。"),
    ],
)
def test_chinese_and_japanese_numbers(language: str, written: str, spoken: str) -> None:
    assert read(written, "numbers", language=language) == spoken


def test_only_the_number_is_changed_in_a_clause() -> None:
    text = speakable("我有3只猫。", "zh", Profile(frozenset(["numbers"]))).traced
    assert [text.span(at, at + 1) for at in range(len(text.text))] == [(at, at + 1) for at in range(6)]


def test_a_piece_of_many_digits_is_said_digit_by_digit() -> None:
    assert read("1 " * 70, "numbers", language="zh").replace(" ", "") == "一" * 70


def test_a_piece_of_many_numbers_among_signs_is_said_digit_by_digit() -> None:
    assert read("12+" * 20, "numbers", language="zh").startswith("\u5341\u4e8c")
    assert read("12+" * 21, "numbers", language="zh") == "\u4e00\u4e8c+" * 21


def test_in_a_piece_of_many_numbers_each_is_said_alone() -> None:
    assert read("1°v12 " * 40, "numbers").split()[:5] == ["one°v", "twelve", "one°v", "twelve", "one°v"]
    assert read("$5 " * 60, "numbers").startswith("Five dollars")
    assert read("$5 " * 70, "numbers").startswith("$five $five")
    assert read("98 99 100 101", "numbers") == "Ninety-eight ninety-nine one hundred one hundred one"


def test_a_text_that_the_grammar_fails_at_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(text: str) -> str:
        raise AssertionError(text)

    monkeypatch.setattr("vivavoce_text.grammar._grammar_of", lambda language: fail)
    assert read("有9.7只。", "numbers", language="zh") == "有9.7只。"
    monkeypatch.setattr("vivavoce_text.grammar._grammar_of", lambda language: lambda text: "")
    assert read("有9.8只。", "numbers", language="zh") == "有9.8只。"
    _read.cache_clear()
