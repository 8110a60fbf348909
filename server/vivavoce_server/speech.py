"""Speech for one listener: a running job, as the bytes of its file while they are made."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np
from vivavoce_engine import (
    SEED_MAX,
    EndlessSpeech,
    Finished,
    SpokenContext,
    SynthesisRequest,
    UtteranceOptions,
    draw_seed,
)

from vivavoce_server.audio import SpeechEncoder
from vivavoce_server.effects import Samples, TimeStretch
from vivavoce_server.frame_ceiling import frame_ceiling, part_ceiling
from vivavoce_server.jobs import SpeechJob
from vivavoce_server.leading_silence import LeadingSilence
from vivavoce_server.metrics import SpeechMeter
from vivavoce_server.phrases.cache import Utterance
from vivavoce_server.references import facts_of
from vivavoce_server.said import PartTimes, PartTurn, TurnTimes
from vivavoce_server.speaking_rate import NOTHING_SAID, SpeakingRate
from vivavoce_server.turns import Script, Silence
from vivavoce_server.whole_files import WholeFile
from vivavoce_server.word_times import Word


@dataclass(frozen=True, slots=True)
class Usage:
    """Usage of a request: text tokens in, codec frames out. Frames of leading silence that is dropped do not count.

    `is_cut_short` is true if the request's own max_new_tokens ended a text. `rate` is that of its other texts.
    """

    input_tokens: int
    output_tokens: int
    is_cut_short: bool = False
    rate: SpeakingRate = NOTHING_SAID

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens


def is_cut_short(finished: Finished | None, max_frames: int | None) -> bool:
    """True if the client's own limit ended a text, false if the speech ended by itself, or has not ended (None).

    Raises:
        EndlessSpeech: another limit ended it, which the client does not know.
    """
    if finished is None or finished.reason != "length":
        return False
    if finished.frames != max_frames:
        raise EndlessSpeech(f"the speech was cut off after {finished.frames} frames, the most that the model makes")
    return True


class Speech:
    """A job that runs: `with Speech(job, await job.find_voices(), meter) as it: async for piece in it.pieces()`.

    Entering submits the first text, so a refusal comes before the first byte. Each later text continues the last one of
    its voice, in one acoustic context. It begins once the text before it has been made, which is before that has been
    heard. The listener therefore does not wait between texts, and a long job holds one of the engine's rows. Leaving
    cancels unfinished texts.
    """

    def __init__(
        self,
        job: SpeechJob,
        cast: Sequence[UtteranceOptions],
        meter: SpeechMeter,
        client: str = "",
        submit: Callable[[SynthesisRequest], Utterance] | None = None,
    ) -> None:
        """`cast` are the options of each turn. `submit` gives the speech of a text. None means the job's engine."""
        assert job.script is not None, "the text of the job has been read"
        self._job = job
        self._script: Script = job.script
        self._submit_to = submit or job.engine.submit
        self._meter = meter
        # The engine gives rows to clients in turn, so that a burst from one key does not delay others.
        self._cast = [replace(options, client=client) for options in cast]
        self._voices = [_voice_number(self._cast, turn) for turn in range(len(cast))]
        """The first turn with the same voice, for each turn."""
        spoken = [number for number, part in enumerate(job.parts) if isinstance(part, str)]
        self._texts = [part for part in job.parts if isinstance(part, str)]
        self._turns = [self._script.part_turns[number] for number in spoken]
        """The turn of each text."""
        self._contexts: dict[int, SpokenContext] = {}
        """The last text of each voice."""
        self.word_map = job.word_map() if cast[0].word_times else None
        """Places of the text's words; None if their times were not asked for."""
        self.times = PartTimes(job.audio.speed, job.engine.info.frame_s, self.word_map)
        self.words: list[Word] = []
        """Words that were taken, in order."""
        self._sent_s = 0.0
        self._frames_left = frame_ceiling(" ".join(self._texts))
        """Frames that the request as a whole may still take."""
        self._streams: list[Utterance] = []
        self._cancels = ExitStack()

    def __enter__(self) -> Self:
        if self._texts:
            silence_s = sum(part.seconds for part in self._job.parts if isinstance(part, Silence))
            options = replace(self._cast[self._turns[0]], max_wait_s=self._job.max_wait_s, silence_s=silence_s)
            self._submit(options, self._texts[0])
        return self

    def __exit__(self, *_: object) -> None:
        self._cancels.close()

    def _submit(self, options: UtteranceOptions, text: str) -> Utterance:
        endless_frames = part_ceiling(text, self._frames_left)
        later_chars = sum(map(len, self._texts[len(self._streams) + 1 :]))
        options = replace(options, endless_frames=endless_frames, following=later_chars / len(text))
        stream = self._submit_to(options.with_text(text))
        self._cancels.callback(stream.cancel)
        self._streams.append(stream)
        return stream

    def _follow(self, stream: Utterance) -> asyncio.Task[Utterance] | None:
        """Starts a task that submits the next text while the caller reads the latest one. None after the last text."""
        number = len(self._streams)
        if number == len(self._texts):
            return None
        following = asyncio.create_task(self._go_on(stream, number))
        self._cancels.callback(following.cancel)
        following.add_done_callback(lambda task: task.cancelled() or task.exception())  # the reader may have left
        return following

    async def _go_on(self, stream: Utterance, number: int) -> Utterance:
        """Submits the text of this number once the one before it, of which `stream` is the speech, has been made."""
        said, text = self._texts[number - 1], self._texts[number]
        said_turn, turn = self._turns[number - 1], self._turns[number]
        codes = await stream.all_codes()
        self._frames_left -= len(codes)
        self._contexts[self._voices[said_turn]] = SpokenContext(said, codes)
        context = self._contexts.get(self._voices[turn])
        if context is not None and turn != said_turn and not (context.text[-1:].isspace() or text[:1].isspace()):
            context = replace(context, text=f"{context.text} ")
        options = replace(self._cast[turn], context=context, follows=context is None)
        return self._submit(options, text)

    @cached_property
    def _encoder(self) -> SpeechEncoder:
        """Created once the first text has been accepted. Some encoders take milliseconds, which a refusal saves."""
        return SpeechEncoder(self._job.audio, self._job.engine.info.sample_rate)

    @property
    def usage(self) -> Usage:
        """Usage of the texts that have been heard to their end."""
        ended = [stream.finished for stream in self._streams if stream.finished]
        return Usage(
            sum(text.text_tokens for text in ended),
            self.times.made_frames,
            any(is_cut_short(text, self._cast[0].max_frames) for text in ended),
            self.times.rate,
        )

    @property
    def turns(self) -> list[TurnTimes]:
        """The turns that have begun, in order. There are none unless the text has several."""
        if not self._script.is_dialogue:
            return []
        parts = zip(self._script.parts, self._script.part_turns, strict=True)
        return self.times.turns(
            [
                PartTurn(self._script.numbers[index], self._script.turns[index].voice)
                if isinstance(part, str)
                else None
                for part, index in parts
            ],
            self._encoder.delay_s,
        )

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yields the bytes of the file. Each piece leaves as soon as its audio is made.

        The first one may be empty: speech is made then, but its leading silence is being dropped.

        Raises:
            EngineError: a text failed.
        """
        try:
            async for piece in self._encoder.pieces(self._samples()):
                self._sent_s += piece.audio_s
                yield piece.content
        except EndlessSpeech:
            self._meter.count_endless()
            raise

    def take_words(self, *, at_end: bool = False) -> list[Word]:
        """The words that were not taken yet and whose audio begins in the pieces so far; at the end, all of them."""
        held_s = self._job.audio.held_s(self._job.engine.info.sample_rate)
        words = self.times.take_words() if at_end else self.times.take_words(self._sent_s, held_s)
        if words and (delay_s := self._encoder.delay_s):
            words = [word.later(delay_s) for word in words]
        self.words += words
        return words

    @property
    def file_s(self) -> float:
        """Seconds of the decoded file so far, on whose clock the words' times are."""
        return self.times.made_s + self._encoder.delay_s

    async def whole(self, file: WholeFile) -> Usage:
        """Writes the whole file, with its length filled in. Returns its usage.

        Endless speech gets one more attempt with another seed, unless the client chose the seed. A stream does not: its
        listener has heard the first attempt.
        """
        try:
            async for piece in self.pieces():
                await file.append(piece)
        except EndlessSpeech:
            if self._job.seed_is_fixed:
                raise
            await file.clear()
            with self._with_another_seed() as again:
                usage = await again.whole(file)
            self.times, self.words, self._encoder = again.times, again.words, again._encoder
            return usage
        await file.complete(self._encoder.complete(file.size))
        self.take_words(at_end=True)
        return self.usage

    def _with_another_seed(self) -> "Speech":
        """The same job with another seed, which is final. It already had its turn, so its next wait has no limit.

        Of a seed that the server gave, the other one follows: the same request still has the same speech.
        """
        job = replace(self._job, seed_is_fixed=True, start_by_s=math.inf)
        drawn = draw_seed()
        cast = [
            options
            if turn.asked.seed is not None
            else replace(options, seed=drawn if options.seed is None else (options.seed + 1) % (SEED_MAX + 1))
            for turn, options in zip(self._script.turns, self._cast, strict=True)
        ]
        return Speech(job, cast, self._meter, self._cast[0].client)

    async def _samples(self) -> AsyncIterator[Samples]:
        sample_rate = self._job.engine.info.sample_rate
        beginning = LeadingSilence(sample_rate, self._job.leading_silence)
        following: asyncio.Task[Utterance] | None = None
        voice: int | None = None
        for number, part in enumerate(self._script.parts):
            tempo = self._script.tempo(number)
            self.times.begin(isinstance(part, str), tempo)
            if isinstance(part, Silence):
                self._count(part.seconds)
                self.times.end()
                yield np.zeros(round(part.seconds * sample_rate), np.float32)
                continue
            stream = self._streams[0] if following is None else await following
            following = self._follow(stream)
            before, voice = voice, self._voices[self._script.part_turns[number]]
            if before not in (None, voice):
                beginning = beginning.again()
            async for pcm in _at_tempo(self._counted(beginning.trimmed(self.times.noted(stream))), tempo, sample_rate):
                yield pcm
            self.times.end(part, is_cut=is_cut_short(stream.finished, self._cast[0].max_frames))
        if self._streams and (finished := self._streams[0].finished):
            self._meter.add_queue_wait(finished)

    async def _counted(self, samples: AsyncIterator[Samples]) -> AsyncIterator[Samples]:
        async for pcm in samples:
            self._count(len(pcm) / self._job.engine.info.sample_rate)
            yield pcm

    def _count(self, seconds: float) -> None:
        self._meter.add_audio(seconds)
        self.times.add(seconds)


def _voice_number(cast: Sequence[UtteranceOptions], turn: int) -> int:
    """The first turn that has the voice of this one, and everything else on which an acoustic context depends."""

    def facts(options: UtteranceOptions) -> tuple[object, ...]:
        return facts_of((options.speaker, options.reference)), options.language, options.instructions

    wanted = facts(cast[turn])
    return next(number for number, options in enumerate(cast) if facts(options) == wanted)


async def _at_tempo(samples: AsyncIterator[Samples], tempo: float, sample_rate: int) -> AsyncIterator[Samples]:
    """Changes the speed of a part that has another one than the file. Its length becomes exactly that of the speed."""
    if tempo == 1.0:
        async for pcm in samples:
            yield pcm
        return
    stretch = TimeStretch(tempo, sample_rate)
    async for pcm in samples:
        # An empty array says that speech is made, but none is heard yet.
        yield await asyncio.to_thread(stretch.feed, pcm) if len(pcm) else pcm
    yield await asyncio.to_thread(stretch.flush)
