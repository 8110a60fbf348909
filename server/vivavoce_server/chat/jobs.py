"""Translates a chat request into what thinker and talker are asked for."""

import math
import re
import time
from dataclasses import dataclass, replace

from vivavoce_engine import ChatMessage, Rejected, SpeechEngine, Thinker, ThinkOptions, UtteranceOptions

from vivavoce_server.audio import AudioOptions
from vivavoce_server.chat.chats import Chats
from vivavoce_server.chat.media import check_messages
from vivavoce_server.chat.schemas import AudioChoice, ChatRequest
from vivavoce_server.config import LeadingSilenceChoice
from vivavoce_server.errors import SHOWN_CHARS, ApiError, invalid, rejected_as
from vivavoce_server.formats import FormatName
from vivavoce_server.openai_voices import voice_aliases
from vivavoce_server.request_lines import note
from vivavoce_server.service import Service

MODEL_ALIAS = re.compile(
    r"(?:gpt-audio(?:-mini)?|gpt-4o(?:-mini)?-audio-preview|gpt-4o(?:-mini)?)(?:-[0-9]{4}-[0-9]{2}-[0-9]{2})?"
)
"""OpenAI's names of models that chat, with a date or without. They mean the first model here that chats."""
PCM: dict[str, FormatName] = {"pcm16": "pcm"}
"""OpenAI's names of formats in a chat, where they differ from those of speech."""


@dataclass(frozen=True, slots=True)
class ChatJob:
    """A chat request whose fields are valid. Its messages are not read yet.

    `audio` and `voice` are None if nothing is spoken. The job is refused as Overloaded unless its speech has its turn
    by `start_by_s` (time.monotonic).
    """

    model: str
    engine: SpeechEngine
    thinker: Thinker
    chats: Chats
    request: ChatRequest
    options: ThinkOptions
    leading_silence: LeadingSilenceChoice
    audio: AudioOptions | None = None
    voice: UtteranceOptions | None = None
    start_by_s: float = math.inf

    async def read(self, client: str) -> tuple[ChatMessage, ...]:
        """The conversation of a client, with its sounds and pictures.

        Raises:
            ApiError: 400, a message cannot be read.
            Overloaded: too many files are being read, or the speech would have to wait for too long.
            NotServing: the engine or the thinker is not running.
        """
        if self.voice is not None:
            self.engine.check_room(self._left_s)
        return await self.chats.media.messages(self.request.messages, self.chats.spoken, client)

    def speech_options(self, client: str) -> UtteranceOptions:
        """The options of the answer's speech, for a client. It must have its turn in the time that is left."""
        assert self.voice is not None
        return replace(self.voice, client=client, max_wait_s=self._left_s)

    @property
    def _left_s(self) -> float | None:
        return max(0.0, self.start_by_s - time.monotonic()) if math.isfinite(self.start_by_s) else None


def prepare_chat(request: ChatRequest, service: Service, max_wait_s: float) -> ChatJob:
    """The job of a request. `max_wait_s` limits the seconds until its speech has its turn.

    Raises:
        ApiError: a field's value cannot be served; names the field.
    """
    model, engine, thinker = _find(request.model or None, service)
    note(model=model)
    check_messages(request.messages, takes_media=thinker.takes_media)
    limit = request.max_completion_tokens or request.max_tokens or service.config.chat_max_tokens
    if request.max_tokens is not None and request.max_completion_tokens not in (None, request.max_tokens):
        raise invalid("max_tokens", "max_tokens and max_completion_tokens say the same; give one of them")
    if limit > service.config.chat_max_tokens:
        field = "max_tokens" if request.max_completion_tokens is None else "max_completion_tokens"
        raise invalid(field, f"An answer has at most {service.config.chat_max_tokens} tokens here")
    if request.stream_options is not None and not request.stream:
        raise invalid("stream_options", "stream_options are those of a stream; set stream to true, or leave them out")
    options = ThinkOptions(max_tokens=limit, temperature=request.temperature, top_p=request.top_p, seed=request.seed)
    job = ChatJob(
        model=model,
        engine=engine,
        thinker=thinker,
        chats=service.chats,
        request=request,
        options=options,
        leading_silence=service.config.leading_silence,
        start_by_s=time.monotonic() + max_wait_s,
    )
    if not request.speaks:
        return job
    if request.audio is None:
        message = "Missing required field: audio, with the voice and the format of the answer"
        raise invalid("audio", message, "missing_required_parameter")
    seed = service.config.default_seed if request.seed is None else request.seed
    voice = UtteranceOptions(speaker=_speaker(request.audio, engine), seed=seed, streaming_text=True)
    return replace(job, audio=_audio_of(request.audio, model, service), voice=voice)


def _find(name: str | None, service: Service) -> tuple[str, SpeechEngine, Thinker]:
    """Id, engine and thinker for a request's model name. None means the first model that chats."""
    thinkers = service.chats.thinkers
    if name is not None and name in thinkers:
        return name, service.engines[name], thinkers[name]
    if not thinkers:
        message = "No model of this server chats: that takes a Qwen3-Omni checkpoint"
        raise ApiError(404, message, "model", "model_not_found")
    first = next(iter(thinkers))
    if name is None or MODEL_ALIAS.fullmatch(name):
        return first, service.engines[first], thinkers[first]
    if name in service.engines:
        message = f"The model {name!r} speaks texts, and does not chat; {', '.join(map(repr, thinkers))} does"
        raise invalid("model", message, "not_available")
    message = f"There is no model {name[:SHOWN_CHARS]!r}; {', '.join(thinkers)} chats"
    raise ApiError(404, message, "model", "model_not_found")


def _speaker(choice: AudioChoice, engine: SpeechEngine) -> str:
    """The speaker that a voice means. Raises a 400 if there is none."""
    name = choice.voice_name
    note(voice=name)
    aliases = voice_aliases(engine.info)
    speaker = engine.voices.speaker(name) or aliases.get(name.casefold())
    if speaker is None:
        known = ", ".join([*engine.info.speakers, *aliases])
        message = f"There is no voice {name[:SHOWN_CHARS]!r}; there are {known}"
        raise invalid("audio.voice", message, "voice_not_found")
    return speaker


def _audio_of(choice: AudioChoice, model: str, service: Service) -> AudioOptions:
    """The audio that is asked for."""
    name: FormatName = PCM.get(choice.format, choice.format)  # type: ignore[arg-type]
    note(format=name)
    return AudioOptions(name, choice.speed, choice.sample_rate, mark=service.mark(model, choice.voice_name))


def rejected_chat(error: Rejected) -> ApiError:
    """A refusal of engine or thinker as a 400 that names the request's field."""
    fields = {"speaker": "audio.voice", "prompt": "messages", "text": "messages", "answer": "messages"}
    return rejected_as(error) if error.param not in fields else invalid(fields[error.param], str(error))
