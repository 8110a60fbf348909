"""The pairs of written and spoken text: which of them are read right."""

import pytest
from vivavoce_text import STAGES, Profile, speakable

from tests.text.pairs import FOLDER, Pair, pairs

PROFILES = {
    "en": Profile(frozenset(STAGES), letters="spaced", alphabet="ascii"),
    "zh": Profile(frozenset(STAGES)),
}
FILES = ("written_forms.tsv", "more_forms.tsv", "unseen_forms.tsv")


def said(written: str, language: str) -> str:
    return speakable(written, language, PROFILES[language]).text


def misses() -> dict[str, str]:
    """The written texts that are read wrong, and the reason."""
    _, *lines = (FOLDER / "misses.tsv").read_text(encoding="utf-8").splitlines()
    return dict(line.split("\t") for line in lines)


@pytest.mark.parametrize("name", FILES)
def test_the_pairs_that_are_read_wrong_are_those_in_the_list(name: str) -> None:
    wrong = {pair.written for pair in pairs(name) if not pair.is_right(said(pair.written, pair.language))}
    assert wrong == {pair.written for pair in pairs(name)} & set(misses())


def test_each_listed_pair_has_a_reason() -> None:
    assert all(reason.endswith(".") for reason in misses().values())
    assert set(misses()) <= {pair.written for name in FILES for pair in pairs(name)}


@pytest.mark.parametrize("pair", [pair for name in FILES for pair in pairs(name)], ids=lambda pair: pair.written)
def test_a_spoken_text_is_not_changed_any_more(pair: Pair) -> None:
    spoken = said(pair.written, pair.language)
    assert said(spoken, pair.language) == spoken
