"""Readings of the stages that work on signs and markup, for tests."""

from typing import Final

from vivavoce_text import Profile, Stage, speakable

MARKS: Final[frozenset[Stage]] = frozenset(("clean", "emoji", "markup", "formulas", "urls", "emails", "names"))
ASCII_VOICE: Final = Profile(MARKS, letters="names", alphabet="ascii")
"""Marks for a voice that reads English in ASCII."""
ANY_VOICE: Final = Profile(MARKS)
"""Marks for a voice that reads any sign of its languages."""
OFF: Final = Profile(frozenset())


def english(text: str) -> str:
    return speakable(text, "en", ASCII_VOICE).text


def said(text: str, language: str, *stages: Stage) -> str:
    """The text that a voice for any alphabet says after the stages, by default all of marks."""
    return speakable(text, language, Profile(frozenset(stages)) if stages else ANY_VOICE).text
