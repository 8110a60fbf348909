"""The text that reaches the voice when the server normalises: words in ASCII, letters by their names."""

from __future__ import annotations

from typing import Final

from vivavoce_text import STAGES, Profile, speakable

PROFILE: Final = Profile(frozenset(STAGES), letters="names", alphabet="ascii")
"""The profile of the shipped voice: "text" in its generation_config.json, with all stages."""


def as_spoken(text: str) -> str:
    """Text that the server makes of a written one."""
    return " ".join(speakable(text, "en", PROFILE).text.split())
