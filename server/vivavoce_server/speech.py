"""One listener's speech: what to say, then the bytes of its file as they are made."""

import asyncio
import math
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np
from vivavoce_engine import AudioStream, EndlessSpeech, SpeechEngine, SpokenContext, SynthesisRequest
from vivavoce_engine.request import draw_seed

from vivavoce_server.audio import AudioOptions, SpeechEncoder
from vivavoce_server.effects import Samples
from vivavoce_server.metrics import SpeechMeter


@dataclass(frozen=True, slots=True)
class Silence:
    """A pause between two parts of a text."""

    seconds: float


@dataclass(frozen=True, slots=True)
class SpeechJob:
    """Parts to be heard one after the other, as one file. `model` is the engine's name on this server.

    `seed_is_fixed` tells that the parts have the seed that they must have: the client chose it. The first text must
    have its turn by `start_by_s` (time.monotonic), or the job is refused as Overloaded; what has begun waits as long as
    it takes.
    """

    model: str
    engine: SpeechEngine
    parts: tuple[SynthesisRequest | Silence, ...]
    audio: AudioOptions
    seed_is_fixed: bool = False
    start_by_s: float = math.inf

    @property
    def max_wait_s(self) -> float | None:
        """Seconds that are left for its turn to come."""
        return max(0.0, self.start_by_s - time.monotonic()) if math.isfinite(self.start_by_s) else None

    def with_another_seed(self) -> "SpeechJob":
        """The same speech, drawn anew, with a seed that stays."""
        seed = draw_seed()
        parts = (replace(part, seed=seed) if isinstance(part, SynthesisRequest) else part for part in self.parts)
        return replace(self, parts=tuple(parts), seed_is_fixed=True, start_by_s=math.inf)


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

    Entering submits the first text, so a refusal comes before the first byte. Each later text goes on from the one
    before it, in one acoustic context, and begins as soon as that is made, which is before it has been heard: the
    listener waits for none, and a long job holds one of the engine's rows. Leaving cancels what has not ended.
    """

    def __init__(self, job: SpeechJob, meter: SpeechMeter, client: str = "") -> None:
        self._job = job
        self._meter = meter
        # The engine gives clients its rows in turn, so that one key's burst delays nobody else.
        self._requests = [replace(part, client=client) for part in job.parts if isinstance(part, SynthesisRequest)]
        self._client = client
        self._streams: list[AudioStream] = []
        self._cancels = ExitStack()

    def __enter__(self) -> Self:
        self._submit(replace(self._requests[0], max_wait_s=self._job.max_wait_s))
        return self

    def __exit__(self, *_: object) -> None:
        self._cancels.close()

    def _submit(self, request: SynthesisRequest) -> AudioStream:
        stream = self._job.engine.submit(request)
        self._cancels.callback(stream.cancel)
        self._streams.append(stream)
        return stream

    def _follow(self, stream: AudioStream) -> asyncio.Task[AudioStream] | None:
        """Sees to the text after that of the latest stream, beside whoever reads this; None after the last text."""
        number = len(self._streams)
        if number == len(self._requests):
            return None
        following = asyncio.create_task(self._go_on(stream, self._requests[number - 1].text, self._requests[number]))
        self._cancels.callback(following.cancel)
        following.add_done_callback(lambda task: task.cancelled() or task.exception())  # whoever reads may have left
        return following

    async def _go_on(self, stream: AudioStream, said: str, request: SynthesisRequest) -> AudioStream:
        return self._submit(replace(request, context=SpokenContext(said, await stream.all_codes())))

    @cached_property
    def _encoder(self) -> SpeechEncoder:
        """Made once the first text has been accepted: some encoders take milliseconds, and a refusal needs none."""
        return SpeechEncoder(self._job.audio, self._job.engine.info.sample_rate)

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
        encoder = self._encoder
        try:
            async for pcm in self._samples():
                if piece := await encoder.encode(pcm):
                    yield piece
        except EndlessSpeech:
            self._meter.count_endless()
            raise
        if tail := encoder.flush():
            yield tail

    async def whole(self) -> tuple[bytes, Usage]:
        """The join of the pieces, as a file that knows its length, and what it cost.

        Speech that would not end is tried once more with another seed, unless the client chose the seed. A stream
        cannot do this: its listener has heard the first attempt.
        """
        try:
            body = b"".join([piece async for piece in self.pieces()])
        except EndlessSpeech:
            if self._job.seed_is_fixed:
                raise
            with Speech(self._job.with_another_seed(), self._meter, self._client) as again:
                return await again.whole()
        return self._encoder.complete(body), self.usage

    async def _samples(self) -> AsyncIterator[Samples]:
        sample_rate = self._job.engine.info.sample_rate
        following: asyncio.Task[AudioStream] | None = None
        for part in self._job.parts:
            if isinstance(part, Silence):
                self._meter.add_audio(part.seconds)
                yield np.zeros(round(part.seconds * sample_rate), np.float32)
                continue
            stream = self._streams[0] if following is None else await following
            following = self._follow(stream)
            async for chunk in stream:
                self._meter.add_audio(len(chunk.pcm) / sample_rate)
                yield chunk.pcm
        if finished := self._streams[0].finished:
            self._meter.add_queue_wait(finished.queue_wait_s)
