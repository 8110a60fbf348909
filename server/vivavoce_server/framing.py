"""Framing of the file's bytes in a response: as the body itself, or in base64 inside events or lines of JSON."""

import base64
from collections.abc import Sequence
from typing import Protocol

from sse_starlette import JSONServerSentEvent, ServerSentEvent
from vivavoce_engine import EngineError

from vivavoce_server.errors import engine_error_detail
from vivavoce_server.marks import AudioMark
from vivavoce_server.speech import TurnTimes, Usage
from vivavoce_server.whole_files import InBase64, Part, WholeFile

CUT_SHORT = "length"
"""The `finish_reason` of speech that the request's max_new_tokens ended. Other speech has none."""

DECIMALS = 3
"""Decimals of the seconds of a turn."""


class Framing(Protocol):
    """Wraps pieces of the file for transfer.

    `heartbeat` keeps proxies from closing the connection while there is no audio; None if nothing may come between
    pieces of audio. `whole` is a whole file in one piece. `end` is the last piece of complete speech; `turns` are those
    of a dialogue. `failure` is the last piece before the transfer breaks off;
    None for none.
    """

    media_type: str
    heartbeat: bytes | None

    def whole(self, file: WholeFile) -> list[Part]: ...

    def piece(self, audio: bytes) -> bytes: ...

    def end(self, usage: Usage, turns: Sequence[TurnTimes]) -> bytes: ...

    def failure(self, error: EngineError) -> bytes | None: ...


class AudioFraming:
    """Sends the file as the body."""

    heartbeat: bytes | None = None

    def __init__(self, media_type: str) -> None:
        self.media_type = media_type

    def whole(self, file: WholeFile) -> list[Part]:
        return [file]

    def piece(self, audio: bytes) -> bytes:
        return audio

    def end(self, usage: Usage, turns: Sequence[TurnTimes]) -> bytes:
        return b""

    def failure(self, error: EngineError) -> bytes | None:
        return None


class TimestampsFraming:
    """Sends ElevenLabs' objects, one JSON object a line. Their times are null: nothing here knows them yet."""

    media_type = "application/json"
    heartbeat: bytes | None = None

    before = b'{"audio_base64": "'
    behind = b'", "alignment": null, "normalized_alignment": null}\n'

    def whole(self, file: WholeFile) -> list[Part]:
        return [self.before, InBase64(file), self.behind]

    def piece(self, audio: bytes) -> bytes:
        return self.before + base64.b64encode(audio) + self.behind

    def end(self, usage: Usage, turns: Sequence[TurnTimes]) -> bytes:
        return b""

    def failure(self, error: EngineError) -> bytes | None:
        return None


class SseFraming:
    """Sends OpenAI's events: speech.audio.delta, then speech.audio.done or speech.audio.error."""

    media_type = "text/event-stream"
    heartbeat: bytes | None = ServerSentEvent(comment="keep-alive").encode()

    def __init__(self, mark: AudioMark | None) -> None:
        """With a mark, speech.audio.done has its facts as `synthetic_audio`. With turns, it has their times."""
        self._mark = {} if mark is None else {"synthetic_audio": mark.facts()}

    def whole(self, file: WholeFile) -> list[Part]:
        raise AssertionError("events are always streamed")

    def piece(self, audio: bytes) -> bytes:
        return _event("speech.audio.delta", audio=base64.b64encode(audio).decode())

    def end(self, usage: Usage, turns: Sequence[TurnTimes]) -> bytes:
        counts = {
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "total_tokens": usage.total_tokens,
        }
        cut_short = {"finish_reason": CUT_SHORT} if usage.is_cut_short else {}
        segments = {"segments": [_segment(turn) for turn in turns]} if turns else {}
        return _event("speech.audio.done", usage=counts, **segments, **cut_short, **self._mark)

    def failure(self, error: EngineError) -> bytes | None:
        _, detail = engine_error_detail(error)
        return _event("speech.audio.error", error=detail.model_dump())


def _segment(turn: TurnTimes) -> dict[str, object]:
    """A turn as speech.audio.done has it, in seconds of the file."""
    start_s, end_s = round(turn.start_s, DECIMALS), round(turn.end_s, DECIMALS)
    return {"index": turn.index, "voice": turn.voice, "start": start_s, "end": end_s}


def _event(kind: str, **fields: object) -> bytes:
    # `type` repeats the event's name, as OpenAI's events do, because many clients read the data lines only.
    return JSONServerSentEvent({"type": kind, **fields}, event=kind).encode()
