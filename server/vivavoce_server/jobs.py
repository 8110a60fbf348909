"""Translates a request's body into the engine's options. HTTP, batches and live sockets all use this module."""

import math
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from vivavoce_engine import ModelInfo, Rejected, Sampling, SpeechEngine, UtteranceOptions, check_characters, draw_seed
from vivavoce_text import PAUSE_TAG, Spoken

from vivavoce_server.audio import AudioOptions
from vivavoce_server.config import LeadingSilenceChoice, ServerConfig
from vivavoce_server.errors import ApiError, invalid, rejected_as
from vivavoce_server.formats import FORMATS
from vivavoce_server.ignored import (
    INSTRUCTIONS_IGNORED,
    ignores_instructions,
    ignores_voice,
    log_ignored,
    refused,
)
from vivavoce_server.marks import AudioMark
from vivavoce_server.reading import TextPlan, check_speakable, in_worker, nothing_to_speak, plan_text, read, warnings_of
from vivavoce_server.references import References
from vivavoce_server.request_lines import current_line, note
from vivavoce_server.schemas import TASK_NAMES, SpeechOptions, SpeechRequest
from vivavoce_server.service import Service
from vivavoce_server.text_parts import parts_of
from vivavoce_server.word_times import WordMap

NOTHING_S = 0.3
"""Seconds of silence that stand for a text of which nothing can be spoken."""
MIN_TEMPERATURE = 0.01
"""Below it, the most likely code is drawn, as with temperature 0. Logits divided by less could overflow."""


@dataclass(frozen=True, slots=True)
class Silence:
    """A pause between two parts of a text."""

    seconds: float


@dataclass(frozen=True, slots=True)
class SpeechJob:
    """The parts of one file, in order. A job has none until it is `read`, and never if its text arrives later.

    `text_plan` tells how its text is read, also one that arrives later. `spoken` is what will be said, and `warnings`
    say what of the request will not be as it was asked for. `max_part_chars` is the longest part, in characters.

    `ignored` are the fields that the model cannot follow; a `strict` server refuses them instead.

    `model` is the engine's name on this server. `options_without_voice` apply to every utterance; `find_voice` adds the
    voice. `seed_is_fixed` is true if the client chose the seed. The job is refused as Overloaded unless its first text
    has its turn by `start_by_s` (time.monotonic). Once begun, the job waits as long as necessary.
    """

    model: str
    engine: SpeechEngine
    audio: AudioOptions
    options_without_voice: UtteranceOptions
    request: SpeechOptions
    references: References
    text_plan: TextPlan
    max_part_chars: int
    leading_silence: LeadingSilenceChoice
    parts: tuple[str | Silence, ...] = ()
    spoken: Spoken | None = None
    warnings: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    strict: bool = False
    seed_is_fixed: bool = False
    start_by_s: float = math.inf

    def with_audio(self, audio: AudioOptions) -> "SpeechJob":
        """The same job for other audio, which gets this one's mark."""
        return replace(self, audio=replace(audio, mark=self.audio.mark))

    @property
    def max_wait_s(self) -> float | None:
        """Seconds left until the job must have its turn; None means no limit."""
        return max(0.0, self.start_by_s - time.monotonic()) if math.isfinite(self.start_by_s) else None

    async def read(self) -> "SpeechJob":
        """The job with the parts of its request's text, which is read in other threads.

        Raises:
            ApiError: 400, nothing in the text can be spoken, or a pause tag is wrong.
        """
        request = self.request
        assert isinstance(request, SpeechRequest), "the text of this job arrives later"
        spoken = await read(self.text_plan, request.input)
        return await in_worker(self._of_text, request, spoken)

    def _of_text(self, request: SpeechRequest, spoken: Spoken) -> "SpeechJob":
        """The job of a text that has been read. Raises as `read`."""
        check_speakable(self.text_plan, request.input, spoken)
        # A pause lasts as long as its tag says, at any speed.
        parts: list[str | Silence] = [
            part if isinstance(part, str) else Silence(part * request.speed)
            for part in parts_of(spoken.text, self.options_without_voice.language, self.max_part_chars)
        ]
        texts = sum(isinstance(part, str) for part in parts)
        if not texts:
            parts.append(Silence(NOTHING_S * request.speed))
        options, audio = self.options_without_voice, self.audio
        if options.seed is not None:
            # The same request has the same file, bit for bit, and another text another number.
            number = zlib.crc32(repr((parts, options.seed)).encode(errors="surrogatepass"))
            audio = replace(audio, stream_number=number % 2**31)
        if texts > 1 and options.seed is None:
            # All parts share one seed, so that they sound like one recording.
            options = replace(options, seed=draw_seed())
        warnings = self.warnings + warnings_of(self.text_plan, request.input, spoken)
        return replace(
            self, parts=tuple(parts), spoken=spoken, warnings=warnings, options_without_voice=options, audio=audio
        )

    def part_ends(self) -> list[int]:
        """Ends of the parts' texts in the request's text, in characters. The job's text has been read."""
        request, spoken = self.request, self.spoken
        assert isinstance(request, SpeechRequest)
        assert spoken is not None, "the text of the job has been read"
        ends: list[int] = []
        place = 0
        for part in self.parts:
            if isinstance(part, str):
                place = spoken.text.index(part, place) + len(part.rstrip())
            elif tag := PAUSE_TAG.search(spoken.text, place):
                place = tag.end()
            ends.append(spoken.traced.ends[place - 1] if place else 0)
        ends[-1] = len(request.input)
        return ends

    def word_map(self) -> WordMap:
        """Places of the words of the request's text, which has been read."""
        assert isinstance(self.request, SpeechRequest)
        assert self.spoken is not None, "the text of the job has been read"
        return WordMap.of(
            self.request.input, self.spoken.traced, [part for part in self.parts if isinstance(part, str)]
        )

    def with_word_times(self) -> "SpeechJob":
        """The same job with times of its words, if the model knows them."""
        if not self.engine.info.word_times:
            return self
        return replace(self, options_without_voice=replace(self.options_without_voice, word_times=True))

    async def find_voice(self) -> UtteranceOptions:
        """The options of every utterance, with the voice. Fetching and encoding a reference may take seconds.

        If the speech would miss `start_by_s` and be refused, no reference is fetched.

        Raises:
            ApiError: 400, the voice does not exist, or the reference is unusable, or a strict server would ignore the
                voice; names the field.
            NotServing: the engine is not running.
            Overloaded: too many references are being processed, or the speech would be refused.
        """
        if self.request.ref_audio is not None and self.max_wait_s is not None:
            self.engine.check_room(self.max_wait_s)
        speaker, reference = await self.references.voice_of(self.request, self.engine)
        voiced = replace(self.options_without_voice, speaker=speaker, reference=reference)
        if self.strict and ignores_voice(self.request, voiced):
            raise refused("voice")
        log_ignored(self.model, self.ignored_with(voiced))
        return voiced

    def ignored_with(self, voiced: UtteranceOptions) -> tuple[str, ...]:
        """The fields that are ignored, also `voice` if another voice was found, which is in `voiced`."""
        return (*self.ignored, *(("voice",) if ignores_voice(self.request, voiced) else ()))


def prepare(request: SpeechOptions, service: Service, max_wait_s: float | None = None) -> SpeechJob:
    """The job of a SpeechRequest, whose text is not read yet, or of options whose text arrives later.

    `max_wait_s` limits the seconds from now until its turn; None means no limit.

    Raises:
        ApiError: a field's value cannot be served; names the field.
    """
    if not isinstance(request, SpeechRequest):
        _check_live(request)
    model, engine = service.find_model(request.model or None)
    _note(request, model)
    _check_task(request, model, engine, service)
    _check_language(request, engine.info)
    if request.normalize is not None and request.normalization_options is not None:
        message = "normalize and normalization_options say the same; give one of them"
        raise invalid("normalization_options", message)
    _check_words(request, model, engine.info)
    config = service.config
    if isinstance(request, SpeechRequest):
        _check_text(request, config)
    options = _options_of(request, engine.info, config.default_seed)
    ignored: tuple[str, ...] = ()
    if ignores_instructions(request, engine.info):
        if config.strict:
            raise refused("instructions")
        options, ignored = replace(options, instructions=""), ("instructions",)
    return SpeechJob(
        model=model,
        engine=engine,
        audio=_audio_of(request, service.mark(model, _voice_of(request))),
        options_without_voice=options,
        request=request,
        references=service.references,
        text_plan=plan_text(request, engine.info, config),
        max_part_chars=min(config.max_part_chars, engine.info.max_utterance_chars or config.max_part_chars),
        leading_silence=request.leading_silence or config.leading_silence,
        warnings=(INSTRUCTIONS_IGNORED,) if ignored else (),
        ignored=ignored,
        strict=config.strict,
        seed_is_fixed=request.seed is not None,
        start_by_s=math.inf if max_wait_s is None else time.monotonic() + max_wait_s,
    )


def voice_for_log(request: SpeechOptions) -> str | None:
    """The name of a request's voice; that of its field if the voice is sent."""
    fields = ("ref_audio", "speaker_embedding")
    return next((name for name in fields if getattr(request, name) is not None), request.voice_name)


def _note(request: SpeechOptions, model: str) -> None:
    """Tells the log line what is asked for."""
    note(model=model, voice=voice_for_log(request), format=request.response_format)
    if isinstance(request, SpeechRequest) and current_line().event != "connection":  # which has those of its utterances
        note(chars=len(request.input))


def _voice_of(request: SpeechOptions) -> str | None:
    """The name of the voice; None for one that has none, such as that of a recording."""
    brings_voice = request.ref_audio is not None or request.speaker_embedding is not None
    return None if brings_voice else request.voice_name


def _check_live(options: SpeechOptions) -> None:
    """Raises a 400 for an option that needs the whole text before speech begins."""
    if options.non_streaming_mode:
        raise invalid("non_streaming_mode", "Live text is always spoken as it comes", "not_available")


def _audio_of(request: SpeechOptions, mark: AudioMark | None) -> AudioOptions:
    """The audio that is asked for, with a mark. Raises a 400 for a sample rate that its format cannot have."""
    name, rate = request.response_format, request.sample_rate
    audio = FORMATS[name]
    if audio.has_one_rate and rate not in (None, audio.sample_rate):
        message = f"{name} always has {audio.sample_rate} Hz; leave sample_rate out, or choose another response_format"
        raise invalid("sample_rate", message)
    return AudioOptions(name, request.speed, rate, mark=mark)


def _check_task(request: SpeechOptions, model: str, engine: SpeechEngine, service: Service) -> None:
    """Raises a 400 if the model cannot do the task. The message names a model that can."""
    task = request.task_type
    if task is not None and task != TASK_NAMES[engine.info.task]:
        can = _models_that(service, lambda info: TASK_NAMES[info.task] == task) or f"a {task} model"
        raise invalid("task_type", f"The model {model!r} does {TASK_NAMES[engine.info.task]}, not {task}; {can} does")
    if request.ref_audio is not None and not engine.info.clones:
        can = _models_that(service, lambda info: info.clones) or "a Base model"
        message = f"The model {model!r} does not clone voices from audio; {can} does"
        raise invalid("ref_audio", message, "not_available")


def _check_language(request: SpeechOptions, info: ModelInfo) -> None:
    """Raises a 400 for a language that the model lacks. The engine sees it too late: the text is read before that."""
    if request.language is not None and request.language.lower() not in info.languages:
        message = f"There is no language {request.language!r}; there are {', '.join(info.languages)}"
        raise invalid("language", message)


def _check_words(request: SpeechOptions, model: str, info: ModelInfo) -> None:
    """Raises a 400 for times of words that the model does not know, or that one field wants and the other does not."""
    field = "word_timestamps" if request.word_timestamps else "timestamp_granularities"
    if request.word_timestamps is False and request.timestamp_granularities:
        raise invalid(
            field, "word_timestamps is false, and timestamp_granularities asks for words; leave one of them out"
        )
    if request.wants_words and not info.word_times:
        raise no_word_times(field, model)


def no_word_times(field: str, model: str) -> ApiError:
    """The 400 for a model of which no attention head is known that follows the words."""
    message = f"The model {model!r} cannot tell when words are spoken; `vivavoce eval align` finds out whether it could"
    return invalid(field, message, "not_available")


def _models_that(service: Service, can: Callable[[ModelInfo], bool]) -> str:
    return " or ".join(repr(name) for name, engine in service.engines.items() if can(engine.info))


def _options_of(request: SpeechOptions, info: ModelInfo, default_seed: int | None) -> UtteranceOptions:
    """The options of an utterance except the voice."""
    defaults = UtteranceOptions()
    return UtteranceOptions(
        language=defaults.language if request.language is None else request.language,
        instructions=request.instructions or "",
        sampling=_sampling_of(request, info.sampling),
        seed=default_seed if request.seed is None else request.seed,
        # The reference's wrappers read the whole text before they speak. Only the one that clones voices streams text.
        streaming_text=info.task == "base" if request.non_streaming_mode is None else not request.non_streaming_mode,
        max_frames=request.max_new_tokens,
        first_chunk_frames=request.initial_codec_chunk_frames or defaults.first_chunk_frames,
        word_times=request.wants_words,
    )


def _sampling_of(request: SpeechOptions, defaults: Sampling) -> Sampling:
    """The checkpoint's sampling with the request's changes. They apply to the talker (code 0), as in vLLM-Omni."""
    names = ("temperature", "top_p", "repetition_penalty")
    changes: dict[str, Any] = {name: getattr(request, name) for name in names if getattr(request, name) is not None}
    if changes.get("temperature", 1.0) < MIN_TEMPERATURE:
        changes["temperature"] = 0.0
    talker = replace(defaults.talker, **changes)
    if request.top_k is not None:
        talker = replace(talker, top_k=max(request.top_k, 0))  # -1 means "all" in vLLM, which is 0 here
    return replace(defaults, talker=talker)


def _check_text(request: SpeechRequest, config: ServerConfig) -> None:
    """Raises a 400 for a text that need not be read to be refused."""
    if request.stream_format == "sse" and request.stream is False:
        raise invalid("stream", "Server-sent events always stream")
    if not request.input.strip():
        raise nothing_to_speak()
    if len(request.input) > config.max_input_chars:
        message = f"The input has {len(request.input)} characters; the most is {config.max_input_chars}"
        raise invalid("input", message, "string_above_max_length")
    try:
        check_characters("input", request.input)
    except Rejected as error:
        raise rejected_as(error) from None
