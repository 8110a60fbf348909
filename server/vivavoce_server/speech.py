"""One listener's speech: what to say, then the bytes of its file as they are made."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from vivavoce_engine import AudioStream, Engine, Overloaded, SynthesisRequest

from vivavoce_server.audio import AudioOptions, SpeechEncoder
from vivavoce_server.effects import Samples
from vivavoce_server.metrics import SpeechMeter


@dataclass(frozen=True, slots=True)
class Silence:
    """A pause between two parts of a text."""

    seconds: float


@dataclass(frozen=True, slots=True)
class SpeechJob:
    """Parts to be heard one after the other, as one file. `model` is the engine's name on this server."""

    model: str
    engine: Engine
    parts: tuple[SynthesisRequest | Silence, ...]
    audio: AudioOptions


@dataclass(frozen=True, slots=True)
class Usage:
    """What speech cost: tokens of text in, codec frames out."""

    input_tokens: int
    output_tokens: int

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens


class Speech:
    """A job that runs: `with Speech(job, meter) as speech: async for piece in speech.pieces()`.

    Entering submits the first text, so a refusal comes before the first byte. Each later text is submitted while the
    one before it is heard: the listener waits for none, and a long job holds two of the engine's rows, not all.
    Leaving cancels what has not ended.
    """

    def __init__(self, job: SpeechJob, meter: SpeechMeter, client: str = "") -> None:
        self._job = job
        self._meter = meter
        self._encoder = SpeechEncoder(job.audio, job.engine.info.sample_rate)
        # The engine gives clients its rows in turn, so that one key's burst delays nobody else.
        self._requests = [replace(part, client=client) for part in job.parts if isinstance(part, SynthesisRequest)]
        self._streams: list[AudioStream] = []
        self._cancels = ExitStack()

    def __enter__(self) -> Self:
        self._submit()
        return self

    def __exit__(self, *_: object) -> None:
        self._cancels.close()

    def _submit(self) -> None:
        """Submits the next text, if there is one."""
        if len(self._streams) < len(self._requests):
            stream = self._job.engine.submit(self._requests[len(self._streams)])
            self._cancels.callback(stream.cancel)
            self._streams.append(stream)

    async def _submitted(self, index: int) -> AudioStream:
        """The stream of a text. What has begun is not broken off because the queue is full just now."""
        while index >= len(self._streams):
            try:
                self._submit()
            except Overloaded as error:
                await asyncio.sleep(error.retry_after_s)
        return self._streams[index]

    @property
    def usage(self) -> Usage:
        """Counts the texts that have been heard to their end."""
        ended = [stream.finished for stream in self._streams if stream.finished]
        return Usage(sum(text.text_tokens for text in ended), sum(text.frames for text in ended))

    async def pieces(self) -> AsyncIterator[bytes]:
        """The bytes of the file, each piece as soon as the audio in it is made; none is empty.

        Raises:
            EngineError: a text failed.
        """
        async for pcm in self._samples():
            if piece := await self._encoder.encode(pcm):
                yield piece
        if tail := self._encoder.flush():
            yield tail

    async def whole(self) -> bytes:
        """The join of the pieces, as a file that knows its length."""
        return self._encoder.complete(b"".join([piece async for piece in self.pieces()]))

    async def _samples(self) -> AsyncIterator[Samples]:
        sample_rate = self._job.engine.info.sample_rate
        spoken = 0
        for part in self._job.parts:
            if isinstance(part, Silence):
                self._meter.add_audio(part.seconds)
                yield np.zeros(round(part.seconds * sample_rate), np.float32)
                continue
            stream = await self._submitted(spoken)
            spoken += 1
            async for chunk in stream:
                self._meter.add_audio(len(chunk.pcm) / sample_rate)
                if len(self._streams) == spoken:
                    with suppress(Overloaded):
                        self._submit()
                yield chunk.pcm
