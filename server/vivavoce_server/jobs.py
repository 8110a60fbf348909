"""Translates a request's body into the engine's options. HTTP, batches and live sockets all use this module."""

import math
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from vivavoce_engine import ModelInfo, Rejected, Sampling, SpeechEngine, UtteranceOptions, check_characters, draw_seed
from vivavoce_text import Spoken

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
from vivavoce_server.marks import OWN_VOICE, AudioMark
from vivavoce_server.reading import (
    NOTHING_SPOKEN,
    TextPlan,
    check_speakable,
    in_worker,
    nothing_to_speak,
    plan_text,
    read,
    warnings_of,
)
from vivavoce_server.references import Chosen, References, meaning_of, mismatch_warnings
from vivavoce_server.request_lines import current_line, note
from vivavoce_server.schemas import TASK_NAMES, SpeechOptions, SpeechRequest
from vivavoce_server.service import Service
from vivavoce_server.text_parts import is_heard
from vivavoce_server.turns import (
    Script,
    Silence,
    Turn,
    check_turns,
    joined,
    names_of,
    naming_segment,
    script_of,
    speakers_of,
    voice_key,
)
from vivavoce_server.word_times import WordMap

NOTHING_S = 0.3
"""Seconds of silence that stand for a text of which nothing can be spoken."""
MIN_TEMPERATURE = 0.01
"""Below it, the most likely code is drawn, as with temperature 0. Logits divided by less could overflow."""


@dataclass(frozen=True, slots=True)
class SpeechJob:
    """The parts of one file, in order. A job has none until it is `read`, and never if its text arrives later.

    `text_plan` tells how its text is read, also one that arrives later. `spoken` is what will be said, and `warnings`
    say what of the request will not be as it was asked for. `max_part_chars` is the longest part, in characters.
    `turns` are those of the request's own fields or of its segments, and, once it is read, those of its tags.

    `ignored` are the fields that the model cannot follow; a `strict` server refuses them instead.

    `model` is the engine's name on this server. `find_voices` adds the voices to the options of the turns.
    `seed_is_fixed` is true if the client chose the seed. The job is refused as Overloaded unless its first text has its
    turn by `start_by_s` (time.monotonic). Once begun, the job waits as long as necessary.
    """

    model: str
    engine: SpeechEngine
    audio: AudioOptions
    turns: tuple[Turn, ...]
    request: SpeechOptions
    references: References
    text_plan: TextPlan
    max_part_chars: int
    leading_silence: LeadingSilenceChoice
    script: Script | None = None
    spoken: Spoken | None = None
    warnings: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    strict: bool = False
    seed_is_fixed: bool = False
    start_by_s: float = math.inf

    @property
    def parts(self) -> tuple[str | Silence, ...]:
        """The texts and pauses, in order."""
        return () if self.script is None else self.script.parts

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
        said = [await read(turn.plan, text) for turn, text in self._written()]
        return await in_worker(self._of_text, request, said)

    def _written(self) -> list[tuple[Turn, str]]:
        """The texts that are read one by one: the input, or the segments' texts."""
        assert isinstance(self.request, SpeechRequest)
        segments = self.request.segments
        texts = [self.request.input] if segments is None else [segment.text for segment in segments]
        return list(zip(self.turns, texts, strict=True))

    def _of_text(self, request: SpeechRequest, said: list[Spoken]) -> "SpeechJob":
        """The job of texts that have been read. Raises as `read`."""
        warnings = self._check_said(said)
        names = partial(meaning_of, engine=self.engine)
        script = script_of(self.turns, [each.text for each in said], self.max_part_chars, names)
        texts = sum(isinstance(part, str) for part in script.parts)
        if not script.parts:
            silence = Silence(NOTHING_S * script.speed)
            script = replace(
                script,
                parts=(*script.parts, silence),
                part_turns=(*script.part_turns, 0),
                spans=(*script.spans, (0, 0)),
            )
        audio = self.audio if request.segments is None else replace(self.audio, speed=script.speed)
        turns = script.turns
        if all(turn.options.seed is not None for turn in turns):
            audio = replace(audio, stream_number=_stream_number(script))
        if texts > 1:
            turns = _with_seeds(turns)
        return replace(
            self,
            turns=turns,
            script=replace(script, turns=turns),
            spoken=joined(said, [text for _, text in self._written()]),
            warnings=self.warnings + warnings,
            audio=audio,
        )

    def _check_said(self, said: list[Spoken]) -> tuple[str, ...]:
        """Warnings about what was read. Raises as `read`; a segment that says nothing is left out beside others."""
        warnings: dict[str, None] = {}
        for (turn, text), spoken in zip(self._written(), said, strict=True):
            with turn.naming_errors():
                try:
                    check_speakable(turn.plan, text, spoken)
                except ApiError as error:
                    if not turn.is_segment or error.detail.code != "nothing_to_speak":
                        raise
            warnings |= dict.fromkeys(warnings_of(turn.plan, text, spoken))
        says = [is_heard(spoken.text) for spoken in said]
        if not any(says) and self.text_plan.strict:
            raise nothing_to_speak()
        if any(says) and not all(says):
            del warnings[NOTHING_SPOKEN]
            silent = ", ".join(f"segments[{index}]" for index, is_said in enumerate(says) if not is_said)
            warnings[f"Nothing in these segments can be spoken; they are left out: {silent}"] = None
        return tuple(warnings)

    def part_ends(self) -> list[int]:
        """Ends of the parts' texts in the request's text, in characters. The job's text has been read."""
        request, spoken, script = self.request, self.spoken, self.script
        assert isinstance(request, SpeechRequest)
        assert spoken is not None
        assert script is not None, "the text of the job has been read"
        ends = [spoken.traced.ends[end - 1] if end else 0 for _, end in script.spans]
        ends[-1] = len(request.written)
        return ends

    def word_map(self) -> WordMap:
        """Places of the words of the request's text, which has been read."""
        assert isinstance(self.request, SpeechRequest)
        assert self.spoken is not None, "the text of the job has been read"
        return WordMap.of(
            self.request.written, self.spoken.traced, [part for part in self.parts if isinstance(part, str)]
        )

    @property
    def words_told(self) -> tuple[object, ...]:
        """All that decides the words of a file beside its speech: the text as it was written, and where each character
        that is said comes from. Empty if their times are not told."""
        if not self.turns[0].options.word_times:
            return ()
        assert isinstance(self.request, SpeechRequest)
        assert self.spoken is not None, "the text of the job has been read"
        return self.request.written, self.spoken.traced.starts, self.spoken.traced.ends

    def with_word_times(self) -> "SpeechJob":
        """The same job with times of its words, if the model knows them."""
        if not self.engine.info.word_times:
            return self
        turns = tuple(replace(turn, options=replace(turn.options, word_times=True)) for turn in self.turns)
        return replace(self, turns=turns)

    async def find_voices(self) -> tuple[UtteranceOptions, ...]:
        """The options of each turn's utterances, with its voice. Fetching and encoding a reference may take seconds.

        If the speech would miss `start_by_s` and be refused, no reference is fetched.

        Raises:
            ApiError: 400, a voice does not exist, or a reference is unusable, or a strict server would ignore a voice;
                names the field.
            NotServing: the engine is not running.
            Overloaded: too many references are being processed, or the speech would be refused.
        """
        if self.max_wait_s is not None and any(turn.asked.ref_audio is not None for turn in self.turns):
            self.engine.check_room(self.max_wait_s)
        found: list[tuple[tuple[object, ...], Chosen]] = []
        cast = []
        for turn in self.turns:
            key = voice_key(turn.asked)
            with turn.naming_errors():
                chosen = next((each for known, each in found if known == key), None)
                if chosen is None:
                    chosen = await self.references.voice_of(turn.asked, self.engine)
                    found.append((key, chosen))
                voiced = replace(turn.options, speaker=chosen[0], reference=chosen[1])
                if self.strict and ignores_voice(turn.asked, voiced):
                    raise refused("voice")
            cast.append(voiced)
        log_ignored(self.model, self.ignored_with(cast))
        return tuple(cast)

    async def voice_of_tag(self, tag: str) -> Chosen:
        """The voice that a tag in live text names.

        Raises:
            ApiError: 400, the voice does not exist; names the tag.
            Overloaded: too many references are being processed.
        """
        turn = self.turns[0].by_tag(tag, 0)
        with turn.naming_errors():
            return await self.references.voice_of(turn.asked, self.engine)

    def warnings_with(self, cast: Sequence[UtteranceOptions]) -> tuple[str, ...]:
        """The warnings, with those about the voices that were found for the turns."""
        return (*self.warnings, *mismatch_warnings(voiced.reference for voiced in cast))

    def ignored_with(self, cast: Sequence[UtteranceOptions]) -> tuple[str, ...]:
        """The fields that are ignored, also `voice` if another voice was found for a turn. `cast` has those found."""
        ignores = any(ignores_voice(turn.asked, voiced) for turn, voiced in zip(self.turns, cast, strict=True))
        return (*self.ignored, *(("voice",) if ignores else ()))


def _stream_number(script: Script) -> int:
    """The serial number of a seeded file: the same request has the same one, and another text another one."""
    seeds = [turn.options.seed for turn in script.turns]
    key = (
        list(script.parts),
        *(seeds if len(seeds) == 1 else [(turn.voice, turn.options.seed) for turn in script.turns]),
    )
    return zlib.crc32(repr(key).encode(errors="surrogatepass")) % 2**31


def _with_seeds(turns: Sequence[Turn]) -> tuple[Turn, ...]:
    """The same turns. Those without a seed share one, so that they sound like one recording."""
    seed = draw_seed()
    return tuple(
        turn if turn.options.seed is not None else replace(turn, options=replace(turn.options, seed=seed))
        for turn in turns
    )


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
    if engine.info.task == "chat":
        message = f"The model {model!r} speaks the answers of its thinker, not texts: POST /v1/chat/completions"
        raise invalid("model", message, "not_available")
    if request.normalize is not None and request.normalization_options is not None:
        message = "normalize and normalization_options say the same; give one of them"
        raise invalid("normalization_options", message)
    _check_words(request, model, engine.info)
    config = service.config
    if isinstance(request, SpeechRequest):
        _check_text(request, config)
    turns, ignored = _turns_of(request, model, service)
    info = engine.info
    return SpeechJob(
        model=model,
        engine=engine,
        audio=_audio_of(request, service.mark(model, names_of(request, OWN_VOICE))),
        turns=turns,
        request=request,
        references=service.references,
        text_plan=plan_text(request, info, config),
        max_part_chars=min(config.max_part_chars, info.max_utterance_chars or config.max_part_chars),
        leading_silence=request.leading_silence or config.leading_silence,
        warnings=(INSTRUCTIONS_IGNORED,) if ignored else (),
        ignored=ignored,
        strict=config.strict,
        seed_is_fixed=all(turn.asked.seed is not None for turn in turns),
        start_by_s=math.inf if max_wait_s is None else time.monotonic() + max_wait_s,
    )


def _turns_of(request: SpeechOptions, model: str, service: Service) -> tuple[tuple[Turn, ...], tuple[str, ...]]:
    """The turn of a request, or those of its segments, and the fields that are ignored. Raises as `prepare`."""
    segments = request.segments if isinstance(request, SpeechRequest) else None
    asked = [request] if segments is None else speakers_of(request)
    engine, config = service.engines[model], service.config
    turns: list[Turn] = []
    ignored: tuple[str, ...] = ()
    for index, each in enumerate(asked):
        with nullcontext() if segments is None else naming_segment(index):
            _check_task(each, model, engine, service)
            _check_language(each, engine.info)
            options = _options_of(each, engine.info, config.default_seed)
            if ignores_instructions(each, engine.info):
                if config.strict:
                    raise refused("instructions")
                options, ignored = replace(options, instructions=""), ("instructions",)
        plan = plan_text(each, engine.info, config)
        turns.append(Turn(each, options, plan, index, is_segment=segments is not None))
    return tuple(turns), ignored


def _note(request: SpeechOptions, model: str) -> None:
    """Tells the log line what is asked for."""
    note(model=model, voice=names_of(request), format=request.response_format)
    if isinstance(request, SpeechRequest) and current_line().event != "connection":  # which has those of its utterances
        note(chars=len(request.written))


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
        # Speech hurries where its text runs ahead of it, so a text that is known is read before it is spoken. Of the
        # reference's wrappers, the one that clones voices streams text unless it is told not to.
        streaming_text=request.non_streaming_mode is False,
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
    check_turns(request)
    field = "input" if request.segments is None else "segments"
    if (chars := len(request.written)) > config.max_input_chars:
        message = f"The {field} has {chars} characters; the most is {config.max_input_chars}"
        raise invalid(field, message, "string_above_max_length")
    if request.segments is None:
        _check_written(request.input)
    else:
        for index, segment in enumerate(request.segments):
            with naming_segment(index):
                _check_written(segment.text)


def _check_written(text: str) -> None:
    """Raises a 400 for a text that is blank, or has characters that no text has."""
    if not text.strip():
        raise nothing_to_speak()
    try:
        check_characters("input", text)
    except Rejected as error:
        raise rejected_as(error) from None
