"""Written text → text that a voice can speak: numbers, money, markup, links, capitals, signs.

    >>> speakable("It costs $5.50.", "en", Profile(frozenset(STAGES))).text
    'It costs five dollars and fifty cents.'

`Reading` does the same for text that arrives in fragments. The package knows no server, no engine and no model.
"""

from vivavoce_text.packages import missing_packages
from vivavoce_text.pauses import PAUSE_TAG, pause_s
from vivavoce_text.profile import STAGES, Letters, Profile, Stage
from vivavoce_text.reading import Reading, Spoken, speakable
from vivavoce_text.scripts import foreign_letters, language_of, script_of, scripts_of
from vivavoce_text.traced import Traced
from vivavoce_text.voices import MAX_VOICE_CHARS, VOICE_TAG, voice_of_tag

__all__ = [
    "MAX_VOICE_CHARS",
    "PAUSE_TAG",
    "STAGES",
    "VOICE_TAG",
    "Letters",
    "Profile",
    "Reading",
    "Spoken",
    "Stage",
    "Traced",
    "foreign_letters",
    "language_of",
    "missing_packages",
    "pause_s",
    "script_of",
    "scripts_of",
    "speakable",
    "voice_of_tag",
]
