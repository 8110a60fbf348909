"""Voice tags: [voice:NAME] gives the text behind it, up to the next tag, to another voice."""

import re

MAX_VOICE_CHARS = 256
"""Longest name in a tag, in characters. The text of a longer one is no tag."""
VOICE_TAG = re.compile(rf"\[voice:([^\]\[\n]{{0,{MAX_VOICE_CHARS}}})\]", re.IGNORECASE)
BEGUN_TAG = re.compile(rf"\[(?:v(?:o(?:i(?:c(?:e(?::[^\]\[\n]{{0,{MAX_VOICE_CHARS}}})?)?)?)?)?)?", re.IGNORECASE)
"""The beginning of a text that may become a voice tag."""


def voice_of_tag(tag: str) -> str | None:
    """The name in a voice tag, without blanks around it. None if the text is no voice tag."""
    match = VOICE_TAG.fullmatch(tag)
    return None if match is None else match[1].strip()
