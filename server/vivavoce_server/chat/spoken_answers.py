"""Texts of answers that were spoken, by the ids of their audio, for requests that name an answer by its id."""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from vivavoce_server.errors import ApiError

KEPT_S = 3600.0
"""Seconds for which an id is known."""
MAX_ANSWERS = 4096
MAX_CHARS = 2**22
"""Most characters of all texts together."""


@dataclass(frozen=True, slots=True)
class _Spoken:
    client: str
    text: str
    expires_s: float


class SpokenAnswers:
    """The last answers, in memory. A client finds its own alone. Only the event loop uses it."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._answers: OrderedDict[str, _Spoken] = OrderedDict()
        self._chars = 0

    def expires_s(self) -> float:
        """The time until which an answer that is added now is known, in seconds since 1970."""
        return self._clock() + KEPT_S

    def add(self, audio_id: str, client: str, text: str, expires_s: float) -> None:
        """Adds an answer. The oldest ones leave when there are too many."""
        self._answers[audio_id] = _Spoken(client, text, expires_s)
        self._chars += len(text)
        while len(self._answers) > MAX_ANSWERS or self._chars > MAX_CHARS:
            _, oldest = self._answers.popitem(last=False)
            self._chars -= len(oldest.text)

    def text_of(self, audio_id: str, client: str, param: str) -> str:
        """The text of an answer. Raises a 400 that names `param` if the id is unknown or has expired."""
        found = self._answers.get(audio_id)
        if found is None or found.client != client or found.expires_s < self._clock():
            message = "There is no spoken answer with this id, or it has expired; send its transcript as `content`"
            raise ApiError(400, message, f"{param}.id", "audio_not_found")
        return found.text
