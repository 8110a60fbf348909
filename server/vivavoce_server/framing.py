"""Framing of the file's bytes in a response: as the body itself, or in base64 inside events or lines of JSON."""

import base64
import json
from typing import Protocol

from sse_starlette import JSONServerSentEvent, ServerSentEvent
from vivavoce_engine import EngineError

from vivavoce_server.errors import engine_error_detail
from vivavoce_server.marks import AudioMark
from vivavoce_server.speech import Speech
from vivavoce_server.whole_files import InBase64, Part, WholeFile
from vivavoce_server.word_times import (
    Alignment,
    CharacterTimes,
    Word,
    milliseconds,
    rounded,
    spoken_times,
    written_times,
)

JSON = "application/json"
LINES = "application/x-ndjson"
"""Media type of JSON objects, one a line."""
CUT_SHORT = "length"
"""The `finish_reason` of speech that the request's max_new_tokens ended. Other speech has none."""
WORDS_HEADER = "X-Word-Timestamps"
WORDS_ABOUT = (
    "With `word_timestamps`, for a whole file: the words and their times, as vLLM-Omni tells them. An array of JSON, in"
    " ASCII, with objects `word`, `start_ms`, `end_ms`; times that are not known are null"
)


class Framing(Protocol):
    """Wraps pieces of the file for transfer, with the times of words where they have a place.

    `heartbeat` keeps proxies from closing the connection while there is no audio; None if nothing may come between
    pieces of audio. `whole` is a whole file in one piece, and `headers` are header fields of its answer. `failure` is
    the last piece before the transfer breaks off; None for none.
    """

    media_type: str
    heartbeat: bytes | None

    def whole(self, file: WholeFile, speech: Speech) -> list[Part]: ...

    def headers(self, speech: Speech) -> dict[str, str]: ...

    def piece(self, audio: bytes, speech: Speech) -> bytes: ...

    def end(self, speech: Speech) -> bytes: ...

    def failure(self, error: EngineError) -> bytes | None: ...


class AudioFraming:
    """Sends the file as the body."""

    heartbeat: bytes | None = None

    def __init__(self, media_type: str) -> None:
        self.media_type = media_type

    def whole(self, file: WholeFile, speech: Speech) -> list[Part]:
        return [file]

    def headers(self, speech: Speech) -> dict[str, str]:
        return {} if speech.word_map is None else {WORDS_HEADER: words_header(speech.words)}

    def piece(self, audio: bytes, speech: Speech) -> bytes:
        return audio

    def end(self, speech: Speech) -> bytes:
        return b""

    def failure(self, error: EngineError) -> bytes | None:
        return None


def words_header(words: list[Word]) -> str:
    """The value of WORDS_HEADER."""
    told = [
        {"word": word.text, "start_ms": milliseconds(word.start_s), "end_ms": milliseconds(word.end_s)}
        for word in words
    ]
    return json.dumps(told, separators=(",", ":"))


class TimestampsFraming:
    """Sends ElevenLabs' objects with the times of the characters whose audio is in them, one JSON object a line.

    A `whole` file is one object. The seconds are those of the whole file. `alignment` has the characters of the text as
    it was written, and `normalized_alignment` those by which it is said; both are null if there are none. The
    characters behind the last word come in an object without audio.
    """

    heartbeat: bytes | None = None

    def __init__(self, *, whole: bool) -> None:
        self.media_type = JSON if whole else LINES
        self._written = CharacterTimes()
        self._spoken = CharacterTimes()

    def whole(self, file: WholeFile, speech: Speech) -> list[Part]:
        before, behind = self._around(speech.words, speech, at_end=True)
        return [before, InBase64(file), behind]

    def headers(self, speech: Speech) -> dict[str, str]:
        return {}

    def piece(self, audio: bytes, speech: Speech) -> bytes:
        before, behind = self._around(speech.take_words(), speech)
        return before + base64.b64encode(audio) + behind

    def end(self, speech: Speech) -> bytes:
        if speech.word_map is None:
            return b""
        return b"".join(self._around(speech.take_words(at_end=True), speech, at_end=True))

    def failure(self, error: EngineError) -> bytes | None:
        return None

    def _around(self, words: list[Word], speech: Speech, *, at_end: bool = False) -> tuple[bytes, bytes]:
        """An object as it stands before the audio and behind it."""
        alignments: list[dict[str, object] | None] = [None, None]
        if speech.word_map is not None:
            texts = (
                (self._written, speech.word_map.written, written_times(words)),
                (self._spoken, speech.word_map.spoken, spoken_times(words)),
            )
            for index, (times, text, timed) in enumerate(texts):
                alignment = times.take(text, timed)
                if at_end:
                    alignment += times.finish(text, speech.file_s)
                alignments[index] = _alignment_object(alignment)
        behind = f'", "alignment": {json.dumps(alignments[0])}, "normalized_alignment": {json.dumps(alignments[1])}}}\n'
        return b'{"audio_base64": "', behind.encode()


def _alignment_object(alignment: Alignment) -> dict[str, object] | None:
    if not alignment.characters:
        return None
    return {
        "characters": alignment.characters,
        "character_start_times_seconds": alignment.starts_s,
        "character_end_times_seconds": alignment.ends_s,
    }


class CaptionedFraming:
    """Sends Kokoro-FastAPI's objects, one JSON object a line, each with the words that begin in its audio.

    Words whose times are unknown are left out, because `start_time` and `end_time` are numbers. The last words come in
    an object without audio if they became certain after it.
    """

    heartbeat: bytes | None = None

    def __init__(self, audio_type: str, *, whole: bool) -> None:
        """`audio_type` is the media type of the file. A `whole` file is one object."""
        self.media_type = JSON if whole else LINES
        self._audio_type = audio_type

    def whole(self, file: WholeFile, speech: Speech) -> list[Part]:
        before, behind = self._around(speech.words)
        return [before, InBase64(file), behind]

    def headers(self, speech: Speech) -> dict[str, str]:
        return {}

    def piece(self, audio: bytes, speech: Speech) -> bytes:
        before, behind = self._around(speech.take_words())
        return before + base64.b64encode(audio) + behind

    def end(self, speech: Speech) -> bytes:
        words = speech.take_words(at_end=True)
        return b"".join(self._around(words)) if words else b""

    def failure(self, error: EngineError) -> bytes | None:
        return None

    def _around(self, words: list[Word]) -> tuple[bytes, bytes]:
        """An object as it stands before the audio and behind it."""
        timestamps = [
            {"word": word.text, "start_time": rounded(word.start_s), "end_time": rounded(word.end_s)}
            for word in words
            if word.start_s is not None
        ]
        behind = f'", "audio_format": {json.dumps(self._audio_type)}, "timestamps": {json.dumps(timestamps)}}}\n'
        return b'{"audio": "', behind.encode()


class SseFraming:
    """Sends OpenAI's events: speech.audio.delta, then speech.audio.done or speech.audio.error.

    Behind a delta, speech.audio.words has the words that begin in the audio so far, and speech.audio.done has all of
    them and the audio's `duration` in seconds, if times are asked for. OpenAI has no such events. Of a dialogue,
    speech.audio.done has the turns.
    """

    media_type = "text/event-stream"
    heartbeat: bytes | None = ServerSentEvent(comment="keep-alive").encode()

    def __init__(self, mark: AudioMark | None) -> None:
        """With a mark, speech.audio.done has its facts as `synthetic_audio`."""
        self._mark = {} if mark is None else {"synthetic_audio": mark.facts()}

    def whole(self, file: WholeFile, speech: Speech) -> list[Part]:
        raise AssertionError("events are always streamed")

    def headers(self, speech: Speech) -> dict[str, str]:
        return {}

    def piece(self, audio: bytes, speech: Speech) -> bytes:
        return _event("speech.audio.delta", audio=base64.b64encode(audio).decode()) + _words(speech.take_words())

    def end(self, speech: Speech) -> bytes:
        usage = speech.usage
        counts = {
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "total_tokens": usage.total_tokens,
            **usage.rate.fields(),
        }
        last_words = _words(speech.take_words(at_end=True))
        words: dict[str, object] = {}
        if speech.word_map is not None:
            words = {"words": [word.fields() for word in speech.words], "duration": rounded(speech.file_s)}
        cut_short = {"finish_reason": CUT_SHORT} if usage.is_cut_short else {}
        turns = {"segments": [turn.fields() for turn in speech.turns]} if speech.turns else {}
        done = _event("speech.audio.done", usage=counts, **turns, **words, **cut_short, **self._mark)
        return last_words + done

    def failure(self, error: EngineError) -> bytes | None:
        _, detail = engine_error_detail(error)
        return _event("speech.audio.error", error=detail.model_dump())


def _words(words: list[Word]) -> bytes:
    return _event("speech.audio.words", words=[word.fields() for word in words]) if words else b""


def _event(kind: str, **fields: object) -> bytes:
    # `type` repeats the event's name, as OpenAI's events do, because many clients read the data lines only.
    return JSONServerSentEvent({"type": kind, **fields}, event=kind).encode()
