"""One utterance of a live session. Its text goes into the engine, and its audio into the outbox."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol

from vivavoce_engine import LiveUtterance

from vivavoce_server.audio import AudioOptions, SpeechEncoder
from vivavoce_server.effects import Samples
from vivavoce_server.errors import ErrorDetail
from vivavoce_server.live.outbox import Outbox, Outgoing
from vivavoce_server.metrics import RequestOutcome, SpeechMeter


@dataclass(frozen=True, slots=True)
class UtteranceSummary:
    """The part of a finished utterance that was sent."""

    index: int
    audio_bytes: int
    audio_s: float
    cancelled: bool


class MessageWriter(Protocol):
    """The writing half of a protocol. A method returns None if the protocol has no such message."""

    def started(self, index: int, audio: AudioOptions, sample_rate: int) -> str | None: ...

    def audio(self, piece: bytes) -> str | bytes: ...

    def ended(self, summary: UtteranceSummary) -> str | None: ...

    def error(self, detail: ErrorDetail) -> str: ...


@dataclass(slots=True)
class Utterance:
    """An utterance that was opened and has not ended."""

    index: int
    live: LiveUtterance
    encoder: SpeechEncoder
    meter: SpeechMeter
    held: ExitStack
    """Releases the caller's slot and the engine's row."""
    sample_rate: int
    chars: int = 0
    """Characters of text so far."""
    audio_bytes: int = 0
    audio_s: float = 0.0
    speaking: asyncio.Task[None] | None = None

    async def send(self, writer: MessageWriter, outbox: Outbox) -> None:
        """Puts all audio of the utterance into the outbox. Returns when it has been sent.

        Raises:
            EngineError: the engine could not continue.
            SlowReader: the listener took nothing for a while.
        """
        async for piece in self.encoder.pieces(self._samples()):
            item = Outgoing(writer.audio(piece.content), len(piece.content), piece.audio_s)
            await outbox.put_audio(item)
            self.audio_bytes += item.audio_bytes
            self.audio_s += item.audio_s
        # Until everything has been sent, this utterance can be cancelled and the next one has to wait.
        await outbox.flushed()

    async def _samples(self) -> AsyncIterator[Samples]:
        async for chunk in self.live.stream:
            self.meter.add_audio(len(chunk.pcm) / self.sample_rate)
            yield chunk.pcm
        if finished := self.live.stream.finished:
            self.meter.add_queue_wait(finished.queue_wait_s)

    def close(self, outcome: RequestOutcome, outbox: Outbox) -> UtteranceSummary:
        """Ends the utterance, for any reason. If it is not complete, its unsent audio is dropped."""
        self.held.close()
        self.meter.end(outcome)
        if self.speaking is not None and self.speaking is not asyncio.current_task():
            self.speaking.cancel()
        cancelled = outcome != "completed"
        dropped = outbox.drop_audio() if cancelled else []
        return UtteranceSummary(
            self.index,
            self.audio_bytes - sum(item.audio_bytes for item in dropped),
            max(0.0, self.audio_s - sum(item.audio_s for item in dropped)),
            cancelled,
        )
