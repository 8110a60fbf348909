"""Any fragmentation of a text commits the ids of the whole text."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vivavoce_engine.text.prompt import Tokenizer
from vivavoce_engine.text.stable import StableText
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
