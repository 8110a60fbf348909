"""The training text: templates and their fillers, what is held out, spoken forms, accents, the corpus."""

# Quotes, dashes and phonetic letters that look like others stand here on purpose.
# ruff: noqa: RUF001

import random
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from vivavoce_eval.sentences import read_sentences
from voice_recipe import make_corpus
from voice_recipe.config import ACCENT_OF_SPEAKER, PHONEME_SYMBOLS, SPEAKERS
from voice_recipe.corpus import ALONE, KINDS, Corpus, Phonemes, Record
from voice_recipe.fillers import FILLERS
from voice_recipe.phonemes import SYMBOL_IDS, british_of
from voice_recipe.reading import as_spoken
from voice_recipe.sentences import (
    TEST_TABLES,
    Writer,
    capitalised,
    comparable,
    held_out,
    judged_texts,
    read_documents,
    read_names,
    read_templates,
)
from voice_recipe.text_tokenizer import TextTokenizer
from voice_recipe.texts import (
    MAX_CHARS,
    MAX_DOCUMENT_CHARS,
    WRITTEN,
    Draft,
    Unit,
    collect,
    forbidden_texts,
    is_allowed,
    passages,
    written,
)
from voice_recipe.typography import careless, curly, in_capitals, with_capital_i, with_digits_apart

CHECKPOINT = Path(__file__).parents[2] / "voice" / "vivavoce_voice" / "checkpoint"
WORDS, PLACES = ["apple", "house", "river", "window"], ["Athens", "Bergen"]
PLAIN = KINDS.index("plain")


@pytest.fixture(scope="module")
def units() -> list[Unit]:
    return collect(WORDS, PLACES)


def test_templates_leave_no_slot_open() -> None:
    writer = Writer(WORDS, PLACES, seed=3)
    for section in ("sentence", "number_sentence", "word_sentence", *WRITTEN, *writer.sections):
        for _ in range(30):
            assert not re.search(r"\{\w+\}", text := writer.write(section)), text


def test_templates_repeat_with_their_seed() -> None:
    first, second, other = (Writer(WORDS, PLACES, seed) for seed in (3, 3, 4))
    made = [[writer.write("money") for _ in range(20)] for writer in (first, second, other)]
    assert made[0] == made[1] != made[2]


def test_an_article_is_that_of_its_noun() -> None:
    writer = Writer(["apple"], ["Oslo"], seed=1)
    assert writer.filled("A {word} in a house, plan A of 5 a.m. in a {place}") == (
        "An apple in a house, plan A of 5 a.m. in a Oslo"
    )


@pytest.mark.parametrize("name", sorted(FILLERS))
def test_what_a_filler_writes_is_read_in_words(name: str) -> None:
    r = random.Random(1)
    for _ in range(25):
        spoken = as_spoken(f"It is {FILLERS[name](r)} today.")
        assert re.fullmatch(r"[A-Za-z .,;:!?'\"()-]+", spoken), spoken


def test_sections_of_written_forms_are_kinds_or_plain() -> None:
    sections = read_templates()
    assert set(WRITTEN) <= set(sections)
    assert {"date", "money", "roman", "emoji", "countdown", "quotes", "dashes", "capitals"} <= set(WRITTEN) & set(KINDS)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hello there.", "Hello there."),
        ("“so,” he said", "“so,” he said"),
        ("info@star.org is ours", "info@star.org is ours"),
        ("v2.1 is out", "v2.1 is out"),
        ("https://star.org", "https://star.org"),
        ("don't!", "Don't!"),
    ],
)
def test_addresses_and_versions_stay_small(text: str, expected: str) -> None:
    assert capitalised(text) == expected


def test_typography_keeps_the_words() -> None:
    assert curly('"I\'m here," she said. \'Well—"no"\'') == "“I’m here,” she said. ‘Well—“no”’"
    sentence = "I think, Emma, the plan is good."
    for seed in range(20):
        r = random.Random(seed)
        assert in_capitals(sentence, r).lower() == sentence.lower() != in_capitals(sentence, r)
        assert comparable(careless(sentence, r)) == comparable(sentence)
    assert with_capital_i("i think i'm in, said i") == "I think I'm in, said I"
    assert as_spoken(with_digits_apart("Call 555-0142.")) == "Call five five five, zero one four two."
    assert with_digits_apart("212-555-0142") == "212-555-0142"


@pytest.mark.parametrize(
    ("american", "word", "british"),
    [
        ("kˈɑɹtəɹ", "Carter", "kˈɑːtə"),
        ("hˈɛɹəs", "Harris", "hˈɛːɹəs"),
        ("mˈAnəɹd", "Maynard", "mˈAnəd"),
        ("bˈæɹO", "Barro", "bˈaɹQ"),
        ("ʤˈɑn", "John", "ʤˈɒn"),
        ("ʃˈɑn", "Shan", "ʃˈɑːn"),
        ("lˈidiTi", "Leedity", "lˈiːditi"),
        ("ɹˈubᵻn", "Rubin", "ɹˈuːbɪn"),
        ("lˈɔɹəl", "Laurel", "lˈɔːɹəl"),
    ],
)
def test_a_name_that_no_dictionary_has_loses_its_american_sounds(american: str, word: str, british: str) -> None:
    assert british_of(american, word) == british
    assert set(british) <= set(SYMBOL_IDS)


def test_names_are_spelt_in_the_teachers_symbols() -> None:
    names = read_names()
    assert len(names) > 3000
    assert {name.kind for name in names} == {"first", "last"}
    assert all(set(name.phonemes) | set(british_of(name.phonemes, name.text)) <= set(SYMBOL_IDS) for name in names)


def test_each_symbol_has_an_id_of_its_own() -> None:
    assert len(set(SYMBOL_IDS.values())) == len(SYMBOL_IDS)
    assert max(SYMBOL_IDS.values()) < PHONEME_SYMBOLS
    assert all(len(symbol) == 1 for symbol in SYMBOL_IDS)


def test_emma_and_george_are_british() -> None:
    assert dict(zip(SPEAKERS, ACCENT_OF_SPEAKER, strict=True)) == {
        "heart": 0, "bella": 0, "michael": 0, "fenrir": 0, "emma": 1, "george": 1,
    }  # fmt: skip


def test_judged_texts_are_not_in_the_training_text(units: list[Unit]) -> None:
    assert held_out() == [(sentence.category, sentence.text) for sentence in read_sentences()]
    assert len(judged_texts()) > 600
    assert all((Path(__file__).parents[1] / "text" / table).is_file() for table in TEST_TABLES)
    forbidden = forbidden_texts()
    assert all(comparable(text) in forbidden for _, text in held_out())
    assert len(units) > 50_000
    for unit in units:
        for draft in unit:
            assert comparable(draft.text) not in forbidden
            assert len(draft.text) <= MAX_CHARS
        assert sum(len(draft.glue + draft.text) for draft in unit) <= MAX_DOCUMENT_CHARS


@pytest.mark.parametrize(
    "text",
    [
        "The birch canoe slid on the smooth planks.",
        "THE BIRCH CANOE slid on the smooth planks!!!",
        "“The birch-canoe slid… on the smooth planks”",
        "the birch canoe\nslid on the smooth planks",
        "It’s easy to tell the depth of a well",
        "Seventeen?",
    ],
)
def test_a_judged_text_is_found_however_it_is_written(text: str) -> None:
    assert not is_allowed((Draft(text, PLAIN),), forbidden_texts())
    assert not is_allowed((Draft("Fine.", PLAIN), Draft(text, PLAIN, glue=" ")), forbidden_texts())
    assert is_allowed((Draft(f"{text} Anna", PLAIN),), forbidden_texts())


class Letters:
    """Takes characters for phonemes; the British accent says them backwards. "mute" cannot be said."""

    unknown = (Counter(["Grxl"]), Counter[str]())

    def ids(self, text: str, accent: int) -> list[int] | None:
        ids = [ord(letter) % 100 + 1 for letter in text]
        return None if "mute" in text else ids[::-1] if accent else ids


@pytest.fixture
def letters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make_corpus, "shared_phonemizer", Letters)


@pytest.mark.usefixtures("letters")
def test_a_text_whose_spoken_form_is_judged_is_left_out() -> None:
    corpus, _ = make_corpus.build([(Draft("17.", PLAIN),), (Draft("18.", PLAIN),)])
    assert corpus.texts == ["18."]
    assert corpus.spoken == ["Eighteen."]


@pytest.mark.usefixtures("letters")
def test_a_document_is_kept_whole_or_not_at_all() -> None:
    units: list[Unit] = [
        (Draft("One day.", PLAIN), Draft("a mute day", PLAIN, glue=" ")),
        (Draft("✅", PLAIN),),
        (Draft("NO!", PLAIN, "No!"), Draft("At 5 pm.", PLAIN, glue="\n")),
        (Draft("End", PLAIN),),
        (Draft("Come", PLAIN), Draft("in.", PLAIN, glue=" ")),
    ]
    corpus, _ = make_corpus.build(units)
    assert corpus.texts == ["NO!", "At 5 pm.", "End", "Come", "in."]
    assert corpus.spoken == ["No!", "At five pee em.", None, None, None]
    assert corpus.documents.tolist() == [0, 0, ALONE, 1, 1]
    assert corpus.document_runs() == [range(2), range(3, 5)]
    assert corpus.glue == ["", "\n", "", "", " "]
    assert corpus.phonemes_of(2, 1).tolist() == corpus.phonemes_of(2, 0).tolist()[::-1]


def test_bare_words_in_lines_are_heard_apart() -> None:
    assert make_corpus.with_pauses("Oslo\nRome", "Oslo Rome") == "Oslo, Rome"
    assert make_corpus.with_pauses("1. Tea\n2. Milk", "One. Tea. Two. Milk.") == "One. Tea. Two. Milk."


def test_documents_begin_with_a_sentence_and_know_their_paragraphs() -> None:
    documents = read_documents()
    assert len(documents) > 2000
    assert all(len(document) > 1 and document[0][0] == "" for document in documents)
    assert {glue for document in documents for glue, _ in document[1:]} == {" ", "\n\n"}
    assert not any("¶" in text for document in documents for _, text in document)
    lengths = [sum(len(draft.glue + draft.text) for draft in unit) for unit in passages(Writer(WORDS, PLACES, 5))]
    assert sum(400 <= length <= MAX_DOCUMENT_CHARS for length in lengths) > 1500


def test_capitals_are_spoken_like_the_sentence_behind_them() -> None:
    said = [
        draft for unit in written(Writer(WORDS, PLACES, 5)) for draft in unit if draft.kind == KINDS.index("capitals")
    ]
    shouted = [draft for draft in said if draft.says]
    assert len(shouted) > 1000
    assert all(draft.text.lower() == draft.says.lower() for draft in shouted)


def test_the_corpus_comes_back_as_it_was_kept(tmp_path: Path) -> None:
    def row(*ids: int) -> Phonemes:
        return np.array(ids, np.uint8)

    records = [
        Record("one\ntwo", "one two", 1, (row(1, 16, 2), row(1, 16, 3))),
        Record("ümlaut", "umlaut", 2, (row(177), row(9, 16, 3)), 0),
        Record("“x”", '"x"', 31, (row(4, 10, 16), row(10)), 0, "\n\n"),
        Record("same", "same", 3, (row(10, 1, 2), row(10, 1, 2)), 5),
    ]
    Corpus.of(records).save(tmp_path / "corpus.xz")
    again = Corpus.load(tmp_path / "corpus.xz")
    assert again.texts == [record.text for record in records]
    assert again.spoken == ["one two", "umlaut", '"x"', None]
    assert again.kinds.tolist() == [1, 2, 31, 3]
    assert again.documents.tolist() == [ALONE, 0, 0, 5]
    assert again.glue == ["", "", "\n\n", ""]
    for index, record in enumerate(records):
        for accent in (0, 1):
            assert again.phonemes_of(index, accent).tolist() == record.phonemes[accent].tolist()
    assert "4 texts" in make_corpus.report(again, sample=1)


def test_the_shipped_tokenizer_writes_any_sign() -> None:
    tokenizer = TextTokenizer(CHECKPOINT)
    texts = ["“Ünïcode” — 😀…", "NO!!! 5 °C\n- ½ £3", "he said ‘why’"]
    ids, offsets = tokenizer.encode(texts)
    for text, start, end in zip(texts, offsets[:-1], offsets[1:], strict=True):
        pieces = [tokenizer.bpe.id_to_token(int(i)) or "" for i in ids[start:end]]
        assert sum(map(len, pieces)) == len(text.encode())
