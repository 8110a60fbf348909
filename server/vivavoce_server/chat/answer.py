"""An answer while it is made: the thinker writes it on one task, and its speech is read on another.

A transcript holds the text that the talker has read, and nothing else: the text of token k leaves with the frame that
was made of it. It therefore never runs ahead of what the audio will say. The text of an answer whose speech ended
early has a rest, which is told apart.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Literal, Self

from vivavoce_engine import (
    AudioChunk,
    ChatMessage,
    EndlessSpeech,
    EngineError,
    Rejected,
    SpokenAnswer,
    ThinkerEnd,
    ThinkerFailed,
    ThinkerPrompt,
    ThinkerToken,
)

from vivavoce_server.audio import SpeechEncoder
from vivavoce_server.chat.completions import AnswerTokens, ChatUsage, PromptTokens
from vivavoce_server.chat.jobs import ChatJob, rejected_chat
from vivavoce_server.effects import Samples
from vivavoce_server.leading_silence import LeadingSilence
from vivavoce_server.metrics import SpeechMeter
from vivavoce_server.speaking_rate import NOTHING_SAID, SpeakingRate

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Delta:
    """The next part of an answer. `text` is said by the audio, or is the answer where nothing is spoken."""

    text: str = ""
    audio: bytes = b""
    unspoken: str = ""


class Answer:
    """`async with Answer(job, messages, meter) as answer: async for delta in answer.deltas()`. Leaving ends it."""

    def __init__(self, job: ChatJob, messages: tuple[ChatMessage, ...], meter: SpeechMeter, client: str) -> None:
        self._job = job
        self._messages = messages
        self._meter = meter
        self._client = client
        self._decoder = job.thinker.text.decoder()
        self._prompt: ThinkerPrompt | None = None
        self._speech: SpokenAnswer | None = None
        self._opened = asyncio.get_running_loop().create_future()
        self._tokens: list[int] = []
        self._grown = asyncio.Event()
        self._read = 0
        """Tokens whose text has been taken."""
        self._frames = 0
        self._rate = job.engine.info.sample_rate
        self._writing: asyncio.Task[None] | None = None
        self.reason: Literal["stop", "length"] = "stop"
        self.encoder = None if job.audio is None else SpeechEncoder(job.audio, self._rate)
        self.made_s = 0.0
        """Seconds of audio that were made for the listener."""
        self._said: list[str] = []
        """The text that its speech says."""
        self.rate = NOTHING_SAID
        """The speaking rate, once all of the speech has been read."""

    async def __aenter__(self) -> Self:
        self._writing = asyncio.create_task(self._write())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._speech is not None:
            self._speech.stream.cancel()
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.gather(self._writing, return_exceptions=True)
        if self._opened.done() and not self._opened.cancelled():
            self._opened.exception()  # the reader may have left before it asked

    # ---- writing ----------------------------------------------------------------------------------------------

    async def _write(self) -> None:
        """Reads the thinker, and hands the answer to the talker. An error ends the speech, and reaches its reader."""
        try:
            async with aclosing(self._job.thinker.stream(self._messages, self._job.options)) as thoughts:
                async for thought in thoughts:
                    match thought:
                        case ThinkerPrompt():
                            self._open(thought)
                        case ThinkerToken(id=token):
                            self._add(token)
                        case ThinkerEnd(reason=reason):
                            self.reason = reason
                    if self._speech is not None and self._speech.ended:
                        break
            if self._speech is not None:
                self._speech.end()
        except Exception as error:
            self._fail(error)
            raise
        finally:
            self._grown.set()

    def _open(self, prompt: ThinkerPrompt) -> None:
        self._prompt = prompt
        if self._job.voice is not None:
            options = self._job.speech_options(self._client)
            self._speech = self._job.engine.open_answer(options, prompt)
        self._opened.set_result(None)

    def _add(self, token: int) -> None:
        if self._speech is not None:
            try:
                self._speech.append_ids([token])
            except Rejected as error:
                raise ThinkerFailed(f"the thinker wrote a token that cannot be spoken: {error}") from error
            if self._speech.ended:
                return
        self._tokens.append(token)
        self._grown.set()

    def _fail(self, error: Exception) -> None:
        if not isinstance(error, EngineError):
            log.exception("an answer could not be written")
            error = ThinkerFailed("the answer could not be written")
        if not self._opened.done():
            self._opened.set_exception(error)
        if self._speech is not None:
            self._speech.fail(error)

    # ---- reading ----------------------------------------------------------------------------------------------

    async def deltas(self) -> AsyncIterator[Delta]:
        """Yields the parts of the answer as they are made.

        The first one may be empty: speech is made then, but its leading silence is being dropped.

        Raises:
            EngineError: the answer or its speech failed.
            ApiError: 400, the conversation cannot be answered.
        """
        try:
            await self._opened
            async for delta in self._text() if self._speech is None else self._spoken(self._speech):
                yield delta
        except Rejected as error:
            raise rejected_chat(error) from error
        except EndlessSpeech:
            self._meter.count_endless()
            raise

    async def _text(self) -> AsyncIterator[Delta]:
        """The parts of an answer that is not spoken."""
        assert self._writing is not None
        while not self._writing.done() or self._read < len(self._tokens):
            self._grown.clear()
            if text := self._take(len(self._tokens)):
                yield Delta(text)
            elif not self._writing.done():
                await self._grown.wait()
        self._writing.result()
        if rest := self._decoder.finish():
            yield Delta(rest)

    async def _spoken(self, speech: SpokenAnswer) -> AsyncIterator[Delta]:
        assert self.encoder is not None
        assert self._writing is not None
        silence = LeadingSilence(self._rate, self._job.leading_silence)
        async for piece in self.encoder.pieces(self._counted(silence.trimmed(self._chunks(speech)))):
            yield self._spoken_delta(self._take(self._frames), piece.content)
        finished = speech.stream.finished
        if finished is not None:
            self._meter.add_queue_wait(finished)
            if finished.reason == "length":
                raise EndlessSpeech(f"the speech was cut off after {finished.frames} frames, the most that are made")
        await self._writing  # a speech that ends early does not end the text
        text = self._take(self._frames)
        if self._read == len(self._tokens):
            text += self._decoder.finish()
        if unspoken := self._take(len(self._tokens)) + self._decoder.finish():
            yield self._spoken_delta(text, unspoken=unspoken)
        elif text:
            yield self._spoken_delta(text)
        self.rate = SpeakingRate.of("".join(self._said), self.made_s)

    def _spoken_delta(self, text: str, audio: bytes = b"", unspoken: str = "") -> Delta:
        """A part of a spoken answer, whose text counts as said."""
        self._said.append(text)
        return Delta(text, audio, unspoken)

    async def _chunks(self, speech: SpokenAnswer) -> AsyncIterator[AudioChunk]:
        async for chunk in speech.stream:
            self._frames += chunk.frames
            yield chunk

    async def _counted(self, samples: AsyncIterator[Samples]) -> AsyncIterator[Samples]:
        async for pcm in samples:
            seconds = len(pcm) / self._rate
            self._meter.add_audio(seconds)
            self.made_s += seconds
            yield pcm

    def _take(self, tokens: int) -> str:
        """The text of the first tokens, this many, that was not taken yet."""
        taken, self._read = self._tokens[self._read : tokens], max(self._read, min(tokens, len(self._tokens)))
        return "".join(map(self._decoder.feed, taken))

    @property
    def frames(self) -> int:
        """Codec frames that were made."""
        return self._frames

    @property
    def usage(self) -> ChatUsage:
        control = self._job.thinker.text.control
        prompt = () if self._prompt is None else self._prompt.ids
        sounds, pictures = prompt.count(control.audio), prompt.count(control.image)
        completion = len(self._tokens) + self._frames
        return ChatUsage(
            prompt_tokens=len(prompt),
            completion_tokens=completion,
            total_tokens=len(prompt) + completion,
            prompt_tokens_details=PromptTokens(
                text_tokens=len(prompt) - sounds - pictures, audio_tokens=sounds, image_tokens=pictures
            ),
            completion_tokens_details=AnswerTokens(text_tokens=len(self._tokens), audio_tokens=self._frames),
            characters_per_minute=self.rate.characters_per_minute,
            words_per_minute=self.rate.words_per_minute,
        )
