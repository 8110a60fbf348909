"""Settings of a reading: which stages run, and how a voice wants letters and signs."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, get_args

from vivavoce_text.pieces import LineKind

Stage = Literal[
    "clean",
    "emoji",
    "markup",
    "formulas",
    "urls",
    "emails",
    "names",
    "phone_numbers",
    "units",
    "numbers",
    "capitals",
    "letters",
    "fold",
]
STAGES: tuple[Stage, ...] = get_args(Stage)
"""All stages, in the order in which they run."""
Letters = Literal["names", "spaced", "as_written"]
"""Single letters as names ("eff bee eye"), with blanks ("F B I"), or as they are ("FBI")."""


@dataclass(frozen=True, slots=True)
class Profile:
    """`stages` are those that run. Invisible characters are always removed, and tags of pauses and voices are
    never touched. Without `voice_tags`, those of voices are text like any other.

    `letters` is how the voice wants single letters. `alphabet` "ascii" limits the spoken text to ASCII: the stage fold
    then leaves letters of other scripts out, or writes them in Latin ones if `romanize`. None has no limit.
    """

    stages: frozenset[Stage]
    letters: Letters = "as_written"
    alphabet: Literal["ascii"] | None = None
    romanize: bool = False
    voice_tags: bool = True


@dataclass(slots=True)
class Notes:
    """Runs of letters that a reading left out, each once, in the order of the text."""

    left_out: list[str] = field(default_factory=list)

    def leave_out(self, words: Iterable[str]) -> None:
        self.left_out += [word for word in words if word not in self.left_out]


@dataclass(frozen=True, slots=True)
class Context:
    """Knowledge of a stage besides the text of its piece.

    `language` is "en", "zh", "ja" or another ISO 639-1 code, or "" when it is unknown. `kind`, `starts_line` and
    `ends_line` are the piece's.
    """

    language: str
    profile: Profile
    notes: Notes
    kind: LineKind = "text"
    starts_line: bool = False
    ends_line: bool = False
