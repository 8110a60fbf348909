"""Fields that are ignored because the model cannot follow them. The answer names them; `--strict` refuses them.

OpenAI's clients send some fields without being asked, such as a voice, or a sentence of instructions. They could not
speak at all with a model that lacks the ability, if it were refused.
"""

import logging
from collections.abc import Iterable, Sequence

from vivavoce_engine import ModelInfo, UtteranceOptions

from vivavoce_server.errors import ApiError, invalid
from vivavoce_server.schemas import SpeechOptions

log = logging.getLogger(__name__)

IGNORED_HEADER = "X-Vivavoce-Ignored"
IGNORED_ABOUT = "The fields that were ignored because the model cannot follow them: names, separated by commas"
INSTRUCTIONS_IGNORED = "The model was not trained to follow instructions; they are ignored"
REASONS = {
    "instructions": "The model was not trained to follow instructions",
    "voice": "The voice is designed by instructions, or sent in the request",
}
"""Field → the reason why a strict server refuses it."""


def ignores_instructions(request: SpeechOptions, info: ModelInfo) -> bool:
    """True if the request has instructions, and the model cannot follow any."""
    return bool((request.instructions or "").strip()) and not info.takes_instructions


def ignores_voice(request: SpeechOptions, voiced: UtteranceOptions) -> bool:
    """True if the request names a voice, and another one speaks: one that it sends, or that its instructions design.

    `voiced` are the options with the voice that was found.
    """
    is_sent = request.ref_audio is not None or request.speaker_embedding is not None
    return request.voice_name is not None and not voiced.speaker and (is_sent or voiced.reference is None)


def refused(field: str) -> ApiError:
    """The refusal of a strict server."""
    message = f"{REASONS[field]}, so this server, which is strict, does not ignore {field}: leave it out"
    return invalid(field, message, "not_available")


def ignored_header(fields: Iterable[str]) -> str:
    """The value of the header IGNORED_HEADER."""
    return ", ".join(fields)


def log_ignored(model: str, fields: Sequence[str]) -> None:
    """Logs the fields that are ignored, if there are any."""
    if fields:
        told = {"model": model, "ignored": ignored_header(fields)}
        log.info("the model %(model)s ignores %(ignored)s", told, extra={"fields": told})
