"""Written text → text that a voice can speak, in stages.

Reading is pure: the same text, language and profile give the same result.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from vivavoce_text.pauses import BREAK_TAG, pause_of_break
from vivavoce_text.pieces import Piece, Pieces
from vivavoce_text.profile import STAGES, Context, Notes, Profile, Stage
from vivavoce_text.scripts import language_of
from vivavoce_text.stages import (
    capitals,
    clean,
    emails,
    emoji,
    fold,
    formulas,
    letters,
    markup,
    names,
    numbers,
    phone_numbers,
    urls,
)
from vivavoce_text.tidy import Tidy
from vivavoce_text.traced import Traced

log = logging.getLogger(__name__)

Step = Callable[[Traced, Context], Traced]
STEPS: Final[dict[Stage, Step]] = {
    "clean": clean.apply,
    "emoji": emoji.apply,
    "markup": markup.apply,
    "formulas": formulas.apply,
    "urls": urls.apply,
    "emails": emails.apply,
    "names": names.apply,
    "phone_numbers": phone_numbers.apply,
    "units": numbers.apply_units,
    "numbers": numbers.apply,
    "capitals": capitals.apply,
    "letters": letters.apply,
    "fold": fold.apply,
}
assert tuple(STEPS) == STAGES


@dataclass(frozen=True, slots=True)
class Spoken:
    """Text that will be said. `traced` maps its characters to the written text; `left_out` could not be said.

    Pause tags stand in the text as [pause:500ms], and voice tags as they are written.
    """

    traced: Traced
    left_out: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return self.traced.text


def speakable(text: str, language: str, profile: Profile) -> Spoken:
    """Text that will be said.

    `language` is an ISO 639-1 code, or "" to follow the script of each piece. The cost is linear in the text's length.
    """
    reading = Reading(language, profile)
    parts = [*reading.append(text), *reading.close()]
    return Spoken(Traced.join(parts), reading.left_out)


class Reading:
    """The reading of a text that arrives in fragments. The join of all results is that of the whole text.

    A piece is held back until one complete word has followed it.
    """

    def __init__(self, language: str, profile: Profile) -> None:
        self._language = language
        self._profile = profile
        self._pieces = Pieces("markup" in profile.stages, profile.voice_tags)
        self._tidy = Tidy(profile)
        self._notes = Notes()
        self._run_sign = ""
        """The last character of the piece before, if it is a sign of which a run is one."""

    @property
    def left_out(self) -> tuple[str, ...]:
        return tuple(self._notes.left_out)

    def append(self, text: str) -> list[Traced]:
        """Takes a fragment. Returns what is certain to be said next, often nothing."""
        return self._read(self._pieces.append(text))

    def close(self) -> list[Traced]:
        """Ends the text. Returns the rest of what is said."""
        return [*self._read(self._pieces.close()), *self._tidy.close()]

    def _read(self, pieces: Iterable[Piece]) -> list[Traced]:
        said: list[Traced] = []
        for piece in pieces:
            text = self._without_prolonged_run(piece)
            if not text.text:
                continue
            if piece.kind == "pause":
                is_break = BREAK_TAG.fullmatch(piece.text)
                said += self._tidy.pass_tag(text.became(pause_of_break(piece.text)) if is_break else text)
            elif piece.kind == "voice":
                said += self._tidy.pass_tag(text)
            elif (tidied := self._tidy.append(self._read_piece(piece, text))).text:
                said.append(tidied)
        return said

    def _without_prolonged_run(self, piece: Piece) -> Traced:
        """A piece without what only prolongs the run of a sign at the end of the piece before it.

        The stage clean makes one sign of a run, but sees one piece only, and a sign may be said as a word.
        """
        text = piece.text
        if "clean" not in self._profile.stages:
            return Traced.source(text, piece.start)
        # A tag stays whole and ends the run.
        is_tag = piece.kind in ("pause", "voice")
        kept = text.lstrip(self._run_sign) if self._run_sign and not is_tag else text
        if kept:
            self._run_sign = text[-1] if not is_tag and clean.RUN_SIGN.match(text[-1]) else ""
        return Traced.source(kept, piece.start + len(text) - len(kept))

    def _read_piece(self, piece: Piece, text: Traced) -> Traced:
        language = self._language or language_of(piece.text)
        context = Context(language, self._profile, self._notes, piece.kind, piece.starts_line, piece.ends_line)
        text = clean.without_invisible(text)
        for stage in STAGES:
            if stage in self._profile.stages and text.text:
                text = _tried(stage, text, context)
        return text


def _tried(stage: Stage, text: Traced, context: Context) -> Traced:
    """The text after a stage. A stage that fails changes nothing."""
    try:
        return STEPS[stage](text, context)
    except Exception:
        log.exception("the stage %s failed; its piece stays as it was", stage)
        return text
