"""The training text: numbers, templates, held-out sentences, phonemes, the corpus."""

import re
from pathlib import Path

import numpy as np
import pytest
from vivavoce_eval.sentences import read_sentences
from voice_recipe import make_corpus
from voice_recipe.corpus import Corpus
from voice_recipe.sentences import Writer, cardinal, collect, comparable, held_out, ordinal, spoken_form, year


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, "zero"),
        (19, "nineteen"),
        (20, "twenty"),
        (42, "forty two"),
        (100, "one hundred"),
        (1234, "one thousand two hundred thirty four"),
        (1_000_001, "one million one"),
    ],
)
def test_cardinals(number: int, words: str) -> None:
    assert cardinal(number) == words


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (1, "first"),
        (12, "twelfth"),
        (13, "thirteenth"),
        (20, "twentieth"),
        (21, "twenty first"),
        (30, "thirtieth"),
        (112, "one hundred twelfth"),
        (131, "one hundred thirty first"),
    ],
)
def test_ordinals(number: int, words: str) -> None:
    assert ordinal(number) == words


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (1987, "nineteen eighty seven"),
        (1900, "nineteen hundred"),
        (2005, "two thousand five"),
        (1805, "eighteen oh five"),
    ],
)
def test_years(number: int, words: str) -> None:
    assert year(number) == words


@pytest.mark.parametrize(
    ("written", "spoken"),
    [
        ("Meet me at 6:40 pm.", "Meet me at six forty P-M."),
        ("It is 12:05.", "It is twelve oh five."),
        ("At 9:00 sharp.", "At nine o'clock sharp."),
        ("Call 555-0142 now.", "Call five five five, zero one four two now."),
        ("On May 14, 1987, it rained.", "On May fourteenth, nineteen eighty seven, it rained."),
        ("The 3rd of June", "The third of June"),
        ("In 1999 it was.", "In nineteen ninety nine it was."),
        ("It costs $18.50.", "It costs eighteen dollars and fifty cents."),
        ("It costs $1.00.", "It costs one dollar."),
        ("We have 12,500 seats.", "We have twelve thousand five hundred seats."),
        ("No numbers here.", "No numbers here."),
    ],
)
def test_numbers_are_written_out_as_people_say_them(written: str, spoken: str) -> None:
    assert spoken_form(written) == spoken


def test_templates_leave_no_slot_open() -> None:
    writer = Writer(["apple", "house", "river"], seed=3)
    for section in ("sentence", "number_sentence", "word_sentence"):
        for _ in range(200):
            text = writer.write(section)
            assert not re.search(r"[{}]", text), text
            assert text[0] == text[0].upper()
            assert not re.search(r"\b[Aa] [aeiou]", text), text


def test_templates_repeat_with_their_seed() -> None:
    first, second, other = (Writer(["apple", "house", "river"], seed) for seed in (3, 3, 4))
    texts = [[writer.write("number_sentence") for _ in range(20)] for writer in (first, second, other)]
    assert texts[0] == texts[1] != texts[2]


def test_what_is_held_out_is_not_in_the_training_text() -> None:
    assert held_out() == [(sentence.category, sentence.text) for sentence in read_sentences()]
    texts = collect(["apple", "house", "river", "window"])
    assert len(texts) > 50_000
    assert max(map(len, texts)) <= 180
    banned = {comparable(text) for _, text in held_out()}
    assert not banned & {comparable(text) for text in texts}


def test_the_corpus_comes_back_as_it_was_kept(tmp_path: Path) -> None:
    rows = [np.array(row, np.uint8) for row in ([1, 2, 3], [177], [50, 16, 50, 4])]
    corpus = Corpus(["one", "ümlaut", "three four"], np.concatenate(rows), np.array([0, 3, 4, 8]))
    corpus.save(tmp_path / "corpus.xz")
    again = Corpus.load(tmp_path / "corpus.xz")
    assert again.texts == corpus.texts
    for index, row in enumerate(rows):
        assert again.phonemes_of(index).tolist() == row.tolist()


def test_sentences_without_phonemes_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"good": [1, 2], "long": None}

    def phonemes(text: str) -> list[int] | None:
        if text == "bad":
            raise ValueError("no such word")
        return known[text]

    monkeypatch.setattr(make_corpus, "phoneme_ids", phonemes)
    corpus = make_corpus.build(["good", "bad", "long", "good"])
    assert corpus.texts == ["good", "good"]
    assert corpus.offsets.tolist() == [0, 2, 4]


def test_the_symbol_table_gives_each_symbol_an_id_of_its_own() -> None:
    ids = make_corpus.SYMBOL_IDS
    assert len(set(ids.values())) == len(ids)
    assert max(ids.values()) < 178
    assert all(len(symbol) == 1 for symbol in ids)
