"""Names that kinds of servers have for extensions of OpenAI's API. They never change a rule.

Taken from the servers' own documentation, late in 2026.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Dialect:
    """Field names of one kind of server; None for an extension that it does not have.

    `seed` fixes the random numbers of a request, `whole` are fields that ask for one body with a length, `recording` is
    the field of reference audio, and `live` is the path of a socket with Vivavoce's messages for live text.
    """

    seed: str | None = None
    whole: Mapping[str, Any] | None = None
    recording: str | None = None
    live: str | None = None


DIALECTS: Mapping[str, Dialect] = {
    "openai": Dialect(),
    "vivavoce": Dialect("seed", {"stream": False}, "ref_audio", "/audio/speech/stream"),
    "vllm-omni": Dialect("seed", {"stream": False}, "ref_audio"),
    "kokoro-fastapi": Dialect(whole={"stream": False}),
    "speaches": Dialect(),
    "openedai-speech": Dialect(),
    "localai": Dialect(),
}
