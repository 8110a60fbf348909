"""Applies tables of rules, one a line: a pattern, its reading, an example, and how the example is said.

A table is searched once, from left to right. Where several patterns match, the first line wins. An empty reading keeps
the match as it is, out of reach of the lines below.

In a pattern, {name} stands for a term of the table "terms", and backreferences have names. In a reading,

- {2} is the pattern's second group, and {2:year} is that group as `number_words.year` reads it;
- {2:months} is the second column of the table "months" at that group;
- {2:units:1} is the second or the third column, for one or for several of the first group's number;
- {foot|feet:1} is the same choice without a table.

A reading that fails, for instance at a word that its table lacks, keeps the match.
"""

import re
from dataclasses import dataclass
from functools import cache
from itertools import groupby

from vivavoce_text.number_words import READERS
from vivavoce_text.profile import Context
from vivavoce_text.tables import rows_of
from vivavoce_text.traced import Traced

TERM = re.compile(r"\{([a-z_]+)\}")
FIRST_TERM = re.compile(r"(?:\\b|\{[a-z_]+\})?")
STARTS = ("\\b", "{b}", "{w}", "{cur_b}", "{tel_b}")
"""Conditions at the beginning of a pattern. They match no character."""
SLOT = re.compile(r"\{(\d+)(?::(\w+))?(?::(\d+))?\}")
GROUP_NAME = re.compile(r"\(\?P([<=])(\w+)")
CHOICE = re.compile(r"\{([a-z ]+)\|([a-z ]+):(\d+)\}")
START = r"(?! [^-\u2013\u2014\u2212A-Z])(?<![A-Za-z0-9](?=[A-Za-z0-9]))"
"""No rule begins inside a word or a number, or at a blank that neither a dash nor a capital follows."""
ONE = re.compile(r"0*1(?:\.0+)?")


@dataclass(frozen=True, slots=True)
class Rule:
    """A line of a table. `start` is the condition that its pattern begins with, `pattern` is the rest."""

    start: str
    pattern: str
    reading: str
    example: str
    said: str


@cache
def _terms_of(language: str) -> dict[str, str]:
    terms = {
        name: _alternatives(language, pattern[1:]) if pattern.startswith("@") else pattern
        for name, pattern in rows_of(language, "terms")
    }
    while any(TERM.search(term) for term in terms.values()):
        terms = {name: _filled(term, terms) for name, term in terms.items()}
    return terms


def term_of(language: str, name: str) -> str:
    """The pattern of a term."""
    return _terms_of(language)[name]


@cache
def rules_of(language: str, *names: str) -> tuple[Rule, ...]:
    """The rules of some tables, in order, with the terms in their patterns filled in."""
    return tuple(_rule_of(language, *row) for name in names for row in rows_of(language, name))


def _rule_of(language: str, pattern: str, reading: str, example: str, said: str) -> Rule:
    terms = _terms_of(language)
    first = FIRST_TERM.match(pattern)
    assert first is not None
    start = first[0] if first[0] in STARTS else ""
    return Rule(_filled(start, terms), _filled(pattern[len(start) :], terms), reading, example, said)


def _alternatives(language: str, name: str) -> str:
    """A pattern of the keys of a table, longest first."""
    return "|".join(re.escape(row[0]) for row in sorted(rows_of(language, name), key=lambda row: -len(row[0])))


def _filled(pattern: str, terms: dict[str, str]) -> str:
    return TERM.sub(lambda match: f"(?:{terms[match[1]]})", pattern)


@cache
def _search_of(language: str, names: tuple[str, ...]) -> tuple[re.Pattern[str], dict[int, tuple[Rule, int]]]:
    """One pattern for all rules of some tables, and each rule by its last group, with the number of its first."""
    runs: list[str] = []
    by_group: dict[int, tuple[Rule, int]] = {}
    group = 1
    # Rules in a row that begin with the same condition share it, so that it is tried once at each character.
    for start, rules in groupby(rules_of(language, *names), key=lambda rule: rule.start):
        patterns = []
        for rule in rules:
            # Names of groups get a number, because they have to differ in one pattern.
            pattern = GROUP_NAME.sub(rf"(?P\1\g<2>_{group}", rule.pattern)
            groups = re.compile(pattern).groups
            # An empty group behind the pattern tells the rule. One around it would cost a step at each character.
            patterns.append(f"(?:{pattern})()")
            by_group[group + groups] = rule, group
            group += groups + 1
        runs.append(f"{start}(?:{'|'.join(patterns)})")
    return re.compile(f"{START}(?:{'|'.join(runs)})"), by_group


def apply_rules(text: Traced, context: Context, *names: str) -> Traced:
    """The text after the rules of the tables `names`, in that order, have been applied in one pass."""
    pattern, rules = _search_of(context.language, names)

    def read(match: re.Match[str]) -> str | None:
        assert match.lastindex is not None
        rule, first = rules[match.lastindex]
        if not rule.reading:
            return None
        try:
            said = _said(rule.reading, match, first, context.language)
        except (KeyError, ValueError):
            return None
        return said[:1].upper() + said[1:] if _starts_sentence(match, context) else said

    return text.replaced(pattern, read)


def _said(reading: str, match: re.Match[str], first: int, language: str) -> str:
    """The words for a match. `first` is the number of the rule's first group."""

    def slot(found: re.Match[str]) -> str:
        written = match[first - 1 + int(found[1])] or ""
        kind, count = found[2], found[3]
        if kind is None:
            return written
        if kind in READERS:
            return READERS[kind](written)
        row = _index_of(language, kind)[written]
        return row[2] if count is not None and is_several(count) else row[1]

    def is_several(group: str) -> bool:
        return ONE.fullmatch(match[first - 1 + int(group)] or "") is None

    reading = CHOICE.sub(lambda found: found[2] if is_several(found[3]) else found[1], reading)
    return SLOT.sub(slot, reading)


@cache
def _index_of(language: str, name: str) -> dict[str, tuple[str, ...]]:
    return {row[0]: row for row in rows_of(language, name)}


def _starts_sentence(match: re.Match[str], context: Context) -> bool:
    before = match.string[: match.start()].rstrip(" \"'(")
    return context.starts_line if not before else before[-1] in ".!?"
