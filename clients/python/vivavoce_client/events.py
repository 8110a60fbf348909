"""Speech as server-sent events, which carry the times of words between the pieces of audio."""

import base64
import json
from collections.abc import Iterator
from typing import Any

from vivavoce_client.protocol import StreamBroken, VivavoceError, parse_live_error
from vivavoce_client.words import SpokenTurn, SpokenWord, parse_turns, parse_words

MEDIA_TYPE = "text/event-stream"
SpeechEvent = bytes | tuple[SpokenWord, ...]
"""A piece of the audio, or words whose times have become known."""


class EventReader:
    """Reads the body of a response that came with `stream_format` sse, in pieces of any size."""

    def __init__(self, content_type: str) -> None:
        if content_type.partition(";")[0].strip() != MEDIA_TYPE:
            raise VivavoceError(f"the server sends {content_type} instead of events, so it tells no times of words")
        self.words: tuple[SpokenWord, ...] = ()
        self.turns: tuple[SpokenTurn, ...] = ()
        self.duration_s: float | None = None
        """Length of the audio in seconds, once it has ended."""
        self._rest = b""
        self._data: list[bytes] = []
        self._is_done = False

    def read(self, piece: bytes) -> Iterator[SpeechEvent]:
        """The events that this piece of the body completes.

        Raises:
            ApiError: the speech failed on the server.
        """
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line.removeprefix(b"data:"))
            elif not line and self._data:
                data, self._data = b"\n".join(self._data), []
                # OpenAI's older servers end with a word instead of an object.
                if data.strip() != b"[DONE]":
                    yield from self._take(json.loads(data))

    def finish(self) -> None:
        """Raises StreamBroken if the speech has not ended."""
        if not self._is_done:
            raise StreamBroken("the connection ended before the speech did")

    def _take(self, event: dict[str, Any]) -> Iterator[SpeechEvent]:
        match event["type"]:
            case "speech.audio.delta":
                yield base64.b64decode(event["audio"])
            case "speech.audio.words":
                words = parse_words(event["words"])
                self.words += words
                yield words
            case "speech.audio.done":
                self._is_done = True
                self.duration_s = event.get("duration")
                self.turns = parse_turns(event.get("segments") or ())
            case "speech.audio.error":
                raise parse_live_error(event)
