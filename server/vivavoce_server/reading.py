"""Reads written text as words that a model can speak, in worker threads.

The reading itself is vivavoce_text's. This module decides which stages run, and what cannot be spoken.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TypeVar

from vivavoce_engine import ModelInfo
from vivavoce_text import Profile, Reading, Spoken, Stage, Traced, script_of, scripts_of, speakable

from vivavoce_server.config import ServerConfig
from vivavoce_server.errors import SHOWN_CHARS, ApiError, invalid
from vivavoce_server.schemas import NormalizationOptions, SpeechOptions
from vivavoce_server.stage_names import ALL_STAGES, StageName, stages_of
from vivavoce_server.text_parts import LANGUAGE_CODES, TAG, is_heard

T = TypeVar("T")
THREADS = ThreadPoolExecutor(2, "vivavoce-text")
"""The grammar of numbers holds Python's lock while it works, so more threads would gain nothing."""
CHARS_A_JOB = 200
"""Characters that a thread reads before others have their turn."""
SAMPLE = "**On 5/6/2026** it cost $5.50, and 3 km away \u4e94\u5341 FBI men read `x_y` and $x^2$ on example.com."
"""A text that has work for every stage."""
ANY_PROSE: tuple[Stage, ...] = ("clean", "emoji", "markup")
ENGLISH_PROSE: tuple[Stage, ...] = ("formulas", "urls", "emails", "names")
"""Stages by default for text whose language is English, or told by the script of each piece."""
WARNINGS_HEADER = "X-Vivavoce-Warnings"
WARNINGS_ABOUT = (
    "The parts of the request that are not spoken as they were asked for: a JSON array of strings, in ASCII"
)
NOTHING_SPOKEN = "Nothing in the text can be spoken; it is a short silence"
MOST_WARNED = 5
"""Most runs of letters that a warning names."""
MOST_WARNED_CHARS = 24
"""Most characters of a run that a warning repeats."""


@dataclass(frozen=True, slots=True)
class TextPlan:
    """Plan for the reading of a request's text.

    `language` is an ISO 639-1 code, or "" if the script of each piece decides. `scripts` are those that the model
    reads; empty means any. `languages` are the model's, for messages. If not `strict`, text that the model cannot
    speak is spoken as well as possible instead of refused.
    """

    language: str
    profile: Profile
    scripts: frozenset[str]
    languages: tuple[str, ...]
    strict: bool

    def start(self) -> Reading:
        """A reading of one text, for `in_worker`."""
        return Reading(self.language, self.profile)

    def with_markup(self) -> "TextPlan":
        """The same plan for a text of which a client says that it has tags (SSML). They are never spoken."""
        return replace(self, profile=replace(self.profile, stages=self.profile.stages | {"markup"}))


def plan_text(options: SpeechOptions, info: ModelInfo, config: ServerConfig) -> TextPlan:
    """The plan for a request to a model."""
    languages = info.spoken_languages
    language = _language_code(options.language or "auto", languages)
    text = info.text
    any_script = text.reads == "anything" or not all(name in LANGUAGE_CODES for name in languages)
    scripts = frozenset[str]().union(*(scripts_of(LANGUAGE_CODES[name]) for name in languages if not any_script))
    profile = Profile(
        stages=_stages(options, info, language, config),
        letters=text.letters,
        alphabet=text.alphabet,
        romanize=not config.strict_text,
        voice_tags=options.allow_voice_tags is not False,
    )
    return TextPlan(language, profile, scripts, languages, config.strict_text)


def _language_code(name: str, languages: tuple[str, ...]) -> str:
    name = name.lower()
    if name == "auto":
        return LANGUAGE_CODES.get(languages[0], "") if len(languages) == 1 else ""
    return LANGUAGE_CODES.get(name, "")


# ---- stages ---------------------------------------------------------------------------------------------------


def _stages(options: SpeechOptions, info: ModelInfo, language: str, config: ServerConfig) -> frozenset[Stage]:
    default = config.normalize
    stages = default_stages(info, language) if default == "checkpoint" else _chosen(default)
    if options.normalize is not None:
        return _chosen(options.normalize)
    if options.normalization_options is not None:
        return _switched(options.normalization_options, stages)
    return stages


def default_stages(info: ModelInfo, language: str) -> frozenset[Stage]:
    """The stages that a checkpoint needs for text in a language (ISO 639-1, or "")."""
    match info.text.reads:
        case "words":
            return ALL_STAGES
        case "prose":
            return frozenset(ANY_PROSE + (ENGLISH_PROSE if language in ("en", "") else ()))
        case "anything":
            return frozenset({"clean"})


def _chosen(choice: bool | Iterable[StageName]) -> frozenset[Stage]:
    if isinstance(choice, bool):
        return ALL_STAGES if choice else frozenset()
    return stages_of(choice)


def _switched(options: NormalizationOptions, stages: frozenset[Stage]) -> frozenset[Stage]:
    if options.normalize is not None:
        stages = _chosen(options.normalize)
    if options.normalize is False:
        return stages
    for switch, names in NormalizationOptions.SWITCHES.items():
        match getattr(options, switch):
            case True:
                stages |= stages_of(names)
            case False:
                stages -= stages_of(names)
    return stages


def normalize_of(apply_text_normalization: str | None) -> bool | None:
    """The field `normalize` that says what ElevenLabs' `apply_text_normalization` says.

    Raises:
        ApiError: 400, there is no such value.
    """
    choices: dict[str | None, bool | None] = {None: None, "auto": None, "on": True, "off": False}
    if apply_text_normalization not in choices:
        message = f"There is no {str(apply_text_normalization)[:SHOWN_CHARS]!r}; there are auto, on, off"
        raise invalid("apply_text_normalization", message)
    return choices[apply_text_normalization]


# ---- threads --------------------------------------------------------------------------------------------------


async def in_worker(step: Callable[..., T], *args: object) -> T:
    """Runs a short step of a reading in one of the threads for text."""
    return await asyncio.get_running_loop().run_in_executor(THREADS, step, *args)


async def read(plan: TextPlan, text: str) -> Spoken:
    """The text that will be said. It never fails: what a stage cannot read stays as it is."""
    reading = plan.start()
    said: list[Traced] = []
    for start in range(0, max(1, len(text)), CHARS_A_JOB):
        last = start + CHARS_A_JOB >= len(text)
        said += await in_worker(_read_some, reading, text[start : start + CHARS_A_JOB], last)
    return Spoken(Traced.join(said), reading.left_out)


def _read_some(reading: Reading, text: str, last: bool) -> list[Traced]:
    said = reading.append(text)
    return [*said, *reading.close()] if last else said


def warm_up(infos: Iterable[ModelInfo], config: ServerConfig) -> "Future[None]":
    """Loads in a worker what the models' texts need, so that the first request waits for no table."""
    plans = [plan_text(SpeechOptions(language=language), info, config) for info in infos for language in info.languages]
    return THREADS.submit(_read_samples, plans)


def _read_samples(plans: Iterable[TextPlan]) -> None:
    for plan in plans:
        speakable(SAMPLE, plan.language, plan.profile)


# ---- what cannot be spoken ------------------------------------------------------------------------------------


def can_begin(plan: TextPlan, text: str) -> bool:
    """True if live speech can begin with this text: it has a letter or a digit, and a strict plan's model reads it."""
    return any(char.isalnum() and not (plan.strict and _is_foreign(plan, char)) for char in text)


def check_speakable(plan: TextPlan, text: str, spoken: Spoken) -> None:
    """Refuses a text of which nothing can be spoken, or of which most letters are in scripts that the model does not
    read. A plan that is not strict refuses nothing.

    Raises:
        ApiError: 400, names the script.
    """
    if not plan.strict:
        return
    letters = _count_letters(plan, text, spoken)
    foreign = letters.passed_on + letters.left_out
    if len(foreign) > letters.known:
        counts = Counter(map(script_of, foreign))
        script = max(sorted(counts), key=counts.__getitem__)
        languages = ", ".join(name.capitalize() for name in plan.languages)
        raise invalid("input", f"This model does not read {script} letters; it reads {languages}", "unsupported_script")
    if not is_heard(spoken.text):
        raise nothing_to_speak()


def nothing_to_speak(because: str = "The input is blank") -> ApiError:
    """The 400 for a text without a letter or a digit."""
    return invalid("input", f"{because}: nothing in it can be spoken", "nothing_to_speak")


def warnings_of(plan: TextPlan, text: str, spoken: Spoken) -> tuple[str, ...]:
    """Sentences that say what of a text is not spoken as it is written."""
    warnings = []
    if spoken.left_out:
        warnings.append(f"The model cannot read these letters; they are left out: {_listed(spoken.left_out)}")
    letters = _count_letters(plan, text, spoken)
    if letters.passed_on:
        passed_on = _listed(_runs(TAG.sub(" ", spoken.text), lambda char: _is_foreign(plan, char)))
        warnings.append(f"The model may not read these letters: {passed_on}")
    if plan.profile.romanize and letters.romanized:
        romanized = _listed(_runs(TAG.sub(" ", text), lambda char: _is_foreign(plan, char)))
        warnings.append(f"The model cannot read these letters; Latin ones stand for them: {romanized}")
    if not is_heard(spoken.text):
        warnings.append(NOTHING_SPOKEN)
    return tuple(warnings)


def warnings_header(warnings: Iterable[str]) -> str:
    """The value of WARNINGS_HEADER."""
    return json.dumps(list(warnings))


@dataclass(frozen=True, slots=True)
class _Letters:
    """Letters of a text by what becomes of them. `known` counts those that the model reads."""

    known: int
    passed_on: str
    left_out: str
    romanized: int


def _count_letters(plan: TextPlan, text: str, spoken: Spoken) -> _Letters:
    passed_on = "".join(char for char in TAG.sub("", spoken.text) if _is_foreign(plan, char))
    gone = frozenset("".join(spoken.left_out))
    said = bytearray(len(text))
    tags = {index for tag in TAG.finditer(spoken.text) for index in range(*tag.span())}
    origins = enumerate(zip(spoken.traced.starts, spoken.traced.ends, strict=True))
    for start, end in sorted({origin for index, origin in origins if index not in tags}):
        said[start:end] = b"\1" * (end - start)
    letters = [(char, bool(is_said)) for char, is_said in zip(text, said, strict=True) if char.isalpha()]
    foreign_said = sum(is_said and _is_foreign(plan, char) for char, is_said in letters)
    return _Letters(
        known=max(0, sum(is_said for _, is_said in letters) - len(passed_on)),
        passed_on=passed_on,
        left_out="".join(char for char, is_said in letters if not is_said and char in gone),
        romanized=max(0, foreign_said - len(passed_on)),
    )


def _is_foreign(plan: TextPlan, char: str) -> bool:
    return bool(plan.scripts) and bool(script := script_of(char)) and script not in plan.scripts


def _runs(text: str, wanted: Callable[[str], bool]) -> Iterator[str]:
    """The longest runs of wanted characters, each once."""
    runs = dict.fromkeys("".join(run) for is_wanted, run in groupby(text, wanted) if is_wanted)
    return iter(runs)


def _listed(runs: Iterable[str]) -> str:
    """Names the first few runs, and counts the others."""
    all_runs = list(runs)
    names = [run if len(run) <= MOST_WARNED_CHARS else f"{run[:MOST_WARNED_CHARS]}..." for run in all_runs]
    more = len(names) - MOST_WARNED
    return ", ".join(names[:MOST_WARNED]) + (f" and {more} more" if more > 0 else "")
