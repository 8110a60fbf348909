"""Requests of a job: several at once, and again where the server is busy or away for a while."""

import asyncio
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from vivavoce_client.batch.files import whole_file
from vivavoce_client.batch.job import Content, Spoken
from vivavoce_client.batch.work import Part, Work
from vivavoce_client.client import AsyncClient
from vivavoce_client.protocol import (
    PCM,
    SAMPLE_BYTES,
    ApiError,
    ConnectionFailed,
    SpeechOptions,
    StreamBroken,
    VivavoceError,
)

BUSY = (429, 502, 503, 504)
"""Statuses that a later request may not meet."""
REFUSALS = (400, 413, 422)
TEXT_FIELDS = ("input", "text", None)
"""Fields that an error of a text names. Some servers name none."""
MOST_BROKEN = 3
"""Most times that the speech of a text may break off. A fault of the text itself would come again each time."""
FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 30.0


@dataclass(frozen=True, slots=True)
class Course:
    """The way in which a job asks: `streams` requests at once, and `patience_s` of waiting for each."""

    streams: int
    patience_s: float


class GivenUp(VivavoceError):
    """The server did not speak a line within the time that the user is willing to wait."""


class Asking:
    """Asks a server for the parts of a job. `report` is told each part that is done, `note` each wait."""

    def __init__(
        self,
        client: AsyncClient,
        work: Work,
        course: Course,
        report: Callable[[Part], None],
        note: Callable[[str], None],
    ) -> None:
        self._client = client
        self._work = work
        self._course = course
        self._report = report
        self._note = note

    async def ask_all(self, parts: Sequence[Part]) -> None:
        """Asks for all parts, in their order.

        Raises:
            ApiError: the server refuses the key, the model or another thing that concerns all lines.
            GivenUp: the server is away or busy for too long. BadOutput: a file cannot be written.
        """
        left = iter(parts)
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(self._course.streams, len(parts))):
                    group.create_task(self._ask(left))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _ask(self, left: Iterator[Part]) -> None:
        for part in left:
            try:
                spoken = await self._patiently(part)
            except ApiError as error:
                if not is_of_the_line(error, part):
                    raise
                spoken = Spoken(Content(0, ""), refusal=str(error))
            self._work.add(part, spoken)
            self._report(part)

    async def _patiently(self, part: Part) -> Spoken:
        """Raises GivenUp, or an ApiError that would come again."""
        waited_s, wait_s, broken = 0.0, FIRST_WAIT_S, 0
        while True:
            try:
                return await self._speak(part)
            except (ApiError, ConnectionFailed, StreamBroken) as error:
                if not is_away(error):
                    broken += 1
                    if isinstance(error, ApiError) and error.status < 500:
                        raise
                asked_s = error.retry_after_s if isinstance(error, ApiError) else None
                this_wait_s = max(wait_s, asked_s or 0)
                if broken >= MOST_BROKEN or waited_s + this_wait_s > self._course.patience_s:
                    raise GivenUp(f"{part.line.place} could not be spoken: {error}") from error
                self._note(f"{part.line.place} is asked for again in {this_wait_s:.1f} s: {error}")
            await asyncio.sleep(this_wait_s)
            waited_s += this_wait_s
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)

    async def _speak(self, part: Part) -> Spoken:
        request = dict(part.request)
        text, voice = request.pop("input"), request.pop("voice")
        digest, size_bytes = hashlib.sha256(), 0
        async with self._client.stream(text, voice, **cast(SpeechOptions, request)) as speech:
            with whole_file(self._work.audio_file(part)) as file:
                async for piece in speech:
                    file.write(piece)
                    digest.update(piece)
                    size_bytes += len(piece)
                if not size_bytes or (request["response_format"] == PCM and size_bytes % SAMPLE_BYTES):
                    raise StreamBroken(f"{size_bytes} bytes came, which is no whole audio")
            return Spoken(Content(size_bytes, digest.hexdigest()), speech.words, speech.turns)


def is_away(error: VivavoceError) -> bool:
    """True if the server is busy or away, which says nothing of the line."""
    return isinstance(error, ConnectionFailed) or (isinstance(error, ApiError) and error.status in BUSY)


def is_of_the_line(error: ApiError, part: Part) -> bool:
    """True if a refusal concerns this line alone: its text, or a field that it has itself."""
    if error.status in REFUSALS and error.param in TEXT_FIELDS:
        return True
    return error.status in (*REFUSALS, 404) and error.param in part.line.fields
