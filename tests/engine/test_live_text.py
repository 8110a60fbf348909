"""Any fragmentation of a text commits the ids of the whole text."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vivavoce_engine import Rejected
from vivavoce_engine.text.prompt import Tokenizer
from vivavoce_engine.text.stable import MAX_HELD_CHARS, OFTEN_SCANNED_CHARS, StableText
from vivavoce_engine.text.words import Span
from vivavoce_voice import CHECKPOINT

TRICKY = [
    *"ab 1'\n\r\t.,!?-<>|A'sS'reRE",
    *"\u00e9\u2019\u4f60\u597d\uff0c\u3002e\u0301\u0327\u0323\u0307q",  # letters, CJK, combining marks
    *"\ud55c\u1112\u1161\u11ab\u09c7\u09be",  # Hangul and Bengali that compose
    *"\u00a0\u2028\u3000\x1c",  # blanks
]


@cache
def shipped() -> Tokenizer:
    return Tokenizer(CHECKPOINT)


@pytest.fixture
def tokenizer() -> Tokenizer:
    return shipped()


def committed(tokenizer: Tokenizer, fragments: list[str]) -> list[int]:
    stable = StableText(tokenizer)
    ids = [token for fragment in fragments for token in stable.append(fragment)]
    return ids + stable.close()


@settings(max_examples=400, deadline=None)
@given(st.lists(st.text(st.sampled_from(TRICKY), max_size=6), max_size=12))
def test_fragments_of_tricky_text_give_the_ids_of_the_whole(fragments: list[str]) -> None:
    tokenizer = shipped()
    assert committed(tokenizer, fragments) == tokenizer.encode("".join(fragments))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(max_size=5), max_size=10))
def test_fragments_of_any_text_give_the_ids_of_the_whole(fragments: list[str]) -> None:
    tokenizer = shipped()
    assert committed(tokenizer, fragments) == tokenizer.encode("".join(fragments))


def test_words_are_committed_as_soon_as_the_next_begins(tokenizer: Tokenizer) -> None:
    stable = StableText(tokenizer)
    assert stable.append("Hello") == []
    assert stable.append(" wor") == tokenizer.encode("Hello")
    assert stable.append("ld") == []
    assert stable.append(".") == tokenizer.encode(" world")
    assert stable.append("\n") == []
    assert stable.close() == tokenizer.encode(".\n")


def test_a_word_is_final_once_a_blank_follows(tokenizer: Tokenizer) -> None:
    assert StableText(tokenizer).append("Hello ") == tokenizer.encode("Hello")


def test_chinese_is_committed_at_punctuation(tokenizer: Tokenizer) -> None:
    assert StableText(tokenizer).append("\u4f60\u597d\uff0c") == tokenizer.encode("\u4f60\u597d")


# ---- cost and bound of held text


class Counting:
    """A tokenizer that counts the characters it looks at."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.chars = 0

    def encode(self, text: str) -> list[int]:
        self.chars += len(text)
        return self._tokenizer.encode(text)

    def encode_spans(self, text: str) -> tuple[list[int], list[Span]]:
        raise NotImplementedError("nobody asked for words")

    def pieces(self, text: str) -> list[tuple[int, str]]:
        self.chars += len(text)
        return self._tokenizer.pieces(text)


ENDLESS = {
    "letters": "a",
    "signs": "\u201c",
    "ideographs": "\u4f60\u597d",
    "marks": "\u0301",
    "letters and marks": "\u0334a",
    "blanks": " \n",
    "composing letters": "e\u0301",
}
"""Texts that, repeated, have no place where their ids are final."""


@pytest.mark.parametrize("unit", ENDLESS.values(), ids=list(ENDLESS))
@pytest.mark.parametrize("size", [1, 7, 200])
def test_held_text_is_scanned_a_bounded_number_of_times(tokenizer: Tokenizer, unit: str, size: int) -> None:
    text = "e" + unit * (MAX_HELD_CHARS // 2 // len(unit))
    counting = Counting(tokenizer)
    stable = StableText(counting)
    ids = [token for start in range(0, len(text), size) for token in stable.append(text[start : start + size])]
    assert ids + stable.close() == tokenizer.encode(text)
    assert counting.chars <= 3 * len(text) * (OFTEN_SCANNED_CHARS + 16)


def flood(stable: StableText, unit: str) -> None:
    for _ in range(40_000 // len(unit)):
        stable.append(unit)


@pytest.mark.parametrize("unit", ENDLESS.values(), ids=list(ENDLESS))
def test_text_without_the_end_of_a_word_is_refused(tokenizer: Tokenizer, unit: str) -> None:
    counting = Counting(tokenizer)
    stable = StableText(counting)
    with pytest.raises(Rejected, match="4096 characters without the end of a word"):
        flood(stable, unit)
    assert counting.chars <= 3 * 2 * MAX_HELD_CHARS * (OFTEN_SCANNED_CHARS + 16)


def test_an_empty_fragment_is_not_scanned(tokenizer: Tokenizer) -> None:
    counting = Counting(tokenizer)
    stable = StableText(counting)
    stable.append("e" + "\u0301" * 3000)
    before = counting.chars
    for _ in range(1500):
        assert stable.append("") == []
    assert counting.chars == before


def test_a_text_of_any_length_is_taken_at_once(tokenizer: Tokenizer) -> None:
    text = "word " * 13_000
    assert committed(tokenizer, [text]) == tokenizer.encode(text)
