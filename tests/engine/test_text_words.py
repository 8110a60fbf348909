"""The words of a text: their characters in the text that was given, and their tokens, whole or in fragments."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vivavoce_engine import SynthesisRequest
from vivavoce_engine.checkpoint.files import read_checkpoint
from vivavoce_engine.request import SpokenContext
from vivavoce_engine.text.prompt import Prompt, TextFrontend, Tokenizer
from vivavoce_engine.text.stable import StableText
from vivavoce_engine.text.words import Span, TextWord, count_words, words_of
from vivavoce_voice import CHECKPOINT

from tests.engine.test_live_text import TRICKY


@cache
def frontend() -> TextFrontend:
    return TextFrontend(read_checkpoint(CHECKPOINT), tokenizer())


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer(CHECKPOINT)


def split(text: str) -> tuple[TextWord, ...]:
    return words_of(text, tokenizer().encode_spans(text)[1])


def characters(text: str, words: tuple[TextWord, ...]) -> list[str]:
    return [text[word.start : word.end] for word in words]


def pieces(parts: list[str]) -> list[Span]:
    """The spans of tokens that are given by their characters."""
    ends = [sum(map(len, parts[: number + 1])) for number in range(len(parts))]
    return [(end - len(part), end) for end, part in zip(ends, parts, strict=True)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Hello there, it's 6:40.", ["Hello", "there,", "it's", "6:40."]),
        ('  "Wait - what?"\n\nNo...', ['"Wait', 'what?"', "No..."]),
        ("Caf\u00e9 cafe\u0301 \U0001f600 na\u00efve", ["Caf\u00e9", "cafe\u0301", "na\u00efve"]),
        ("a\u0327\u0301b \u1112\u1161\u11ab\uae00 ok", ["a\u0327\u0301b", "\u1112\u1161\u11ab\uae00", "ok"]),
        ("\u4f60\u597d\uff0c\u4e16\u754c3 kg", ["\u4f60", "\u597d\uff0c", "\u4e16", "\u754c", "3", "kg"]),
        ("\u304b\u3099\u304d\u3002", ["\u304b\u3099", "\u304d\u3002"]),
        (
            "hi!there?yes wait\u2026what - one,two 1,000",
            ["hi!", "there?", "yes", "wait\u2026", "what", "one,", "two", "1,000"],
        ),
        (
            "state-of-the-art and/or a|b x\u2022y \u201cso\u201d\u201cit\u201d",
            ["state-of-the-art", "and/or", "a|", "b", "x\u2022", "y", "\u201cso\u201d\u201c", "it\u201d"],
        ),
        (" ... -", []),
    ],
)
def test_words_are_those_of_the_text_as_it_was_given(text: str, words: list[str]) -> None:
    assert characters(text, split(text)) == words
    assert count_words(text) == len(words)


def test_signs_are_no_words() -> None:
    assert [count_words(text) for text in ("", " \n", "- ... !?", "--yes", "no..", "\u3002\u30fb")] == [
        0,
        0,
        0,
        1,
        1,
        0,
    ]


def test_a_token_belongs_to_the_word_of_its_last_letter() -> None:
    parts = ["I", "'", "m", " at", " ", "6", ":", "40", ",", " (", "so", ")", "."]
    words = words_of("".join(parts), pieces(parts))
    assert [(word.first_token, word.end_token) for word in words] == [(0, 3), (3, 4), (5, 8), (10, 11)]
    assert [word.sign for word in words] == [False, False, True, True]


def test_tokens_of_several_ideographs_are_words_and_parts_of_one_are_not() -> None:
    text = "\u4f60\u597d\u4e16\u754c"
    words = words_of(text, [(0, 2), (2, 3), (2, 3), (3, 4)])
    assert [(word.start, word.end, word.first_token, word.end_token) for word in words] == [
        (0, 2, 0, 1),
        (2, 3, 1, 3),
        (3, 4, 3, 4),
    ]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.text(st.sampled_from(TRICKY), max_size=6), max_size=12))
def test_fragments_give_the_words_of_the_whole(fragments: list[str]) -> None:
    stable, words = StableText(tokenizer(), word_times=True), list[TextWord]()
    ids = []
    for fragment in fragments:
        ids += stable.append(fragment)
        words += stable.take_words(complete=False)
    ids += stable.close()
    words += stable.take_words(complete=True)
    text = "".join(fragments)
    assert ids == tokenizer().encode(text)
    assert words == list(split(text))


@pytest.mark.parametrize("streaming_text", [False, True])
def test_a_prompt_tells_where_its_own_text_stands(streaming_text: bool) -> None:
    request = SynthesisRequest(
        "Two words.", speaker="emma", language="english", streaming_text=streaming_text, word_times=True
    )
    alone = frontend().prompt(request)
    assert own_text(alone) == [*tokenizer().encode("Two words."), frontend().end_of_text_id]
    assert characters(request.text, alone.words) == ["Two", "words."]


def test_a_context_is_in_front_of_the_words() -> None:
    codes = read_checkpoint(CHECKPOINT).talker.num_code_groups
    context = SpokenContext("It was so. ", np.zeros((3, codes), np.int16))
    request = SynthesisRequest("Two words.", speaker="emma", language="english", context=context, word_times=True)
    prompt = frontend().prompt(request)
    whole = tokenizer().encode("It was so. Two words.")
    assert own_text(prompt) == [*whole[len(tokenizer().encode("It was so.")) :], frontend().end_of_text_id]
    assert characters(request.text, prompt.words) == ["Two", "words."]
    assert prompt.words[0].first_token == 0


def own_text(prompt: Prompt) -> list[int]:
    ids = [*prompt.text_ids, *prompt.trailing_ids]
    return ids[prompt.text_at : prompt.text_at + prompt.text_tokens + 1]
