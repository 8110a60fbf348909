"""The most frames that a text can take to say. Speech that goes on past them counts as endless."""

from itertools import groupby

BASE_FRAMES = 250
"""20 s for pauses, breaths, and a model that begins late."""
PART_FRAMES = 25
"""2 s of these, which every part of a text has for itself, however much the parts before it took."""
LETTER_FRAMES = 4
"""0.32 s, five times the time that a letter takes in speech at a usual pace."""
PAUSE_FRAMES = 8
"""0.64 s, for a sign that may make a pause, and for a capital letter, which may be said by its name."""
PAUSES = frozenset(".,;:!?'\"()-\u2013\u2014\u2018\u2019\u201c\u201d\u2026\u3001\u3002\uff01\uff0c\uff1f")
SIGN_FRAMES = 25
"""2 s for a digit, an ideograph or another sign: a model makes up to a few words of each."""
MOST_REPEATS = 3
"""Most characters of a run of one and the same that count: nobody says more of them."""


def frame_ceiling(text: str) -> int:
    """The most frames for a text, generously: several times those that its speech takes at a usual pace."""
    frames = BASE_FRAMES
    for char, run in groupby(text):
        repeats = sum(1 for _ in run)
        # Digits are all said, also equal ones.
        frames += _frames_of(char) * (repeats if char.isdigit() else min(repeats, MOST_REPEATS))
    return frames


def part_ceiling(text: str, left_frames: int) -> int:
    """The most frames for a part of a text whose other parts have left it `left_frames`."""
    own_frames = frame_ceiling(text)
    return max(own_frames - BASE_FRAMES + PART_FRAMES, min(own_frames, left_frames))


def _frames_of(char: str) -> int:
    if char.isspace():
        return 0
    if char in PAUSES or char.isupper():
        return PAUSE_FRAMES
    # Above U+3400, scripts have a syllable or a word in a letter.
    return LETTER_FRAMES if char.isalpha() and char < "\u3400" else SIGN_FRAMES
