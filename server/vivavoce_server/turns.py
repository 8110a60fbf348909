"""Turns of a dialogue: stretches of a text, each of which one voice speaks.

A request has several by tags `[voice:NAME]` in its `input`, or by `segments`. Every turn becomes parts, as a text of
one voice does, and all of them are one file. The next turn is made while the one before it is heard.
"""

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice, pairwise

from vivavoce_engine import UtteranceOptions
from vivavoce_text import MAX_VOICE_CHARS, PAUSE_TAG, VOICE_TAG, Spoken, Traced, voice_of_tag

from vivavoce_server.errors import SHOWN_CHARS, ApiError, invalid
from vivavoce_server.reading import TextPlan
from vivavoce_server.schemas import Segment, SpeechOptions, SpeechRequest
from vivavoce_server.text_parts import (
    MAX_TURNS,
    MAX_VOICES,
    TAG,
    TURN_PAUSE_S,
    PauseBudget,
    is_speakable,
    split_long,
    without_tag,
)

LONG_TAG = re.compile(rf"\[voice:[^\]\[\n]{{{MAX_VOICE_CHARS + 1}}}[^\]\[\n]*\]", re.IGNORECASE)
LISTED = "GET /v1/audio/voices lists the voices"


@dataclass(frozen=True, slots=True)
class Silence:
    """A pause between two parts of a text. `is_written` is false if no tag of the text stands for it."""

    seconds: float
    is_written: bool = True


@dataclass(frozen=True, slots=True)
class Turn:
    """A stretch of a text that one voice speaks.

    `asked` are the request's fields as they are for this turn. `options` are those of its utterances, without the
    voice, and `plan` tells how its text is read. Errors name it by its `tag`, or by its `index` if it is a segment.
    """

    asked: SpeechOptions
    options: UtteranceOptions
    plan: TextPlan
    index: int = 0
    tag: str = ""
    is_segment: bool = False

    @property
    def voice(self) -> str | None:
        """Name of the voice; None for one that has none, such as that of a recording."""
        brings_voice = self.asked.ref_audio is not None or self.asked.speaker_embedding is not None
        return None if brings_voice else self.asked.voice_name

    @contextmanager
    def naming_errors(self) -> Iterator[None]:
        """Makes errors about the turn's fields name the turn."""
        with naming_segment(self.index) if self.is_segment else naming_tag(self.tag):
            yield

    def by_tag(self, tag: str, index: int) -> "Turn":
        """The turn that begins at a voice tag. Only its voice is another one."""
        return replace(self, asked=voiced(self.asked, voice_of_tag(tag) or ""), tag=tag, index=index)


@dataclass(frozen=True, slots=True)
class Script:
    """A text's parts in order, and its turns.

    Each part has the number of its turn in `part_turns`, and in `spans` its place in the text that has been read: its
    first character, and the one behind its last. `speed` is the factor of the whole file's speaking rate.
    """

    parts: tuple[str | Silence, ...]
    part_turns: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]
    turns: tuple[Turn, ...]
    speed: float = 1.0

    def tempo(self, number: int) -> float:
        """Factor of the speaking rate of a part beside the file's."""
        part = self.parts[number]
        return self.turns[self.part_turns[number]].asked.speed / self.speed if isinstance(part, str) else 1.0

    @property
    def numbers(self) -> dict[int, int]:
        """The numbers that clients see, of the turns that say something. Segments keep their places in the request."""
        said = sorted({turn for part, turn in zip(self.parts, self.part_turns, strict=True) if isinstance(part, str)})
        return {turn: turn if self.turns[turn].is_segment else number for number, turn in enumerate(said)}

    @property
    def is_dialogue(self) -> bool:
        return len(self.numbers) > 1


# ---- what is asked for ----------------------------------------------------------------------------------------


def voiced(asked: SpeechOptions, voice: str) -> SpeechOptions:
    """The same fields with another voice, which has a name."""
    return asked.model_copy(update={**dict.fromkeys(Segment.VOICE_FIELDS), "voice": voice})


def speakers_of(request: SpeechOptions) -> list[SpeechOptions]:
    """The fields of each turn that a request asks for, in order. A request without turns is one.

    Text before the first tag that is not blank is a turn too. Tags beyond the limit are left out.
    """
    if not isinstance(request, SpeechRequest):
        return [request]
    if request.segments is not None:
        return [_of_segment(request, segment) for segment in request.segments]
    if request.allow_voice_tags is False:
        return [request]
    tags = list(islice(VOICE_TAG.finditer(request.input), MAX_TURNS + 1))
    speakers: list[SpeechOptions] = [voiced(request, tag[1].strip()) for tag in tags]
    return speakers if tags and not request.input[: tags[0].start()].strip() else [request, *speakers]


def _of_segment(request: SpeechRequest, segment: Segment) -> SpeechRequest:
    """A request for a segment alone."""
    given = {name: getattr(segment, name) for name in segment.model_fields_set - {"text"}}
    if not SpeechOptions(voice=segment.voice).voice_name:
        given.pop("voice", None)
    hidden = dict.fromkeys(Segment.VOICE_FIELDS if given.keys() & set(Segment.VOICE_FIELDS) else ())
    return request.model_copy(update={**hidden, **given, "input": segment.text, "segments": None})


def voice_key(asked: SpeechOptions, meaning: Callable[[str], Hashable] = str.casefold) -> tuple[object, ...]:
    """A value that is the same for the same voice, as far as `meaning` knows the names of one voice."""
    name = asked.voice_name and meaning(asked.voice_name)
    return name, *(getattr(asked, field) for field in Segment.VOICE_FIELDS if field != "voice")


def names_of(request: SpeechOptions, own: str = "") -> str | None:
    """The names of a request's voices, for its log line and the mark of its audio. None if none has a name.

    A voice that is sent has the name `own`, or that of its field.
    """
    fields = ("ref_audio", "speaker_embedding")
    found = (
        next((own or name for name in fields if getattr(asked, name) is not None), asked.voice_name)
        for asked in speakers_of(request)
    )
    return ", ".join(islice(dict.fromkeys(name for name in found if name), MAX_VOICES)) or None


def check_turns(request: SpeechRequest) -> None:
    """Raises a 400 for turns that are too many, or of too many voices, and for tags that cannot be meant."""
    if request.segments is None:
        if request.allow_voice_tags is False:
            return
        check_tags(request.input)
    else:
        _check_segments(request)
    voices: list[tuple[object, ...]] = []
    for asked in speakers_of(request):
        if (key := voice_key(asked)) not in voices:
            voices.append(key)
    if len(voices) > MAX_VOICES:
        field = "input" if request.segments is None else "segments"
        raise invalid(field, f"There are {len(voices)} voices; the most is {MAX_VOICES}", "too_many_voices")


def check_tags(text: str) -> None:
    """Raises a 400 for tags that are too many, too long or without a name."""
    if long := LONG_TAG.search(text):
        shown = f"{long[0][:SHOWN_CHARS]}..."
        raise invalid("input", f"{shown} is too long; a voice's name has at most {MAX_VOICE_CHARS} characters in a tag")
    tags = [tag[0] for tag in VOICE_TAG.finditer(text)]
    if len(tags) > MAX_TURNS:
        raise invalid("input", f"There are {len(tags)} voice tags; the most is {MAX_TURNS}", "too_many_turns")
    for tag in tags:
        check_tag(tag)


def check_tag(tag: str) -> None:
    """Raises a 400 for a tag without a name."""
    if not voice_of_tag(tag):
        raise invalid("input", f"{tag} names no voice; write [voice:NAME]. {LISTED}", "voice_not_found")


def _check_segments(request: SpeechRequest) -> None:
    assert request.segments is not None
    if request.input:
        raise invalid("segments", "input and segments are two texts; send one of them")
    for index, segment in enumerate(request.segments):
        tag = VOICE_TAG.search(segment.text)
        if tag is not None and request.allow_voice_tags is not False:
            message = f"{tag[0]} is in a segment, which has one voice; make the text behind the tag a segment"
            raise invalid(f"segments[{index}].text", message)


@contextmanager
def naming_segment(index: int) -> Iterator[None]:
    """Makes errors about the fields of a segment name the segment."""
    try:
        yield
    except ApiError as error:
        field = {"input": "text", None: "text"}.get(error.detail.param, error.detail.param)
        raise _renamed(error, f"segments[{index}].{field}", error.detail.message) from error


@contextmanager
def naming_tag(tag: str) -> Iterator[None]:
    """Makes errors about a voice name the tag that asks for it. "" stands for no tag."""
    try:
        yield
    except ApiError as error:
        if not tag:
            raise
        shown = tag if len(tag) <= SHOWN_CHARS else f"{tag[:SHOWN_CHARS]}..."
        raise _renamed(error, "input", f"{shown}: {error.detail.message}. {LISTED}") from error


def _renamed(error: ApiError, field: str, message: str) -> ApiError:
    detail = error.detail
    return ApiError(error.status, message, field, detail.code or "invalid_value", detail.type, error.retry_after_s)


def turn_pause_s(request: SpeechOptions) -> float:
    """Seconds of silence between the turns of two voices."""
    return TURN_PAUSE_S if request.turn_pause_s is None else request.turn_pause_s


def pauses_between_turns(request: SpeechRequest) -> list[float]:
    """Seconds of the pauses between a request's turns, at most: pause tags may take the place of some."""
    keys = [voice_key(asked) for asked in speakers_of(request)]
    return [turn_pause_s(request) for before, behind in pairwise(keys) if before != behind]


# ---- what is said ---------------------------------------------------------------------------------------------


def joined(said: Iterable[Spoken], written: Iterable[str]) -> Spoken:
    """The reading of texts that are written in lines of their own."""
    parts: list[Traced] = []
    left_out: dict[str, None] = {}
    offset = 0
    for spoken, text in zip(said, written, strict=True):
        if parts:
            parts.append(Traced.source("\n", offset - 1))
        traced = spoken.traced
        starts, ends = (tuple(at + offset for at in places) for places in (traced.starts, traced.ends))
        parts.append(Traced(traced.text, starts, ends))
        left_out |= dict.fromkeys(spoken.left_out)
        offset += len(text) + 1
    return Spoken(Traced.join(parts), tuple(left_out))


def script_of(
    turns: Sequence[Turn], said: Sequence[str], max_part_chars: int, meaning: Callable[[str], Hashable] = str.casefold
) -> Script:
    """The script of texts that have been read, one for each turn. Voice tags in them begin further turns.

    `meaning` gives a value that is the same for all names of one voice.

    Raises:
        ApiError: 400, as PauseBudget.
    """
    writer = _Writer(max_part_chars, turn_pause_s(turns[0].asked), meaning)
    for turn, text in zip(turns, said, strict=True):
        writer.begin(turn)
        writer.write(text)
    return writer.script(turns)


class _Writer:
    """Writes a script, a text after the other."""

    def __init__(self, max_part_chars: int, turn_pause_s: float, meaning: Callable[[str], Hashable]) -> None:
        self._meaning = cache(meaning)
        self._max_part_chars = max_part_chars
        self._turn_pause_s = turn_pause_s
        self._budget = PauseBudget()
        self._parts: list[tuple[str | Silence, int, tuple[int, int]]] = []
        self._turns: list[Turn] = []
        self._turn: Turn | None = None
        """The current turn."""
        self._is_listed = False
        self._voices: list[tuple[object, ...]] = []
        """The voices that have spoken, with all that an acoustic context depends on."""
        self._last: Turn | None = None
        """The turn that spoke last."""
        self._is_paused = False
        """True if a pause tag stands behind what was spoken last."""
        self._read_chars = 0
        """Characters of the texts before the current one, with the ends of their lines."""
        self._held = ""
        """Text of the current turn behind the last tag that was not left out."""
        self._places: list[int] = []
        """The place of each of its characters in the text that has been read."""

    def begin(self, turn: Turn) -> None:
        """Begins a turn. One that is neither a tag's nor a segment counts only if there is something to speak in it."""
        self._turn, self._is_listed = turn, False
        if turn.tag or turn.is_segment:
            self._list_turn()

    def write(self, text: str) -> None:
        """Adds the text of the current turn, and of those that its tags begin."""
        place = 0
        assert self._turn is not None
        tags = TAG if self._turn.plan.profile.voice_tags else PAUSE_TAG
        for tag in tags.finditer(text):
            self._hold(text[place : tag.start()], self._read_chars + place)
            place = tag.end()
            name = voice_of_tag(tag[0])
            if name is None:
                self._speak()
                self._pause(tag[0], self._read_chars + tag.start(), self._read_chars + place)
            elif not self._has_voice(name):
                self._speak()
                self.begin(self._turn.by_tag(tag[0], len(self._turns)))
        self._hold(text[place:], self._read_chars + place)
        self._speak()
        self._read_chars += len(text) + 1

    def _hold(self, text: str, start: int) -> None:
        """Keeps text until the turn is over. A tag that is no turn, such as may stand before it, is left out."""
        following = without_tag(self._held, text)
        first = start + max(0, len(text) - len(following))
        self._places += [start] * (len(following) - len(text)) + list(range(first, start + len(text)))
        self._held += following

    def _list_turn(self) -> None:
        assert self._turn is not None
        self._turn, self._is_listed = replace(self._turn, index=len(self._turns)), True
        self._turns.append(self._turn)

    def _has_voice(self, name: str) -> bool:
        """True if the voice of this name speaks already."""
        assert self._turn is not None
        return self._turn.voice is not None and self._meaning(self._turn.voice) == self._meaning(name)

    def _pause(self, tag: str, start: int, end: int) -> None:
        assert self._turn is not None
        with self._turn.naming_errors() if self._turn.is_segment else nullcontext():
            seconds = self._budget.take(tag)
        self._parts.append((Silence(seconds), max(0, len(self._turns) - 1), (start, end)))
        self._is_paused = True

    def _speak(self) -> None:
        """Makes parts of the text that was held. A voice that speaks again, with no other since, continues its turn."""
        text, places = self._held, self._places
        self._held, self._places = "", []
        assert self._turn is not None
        last, asked = self._last, self._turn.asked
        if (
            last
            and not self._turn.is_segment
            and voice_key(last.asked, self._meaning) == voice_key(asked, self._meaning)
        ):
            self._turn, self._is_listed, asked = last, True, last.asked
        voice = *voice_key(asked), asked.language, asked.instructions
        at = 0
        if places and places[0] and voice not in self._voices:
            # Behind a tag, a voice that has nothing to go on from begins without a blank, as in live text.
            at = len(text) - len(text.lstrip())
        for part in split_long(text[at:], self._turn.options.language, self._max_part_chars):
            if is_speakable(part):
                self._pause_between_turns(places[at])
                if not self._is_listed:
                    self._list_turn()
                self._parts.append((part, self._turn.index, (places[at], places[at + len(part.rstrip()) - 1] + 1)))
                if voice not in self._voices:
                    self._voices.append(voice)
                self._last, self._is_paused = self._turn, False
            at += len(part)

    def _pause_between_turns(self, at: int) -> None:
        assert self._turn is not None
        if self._last is None or self._is_paused or not self._turn_pause_s:
            return
        if voice_key(self._last.asked, self._meaning) != voice_key(self._turn.asked, self._meaning):
            self._budget.take_seconds(self._turn_pause_s, "turn_pause_s")
            self._parts.append((Silence(self._turn_pause_s, is_written=False), self._last.index, (at, at)))

    def script(self, given: Sequence[Turn]) -> Script:
        turns = tuple(self._turns) or tuple(given)
        speeds = {turns[turn].asked.speed for part, turn, _ in self._parts if isinstance(part, str)}
        # Several speeds cannot be one of the file: each part gets its own.
        speed = 1.0 if len(speeds) > 1 else next(iter(speeds), turns[0].asked.speed)
        # A pause lasts as long as its tag says, at any speed.
        parts = [
            part if isinstance(part, str) else replace(part, seconds=part.seconds * speed) for part, *_ in self._parts
        ]
        return Script(
            tuple(parts),
            tuple(turn for _, turn, _ in self._parts),
            tuple(span for *_, span in self._parts),
            turns,
            speed,
        )
