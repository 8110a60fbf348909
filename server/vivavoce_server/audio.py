"""Encodes the engine's float32 samples into the bytes of a file while they are made. No other module does this."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial

from vivavoce_server.containers import Encoder, FlacEncoder, OpusEncoder, SharedEncoder
from vivavoce_server.effects import Effect, Resampler, Samples, TimeStretch
from vivavoce_server.formats import FORMATS, LOSSY, FormatName
from vivavoce_server.marks import AudioMark, marked
from vivavoce_server.watermarks import Watermarker

HELD_FRAMES = 4
"""Largest number of a codec's frames that an encoder holds back: those it looks ahead, and one that is not full."""
HELD_S, HELD_BY_TEMPO_S = 0.35, 0.16
"""Most seconds of a file that encoders and the resampler hold back together; most seconds of the model's audio that
another tempo does."""
HELD_BY_WATERMARK_S = 0.1
"""Most seconds of the file that a watermark does."""
OPUS_FRAMES_PER_S = 50
DIRECT = frozenset({"pcm", "wav", "g711_ulaw", "g711_alaw"})
"""Formats that hold nothing back."""
MPEG1_RATE = 32000
"""Lowest sample rate in Hz at which a frame of mp3 has 1152 samples. Below it, a frame has 576."""


@dataclass(frozen=True, slots=True)
class AudioOptions:
    """The audio that a listener asked for. `sample_rate` (Hz) and `bit_rate` (bits/s) None mean the format's own.

    `stream_number` is the serial number of an Ogg stream, which differs from file to file; None draws one.
    """

    format: FormatName = "mp3"
    speed: float = 1.0
    sample_rate: int | None = None
    bit_rate: int | None = None
    stream_number: int | None = None
    mark: AudioMark | None = None
    """Mark of the file; None for none."""

    @property
    def media_type(self) -> str:
        return FORMATS[self.format].media_type

    def held_s(self, model_rate: int) -> float:
        """Most seconds of the file that wait for the audio behind them."""
        marked_s = 0.0 if self.watermarker is None else HELD_BY_WATERMARK_S
        if self.speed != 1.0:
            return HELD_S + HELD_BY_TEMPO_S / self.speed + marked_s
        is_direct = self.format in DIRECT and self.rate_for(model_rate) == model_rate
        return marked_s if is_direct else HELD_S + marked_s

    @property
    def watermarker(self) -> Watermarker | None:
        return None if self.mark is None else self.mark.watermarker

    def rate_for(self, model_rate: int) -> int:
        """Sample rate of the file in Hz. `model_rate` is the model's, in Hz."""
        return self.sample_rate or FORMATS[self.format].sample_rate or model_rate

    def new_encoder(self, model_rate: int) -> Encoder:
        """An encoder of a new file."""
        rate = self.rate_for(model_rate)
        if self.bit_rate is not None and self.format in LOSSY:
            encoder: Encoder = LOSSY[self.format](rate, self.bit_rate)
        else:
            encoder = FORMATS[self.format].encoder(rate)
        if isinstance(encoder, OpusEncoder) and self.stream_number is not None:
            encoder.number_stream(self.stream_number)
        return encoder if self.mark is None else marked(encoder, self.format, self.mark)

    def new_shared_encoder(self, model_rate: int) -> SharedEncoder:
        """An encoder of one new file for several utterances."""
        rate = self.rate_for(model_rate)
        frame_samples = {
            "mp3": 1152 if rate >= MPEG1_RATE else 576,
            "opus": rate // OPUS_FRAMES_PER_S,
            "aac": 1024,
            "flac": rate // FlacEncoder.blocks_per_s,
        }
        return SharedEncoder(self.new_encoder(model_rate), HELD_FRAMES * frame_samples.get(self.format, 0))


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of a file, and the seconds of audio that they complete. An encoder may hold samples back."""

    content: bytes
    audio_s: float


class SpeechEncoder:
    """A pipeline: samples → tempo → watermark → sample rate → container.

    A stage that would change nothing is left out.
    """

    def __init__(self, options: AudioOptions, model_rate: int, encoder: Encoder | None = None) -> None:
        """`encoder` writes the file; None begins a new one."""
        rate = options.rate_for(model_rate)
        self._effects: list[Effect] = []
        if options.speed != 1.0:
            self._effects.append(TimeStretch(options.speed, model_rate))
        if options.watermarker is not None:
            self._effects.append(options.watermarker.stream(model_rate))
        if rate != model_rate:
            self._effects.append(Resampler(model_rate, rate))
        self._encoder = encoder or options.new_encoder(model_rate)
        self._samples_per_s = model_rate * options.speed
        """Samples of the model per second of the file."""
        self._takes_long = bool(self._effects) or options.format in ("mp3", "opus", "aac")

    @property
    def delay_s(self) -> float:
        """Seconds by which a decoded file is late; see `Encoder`."""
        return self._encoder.delay_s

    async def pieces(self, samples: AsyncIterator[Samples]) -> AsyncIterator[Piece]:
        """Yields the file's bytes. Each piece leaves as soon as its samples are there.

        An empty array says that speech is made, but none is heard yet: it makes a piece of the file's head, or an empty
        piece. No other piece is empty.

        A slow encoder runs on a thread, so that the event loop can serve others: a second of mp3 takes it 9 ms.
        """
        held_s = 0.0
        async for pcm in samples:
            if not len(pcm):
                yield Piece(await self._run(self._encoder.head), 0.0)
                continue
            held_s += len(pcm) / self._samples_per_s
            if content := await self._run(partial(self.feed, pcm)):
                yield Piece(content, held_s)
                held_s = 0.0
        if content := await self._run(self.flush):
            yield Piece(content, held_s)

    async def _run(self, encode: Callable[[], bytes]) -> bytes:
        return await asyncio.to_thread(encode) if self._takes_long else encode()

    def feed(self, pcm: Samples) -> bytes:
        return self._feed(pcm, 0)

    def flush(self) -> bytes:
        """Flushes every stage through the stages after it, and returns the remaining bytes."""
        tails = [self._feed(effect.flush(), after) for after, effect in enumerate(self._effects, start=1)]
        return b"".join(tails) + self._encoder.flush()

    def complete(self, file_bytes: int) -> bytes:
        """The first bytes of the whole file, with its length filled in; see `Encoder`."""
        return self._encoder.complete(file_bytes)

    def _feed(self, pcm: Samples, first_effect: int) -> bytes:
        for effect in self._effects[first_effect:]:
            if len(pcm):
                pcm = effect.feed(pcm)
        return self._encoder.feed(pcm) if len(pcm) else b""
