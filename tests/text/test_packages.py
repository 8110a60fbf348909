"""Reading without one of the packages that stages use."""

import logging
import sys
from collections.abc import Iterator

import pytest
from vivavoce_text import STAGES, Profile, missing_packages, speakable
from vivavoce_text.grammar import _grammar_of, _read
from vivavoce_text.packages import OPTIONAL, optional
from vivavoce_text.stages import formulas, inline, urls

ALL = Profile(frozenset(STAGES), "names", "ascii")
ANY = Profile(frozenset(STAGES))
LACKING = {
    "anyascii": ("Zoë has $5 in Łódź.", "en", ALL, "Zoe has five dollars in odz."),
    "emoji": ("Good \U0001f389 news :smile: for $5.", "en", ALL, "Good news :smile: for five dollars."),
    "linkify_it": ("Pay $5 on https://a.com now.", "en", ALL, "Pay five dollars on https: a.com now."),
    "markdown_it": ("The **first** `word` costs $5.", "en", ALL, "The first word costs five dollars."),
    "normt2s": ("So $x = 1$ and $\\frac{1}{2}$ cost $5.", "en", ALL, "So ex equals one and cost five dollars."),
    "wetext": ("有3.5只。有4.5只。", "zh", ANY, "有3.5只。有4.5只。"),
}
"""A text, its language, and its reading without the package."""


@pytest.fixture
def lacking(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package that cannot be imported."""
    package: str = request.param
    caches = (optional, _grammar_of, _read, formulas._speaker, inline._markdown, urls._finder)
    for module in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    for cached in caches:
        cached.cache_clear()
    yield package
    for cached in caches:
        cached.cache_clear()


def test_every_optional_package_is_tried() -> None:
    assert LACKING.keys() == OPTIONAL.keys()


@pytest.mark.parametrize("lacking", LACKING, indirect=True)
def test_a_text_is_read_without_a_package_and_one_line_says_so(lacking: str, caplog: pytest.LogCaptureFixture) -> None:
    text, language, profile, said = LACKING[lacking]
    with caplog.at_level(logging.WARNING):
        assert [speakable(text, language, profile).text for _ in range(2)] == [said] * 2
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"the package {lacking} cannot be used")
    assert line.endswith(OPTIONAL[lacking])
    assert missing_packages() == {lacking: OPTIONAL[lacking]}
