"""Cuts one text into parts that are spoken in order. Pause tags become silence, and long texts are split."""

import re
from collections.abc import Iterator

from sentencex import segment  # type: ignore[import-untyped]
from vivavoce_text import PAUSE_TAG, VOICE_TAG, pause_s
from vivavoce_text.pauses import BREAK_TAG, pause_of_break

from vivavoce_server.errors import SHOWN_CHARS, invalid

CLAUSE_END = re.compile(r"[,;:]\s|[\uff0c\uff1b\uff1a\u3001]")
"""The end of a clause. No space follows the full-width signs."""
LONGEST_PAUSE_S = 10.0
MAX_PAUSES = 64
"""Most pauses of a request, or of an utterance of live text."""
MAX_PAUSES_S = 60.0
"""Most seconds of these pauses and of those between turns together."""
MAX_TURNS = 128
"""Most turns of a request, or of an utterance of live text."""
MAX_VOICES = 16
"""Most voices of them. Each one may have to be read from the disk, or encoded."""
TURN_PAUSE_S = 0.2
"""Silence between the turns of two voices. Speakers of ten languages answer after 0.2 s on average (Stivers et al.,
Universals and cultural variation in turn-taking in conversation, PNAS 2009)."""
LONGEST_TURN_PAUSE_S = 10.0
CLOSING_SIGNS = ".,;:!?)]}\u2026\u3002\uff0c\uff1b\uff1a\u3001\uff01\uff1f"
"""Signs that belong to the word in front of them."""
MAX_STRETCH_CHARS = 4096
"""Most characters that are split into sentences at once."""
LANGUAGE_CODES = {
    "chinese": "zh",
    "english": "en",
    "french": "fr",
    "german": "de",
    "italian": "it",
    "japanese": "ja",
    "korean": "ko",
    "portuguese": "pt",
    "russian": "ru",
    "spanish": "es",
}
"""Maps the models' names of languages to the splitter's. Its English rules apply to all others."""

LONG_CODES = {
    "chi": "chinese",
    "cmn": "chinese",
    "deu": "german",
    "eng": "english",
    "fra": "french",
    "fre": "french",
    "ger": "german",
    "ita": "italian",
    "jpn": "japanese",
    "kor": "korean",
    "por": "portuguese",
    "rus": "russian",
    "spa": "spanish",
    "zho": "chinese",
}
"""The same languages by their codes of ISO 639-2 and 639-3."""
NAMES_OF_CODES = {**{code: name for name, code in LANGUAGE_CODES.items()}, **LONG_CODES}

TOO_MANY_PAUSES = "too_many_pauses"
"""Code of the error about pauses that are too many, or too long together."""
TAG = re.compile(f"{PAUSE_TAG.pattern}|{VOICE_TAG.pattern}", re.IGNORECASE)
"""A tag in a text that has been read."""


def language_of_code(language: str) -> str:
    """The models' name of a language that is given by a code of ISO 639, such as en, EN, eng or en-US.

    "" is "auto", because clients send it for a setting that was left open. Other names are unchanged.
    """
    language = language.strip()
    return NAMES_OF_CODES.get(re.split("[-_]", language.lower(), maxsplit=1)[0], language) if language else "auto"


def is_speakable(text: str) -> bool:
    """True if a text has a letter or a digit outside its tags."""
    return any(char.isalnum() for char in TAG.sub("", text))


def is_heard(text: str) -> bool:
    """True if there is something to speak in a text, or a pause, which is a silence that was asked for."""
    return is_speakable(text) or any((pause_s(tag[0]) or 0) > 0 for tag in PAUSE_TAG.finditer(text))


class PauseBudget:
    """Counts the pauses of one request, and their seconds."""

    def __init__(self) -> None:
        self._pauses = 0
        self._seconds = 0.0

    def take(self, tag: str) -> float:
        """Seconds of a pause tag, which count from now on. A wrong tag counts as a pause without seconds.

        Raises:
            ApiError: 400, the tag has no length or too great a length, or the pauses are too many or too long together.
        """
        self._pauses += 1
        if self._pauses > MAX_PAUSES:
            raise invalid("input", f"There are more than {MAX_PAUSES} pauses, which is the most", TOO_MANY_PAUSES)
        seconds = checked_pause_s(tag)
        self.take_seconds(seconds, "input")
        return seconds

    def take_seconds(self, seconds: float, field: str) -> None:
        """Counts seconds of silence that a field asks for.

        Raises:
            ApiError: 400, the pauses are too long together.
        """
        if self._seconds + seconds > MAX_PAUSES_S:
            message = f"The pauses are longer than {MAX_PAUSES_S:g} s together, which is the most"
            raise invalid(field, message, TOO_MANY_PAUSES)
        self._seconds += seconds


def pause_tags(text: str) -> list[str]:
    """The pause tags of a written text, also those that <break> stands for."""
    breaks = (pause_of_break(tag[0]) for tag in BREAK_TAG.finditer(text))
    return [*(tag[0] for tag in PAUSE_TAG.finditer(text)), *breaks]


def checked_pause_s(tag: str) -> float:
    """Seconds of a pause tag.

    Raises:
        ApiError: 400, the tag has no length or too great a length.
    """
    seconds = pause_s(tag)
    shown = tag if len(tag) <= SHOWN_CHARS else f"{tag[:SHOWN_CHARS]}..."
    if seconds is None:
        raise invalid("input", f"{shown} is not a pause; write [pause:0.5s] or [pause:500ms]")
    if seconds > LONGEST_PAUSE_S:
        raise invalid("input", f"{shown} is too long; the longest pause is {LONGEST_PAUSE_S:g} s")
    return seconds


def without_tag(before: str, behind: str) -> str:
    """The text behind a tag that is left out, so that it follows the text before. Blanks behind other blanks go.

    What only the tag parts from the text before gets a blank, except signs that belong to that text.
    """
    if before[-1:].isspace():
        return behind.lstrip()
    if before and behind and not behind[0].isspace() and behind[0] not in CLOSING_SIGNS:
        return f" {behind}"
    return behind


def split_long(text: str, language: str, max_chars: int) -> list[str]:
    """Splits a text into pieces of at most `max_chars` characters, between sentences. A sentence is cut only if it is
    itself too long.

    The blanks between two pieces begin the second one, where a tokenizer expects them. They do not count.
    """
    if not text.strip():
        return []
    if len(text) <= max_chars:
        return [text]
    pieces: list[str] = []
    piece = ""
    for sentence in sentences_of(text, LANGUAGE_CODES.get(language.lower(), "en")):
        for fragment in _fragments(sentence, max_chars):
            if piece.strip() and len((piece + fragment).strip()) > max_chars:
                pieces.append(piece.rstrip())
                piece = piece[len(piece.rstrip()) :]
            piece += fragment
    if piece.strip():
        pieces.append(piece.rstrip())
    return pieces


def sentences_of(text: str, language: str) -> Iterator[str]:
    """The sentences of a text, which joined are the text. `language` is an ISO 639-1 code.

    The splitter sees a stretch at a time, because it takes quadratic time for some texts. The last sentence of a
    stretch begins the next one.
    """
    start = 0
    while start < len(text):
        stretch = text[start : start + MAX_STRETCH_CHARS]
        sentences = list(segment(language, stretch))
        if len(sentences) > 1 and start + len(stretch) < len(text):
            sentences.pop()
        yield from sentences
        start += sum(map(len, sentences))


def _fragments(sentence: str, max_chars: int) -> Iterator[str]:
    """Cuts a sentence into pieces of at most `max_chars`: at the last comma, else the last space, else anywhere."""
    while len(sentence.rstrip()) > max_chars:
        window = sentence[:max_chars]
        ends = [match.end() for match in CLAUSE_END.finditer(window)]
        space = window.rfind(" ") + 1
        cut = ends[-1] if ends else space or max_chars
        yield sentence[:cut]
        sentence = sentence[cut:]
    yield sentence
