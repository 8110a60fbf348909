"""One listener's speech: a job that runs, as the bytes of its file while they are made."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np
from vivavoce_engine import (
    AudioStream,
    EndlessSpeech,
    SpokenContext,
    SynthesisRequest,
    UtteranceOptions,
    draw_seed,
)

from vivavoce_server.audio import SpeechEncoder
from vivavoce_server.effects import Samples
from vivavoce_server.jobs import Silence, SpeechJob
from vivavoce_server.metrics import SpeechMeter


@dataclass(frozen=True, slots=True)
class Usage:
    """What speech cost: tokens of text in, codec frames out."""

    input_tokens: int
    output_tokens: int

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens


class Speech:
    """A job that runs: `with Speech(job, await job.find_voice(), meter) as speech: async for piece in speech.pieces()`.

    Entering submits the first text, so a refusal comes before the first byte. Each later text goes on from the one
    before it, in one acoustic context, and begins as soon as that is made, which is before it has been heard: the
    listener waits for none, and a long job holds one of the engine's rows. Leaving cancels what has not ended.
    """

    def __init__(self, job: SpeechJob, options: UtteranceOptions, meter: SpeechMeter, client: str = "") -> None:
        self._job = job
        self._meter = meter
        # The engine gives clients its rows in turn, so that one key's burst delays nobody else.
        self._options = replace(options, client=client)
        self._texts = [part for part in job.parts if isinstance(part, str)]
        self._streams: list[AudioStream] = []
        self._cancels = ExitStack()

    def __enter__(self) -> Self:
        self._submit(replace(self._options, max_wait_s=self._job.max_wait_s).with_text(self._texts[0]))
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
        if number == len(self._texts):
            return None
        following = asyncio.create_task(self._go_on(stream, self._texts[number - 1], self._texts[number]))
        self._cancels.callback(following.cancel)
        following.add_done_callback(lambda task: task.cancelled() or task.exception())  # whoever reads may have left
        return following

    async def _go_on(self, stream: AudioStream, said: str, text: str) -> AudioStream:
        context = SpokenContext(said, await stream.all_codes())
        return self._submit(replace(self._options, context=context).with_text(text))

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
        try:
            async for piece in self._encoder.pieces(self._samples()):
                yield piece.content
        except EndlessSpeech:
            self._meter.count_endless()
            raise

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
            with self._with_another_seed() as again:
                return await again.whole()
        return self._encoder.complete(body), self.usage

    def _with_another_seed(self) -> "Speech":
        """The same job with another seed, for good. It has had its turn, and waits for the next as long as it takes."""
        job = replace(self._job, seed_is_fixed=True, start_by_s=math.inf)
        return Speech(job, replace(self._options, seed=draw_seed()), self._meter, self._options.client)

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
