"""One utterance of a live session. Its text goes into the engine, and its audio into the outbox."""

import asyncio
import math
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from vivavoce_server.audio import AudioOptions, SpeechEncoder
from vivavoce_server.effects import Samples
from vivavoce_server.errors import ErrorDetail
from vivavoce_server.leading_silence import LeadingSilence
from vivavoce_server.live.outbox import Lane, Outgoing
from vivavoce_server.live.text import LiveText, VoiceChange
from vivavoce_server.metrics import RequestOutcome, SpeechMeter
from vivavoce_server.request_lines import RequestLine
from vivavoce_server.said import PartTimes, Said, TurnTimes
from vivavoce_server.speaking_rate import SpeakingRate
from vivavoce_server.speech import is_cut_short
from vivavoce_server.turns import Silence
from vivavoce_server.word_times import Word, WordMap

SILENCE_PIECE_S = 0.24
"""Seconds of a silence that are sent at once."""


@dataclass(frozen=True, slots=True)
class UtteranceSummary:
    """The part of an ended utterance that was sent. `warnings` tell what was not spoken as it was asked for."""

    index: int
    audio_bytes: int
    audio_s: float
    cancelled: bool
    said: Said
    turns: Sequence[TurnTimes]
    """The turns that were sent, if the utterance has several."""
    part_voices: Sequence[str | None]
    """The voice of each of the said parts in such an utterance; None for a pause and for a voice without a name."""
    warnings: tuple[str, ...]
    ignored: tuple[str, ...]
    """Fields of the client that the model cannot follow."""
    is_cut_short: bool
    """True if the client's own max_new_tokens ended a part of the speech."""
    rate: SpeakingRate
    """The speaking rate of the parts that were made to their end."""
    file_s: float
    """Seconds of the file that the next utterance of the same file begins after."""


@dataclass(frozen=True, slots=True)
class SpokenWords:
    """Words that are certain now and begin in the audio so far. They are of the utterance `index`.

    `places` knows the utterance's text. `are_asked_for` is true if the client wants messages about words.
    """

    index: int
    words: Sequence[Word]
    places: WordMap
    are_asked_for: bool
    whole_s: float | None
    """Seconds of the utterance's audio, once all of it has been told; None before."""


class MessageWriter(Protocol):
    """The writing half of a protocol. A method returns None if the protocol has no such message."""

    def started(self, index: int, audio: AudioOptions, sample_rate: int) -> str | None: ...

    def audio(self, piece: bytes, words: SpokenWords | None) -> str | bytes:
        """The message of a piece of audio. `words` is None if the model has no word times."""
        ...

    def words(self, words: SpokenWords) -> str | None:
        """The message about words behind their audio. It is asked for after each piece, and at the end."""
        ...

    def ended(self, summary: UtteranceSummary) -> str | None: ...

    def error(self, detail: ErrorDetail) -> str | None: ...


@dataclass(slots=True)
class Utterance:
    """An utterance that was opened and has not ended."""

    index: int
    text: LiveText
    beginning: LeadingSilence
    encoder: SpeechEncoder
    meter: SpeechMeter
    line: RequestLine
    held: ExitStack
    """Releases the caller's slot and the engine's rows."""
    times: PartTimes
    sample_rate: int
    held_s: float
    """Most seconds of the file that its encoder keeps back."""
    gap_s: float
    """Seconds of silence that the file has behind the utterance."""
    has_words: bool
    """True if the model has word times."""
    words_are_asked_for: bool
    max_frames: int | None
    """The most frames of a part that the client asked for."""
    is_cut_short: bool = False
    audio_bytes: int = 0
    audio_s: float = 0.0
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    """The tasks that read its text and send its audio."""

    async def send(self, writer: MessageWriter, outbox: Lane) -> None:
        """Puts all audio of the utterance into the outbox. Returns when it has been sent.

        Raises:
            EngineError: the engine could not continue.
            SlowReader: the listener took nothing for a while.
        """
        async for piece in self.encoder.pieces(self._samples()):
            if not piece.content:
                continue
            words = self._words(self.audio_s + piece.audio_s)
            item = Outgoing(writer.audio(piece.content, words), len(piece.content), piece.audio_s)
            await outbox.put_audio(item)
            self.audio_bytes += item.audio_bytes
            self.audio_s += item.audio_s
            self._tell(words, writer, outbox)
        self._tell(self._words(), writer, outbox)
        # Until everything has been sent, this utterance can be cancelled and the next one has to wait.
        await outbox.flushed()

    def _words(self, told_s: float = math.inf) -> SpokenWords | None:
        """The words that begin in the first `told_s` seconds and were not told yet. None if the model has no times."""
        if not self.has_words:
            return None
        words = self.times.take_words(told_s, self.held_s)
        if delay_s := self.encoder.delay_s:
            words = [word.later(delay_s) for word in words]
        whole_s = self.audio_s if math.isinf(told_s) else None
        return SpokenWords(self.index, words, self.text.places, self.words_are_asked_for, whole_s)

    @staticmethod
    def _tell(words: SpokenWords | None, writer: MessageWriter, outbox: Lane) -> None:
        if words is not None and (message := writer.words(words)) is not None:
            outbox.put_words(message)

    async def _samples(self) -> AsyncIterator[Samples]:
        waited, spoken = False, 0
        async for part in self.text.parts():
            if isinstance(part, VoiceChange):
                self.beginning = self.beginning.again()
                continue
            self.times.begin(is_speech=not isinstance(part, Silence))
            if isinstance(part, Silence):
                for pcm in _silence(part.seconds, self.sample_rate):
                    yield self._counted(pcm)
                self.times.end()
                continue
            async for pcm in self.beginning.trimmed(self.times.noted(part)):
                yield self._counted(pcm)
            is_cut = is_cut_short(part.finished, self.max_frames)
            self.times.end(self.text.texts[spoken], is_cut=is_cut)
            spoken += 1
            self.is_cut_short |= is_cut
            if part.finished and not waited:
                self.meter.add_queue_wait(part.finished)
                waited = True

    def _counted(self, pcm: Samples) -> Samples:
        seconds = len(pcm) / self.sample_rate
        self.meter.add_audio(seconds)
        self.times.add(seconds)
        return pcm

    def close(self, outcome: RequestOutcome, outbox: Lane) -> UtteranceSummary:
        """Ends the utterance, for any reason. If it is not complete, its unsent audio is dropped."""
        self.held.close()
        for task in self.tasks:
            if task is not asyncio.current_task():
                task.cancel()
        cancelled = outcome != "completed"
        dropped = outbox.drop_audio() if cancelled else []
        sent_s = max(0.0, self.audio_s - sum(item.audio_s for item in dropped))
        said = self.times.said(
            self.text.written, self.text.ends, sent_s if cancelled else math.inf, self.held_s if cancelled else 0.0
        )
        turns = self.times.turns(self.text.part_turns, self.encoder.delay_s, sent_s)
        part_voices = [None if turn is None else turn.voice for turn in self.text.part_turns[: len(said.parts)]]
        is_dialogue = len({turn.index for turn in self.text.part_turns if turn}) > 1
        self.meter.end(outcome, sent_s, said.frames, self.times.rate)
        self.line.note(chars=self.text.chars)
        if len(self.text.voices) > 1:
            self.line.note(voice=", ".join(self.text.voices))
        self.line.end()
        return UtteranceSummary(
            self.index,
            self.audio_bytes - sum(item.audio_bytes for item in dropped),
            sent_s,
            cancelled,
            said,
            turns if is_dialogue else [],
            part_voices if is_dialogue else [],
            self.text.warnings,
            self.text.ignored,
            self.is_cut_short,
            self.times.rate,
            sent_s + self.gap_s,
        )


def _silence(seconds: float, sample_rate: int) -> Iterator[Samples]:
    samples, most = round(seconds * sample_rate), round(SILENCE_PIECE_S * sample_rate)
    for start in range(0, samples, most):
        yield np.zeros(min(most, samples - start), np.float32)
