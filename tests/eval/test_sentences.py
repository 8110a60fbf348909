"""The sentences that judge voices."""

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from vivavoce_eval.errors import Unusable
from vivavoce_eval.hearing import Spoken
from vivavoce_eval.sentences import Sentence, pick, read_sentences
from vivavoce_eval.speaking import speaker_of
from vivavoce_eval.waves import FRAME_SAMPLES
from vivavoce_voice import LONG_TEXTS


def test_there_are_a_hundred_of_all_kinds() -> None:
    sentences = read_sentences()
    kinds = Counter(sentence.category for sentence in sentences)
    assert len(sentences) >= 100
    assert all(kinds[kind] >= 10 for kind in ("plain", "question", "number", "date", "name", "word"))
    assert len({sentence.text for sentence in sentences}) == len(sentences)
    assert all(sentence.text.endswith("?") for sentence in sentences if sentence.category == "question")
    assert all(re.search(r"\d|\b(one|two|three|first|half)\b", s.text) for s in sentences if s.category == "number")


def test_a_few_of_them_have_all_kinds_and_speakers() -> None:
    speakers = ["a", "b", "c", "d", "e", "f"]
    some = pick(read_sentences(), 18)
    assert len(some) == 18
    assert {sentence.category for sentence in some} == {"plain", "question", "number", "date", "name", "word"}
    assert {speaker_of(sentence, speakers) for sentence in some} == set(speakers)
    assert [sentence.number for sentence in some] == sorted({sentence.number for sentence in some})


def test_the_long_texts_are_made_of_them() -> None:
    known = {sentence.text for sentence in read_sentences()}
    texts = read_sentences(LONG_TEXTS)
    assert len(texts) == 10
    assert all(350 <= len(sentence.text) <= 500 for sentence in texts)
    for sentence in texts:
        rest = sentence.text
        while rest:
            first = next(text for text in known if rest.startswith(text))
            rest = rest[len(first) :].lstrip()


def test_long_speech_may_last_longer() -> None:
    for text, stopped in (("Hello.", False), ("long " * 60, True)):
        spoken = Spoken(Sentence(0, "long", text), "heart", np.zeros(301 * FRAME_SAMPLES, np.float32))
        assert spoken.stopped == stopped


@pytest.mark.parametrize(("total", "count"), [(37, 20), (74, 74), (5, 9), (1, 1)])
def test_as_many_as_asked_for_whatever_the_total(total: int, count: int) -> None:
    sentences = [Sentence(number, "plain", str(number)) for number in range(total)]
    assert len(pick(sentences, count)) == min(total, count)


def test_a_line_without_a_category_is_named(tmp_path: Path) -> None:
    file = tmp_path / "mine.tsv"
    file.write_text("plain\tHello.\nNo category here.\n")
    with pytest.raises(Unusable, match=r"sentence 2 .*No category here"):
        read_sentences(file)
