"""The parts that the server makes of a text in one voice."""

from vivavoce_engine import UtteranceOptions
from vivavoce_server.reading import TextPlan
from vivavoce_server.schemas import SpeechOptions
from vivavoce_server.turns import Silence, Turn, script_of
from vivavoce_text import Profile

PLAN = TextPlan(language="en", profile=Profile(frozenset()), scripts=frozenset(), languages=(), strict=True)


def parts_of(text: str, language: str, max_part_chars: int) -> list[str | float]:
    """The texts to speak, and the seconds of the pauses between them, in order. Raises as `script_of`."""
    turn = Turn(SpeechOptions(voice="heart"), UtteranceOptions(language=language), PLAN)
    parts = script_of([turn], [text], max_part_chars).parts
    return [part.seconds if isinstance(part, Silence) else part for part in parts]
