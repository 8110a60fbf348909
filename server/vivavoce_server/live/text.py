"""The text of one live utterance on its way into the engine.

    fragments ─► Reading, in a worker thread ─► parts: speech, silence, speech … ─► the engine, one part at a time

A part is an utterance of the engine. Pause tags, voice tags and the model's longest utterance end parts. The next part
begins when the one before it has been made, which is before it has been heard. It continues nothing in the model, but
has the same seed, gets the next row, and is never refused because the engine is busy.

A voice is found before the text behind its tag is read. Text goes on to arrive meanwhile.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable

from vivavoce_engine import AudioStream, LiveUtterance, Overloaded
from vivavoce_text import PAUSE_TAG, VOICE_TAG, Reading, Spoken, Traced, voice_of_tag

from vivavoce_server.errors import ApiError, ErrorDetail, error_detail, invalid
from vivavoce_server.jobs import NOTHING_S
from vivavoce_server.live.closing import fault
from vivavoce_server.live.cutting import PartCutter
from vivavoce_server.live.plan import LivePlan
from vivavoce_server.reading import CHARS_A_JOB, can_begin, check_speakable, in_worker, nothing_to_speak, warnings_of
from vivavoce_server.references import Chosen, facts_of
from vivavoce_server.said import PartTurn
from vivavoce_server.text_parts import MAX_TURNS, MAX_VOICES, TOO_MANY_PAUSES, PauseBudget, is_speakable
from vivavoce_server.turns import Silence, check_tag
from vivavoce_server.word_times import WordMap

TOO_MANY_TURNS = "too_many_turns"


class VoiceChange:
    """The beginning of another voice's turn."""


Part = AudioStream | Silence
"""The speech of a part, or the pause that it is."""


class LiveText:
    """Reads and speaks the text of one utterance. `feed` runs as a task; `parts` gives its speech.

    Nothing reaches the engine before there is a letter or digit to speak, because a model invents words for signs.
    """

    def __init__(
        self,
        plan: LivePlan,
        first: LiveUtterance,
        follow: Callable[[Chosen, bool], LiveUtterance],
        report: Callable[[ErrorDetail], None],
    ) -> None:
        """`first` speaks the first part, unless a tag gives it another voice. `follow` opens the others with a voice,
        and that one, which has to wait for its turn like any other. `report` sends an error that ends nothing.
        """
        self._settings = plan
        self._plan = plan.text
        self._follow = follow
        self._report = report
        self._reading: Reading = plan.text.start()
        self._cutter = PartCutter(plan.max_part_chars)
        self._pauses = PauseBudget()
        self._reported: set[str] = set()
        """Codes of limits that were exceeded, which are reported once."""
        self._turns = 0
        self._voice = plan.voice or ""
        self._speaks: Chosen = (plan.options.speaker, plan.options.reference)
        """The voice of the current part, whose name is `_voice`."""
        self._first_voice = facts_of(self._speaks)
        self._chosen: dict[str, Chosen] = {self._voice.casefold(): self._speaks}
        """The voices that were found, by their names in small letters."""
        self._is_paused = False
        """True if a pause tag stands behind what was spoken last."""
        self.voices: list[str] = []
        """Names of the voices that have spoken, each once."""
        self._last_voice: Hashable = None
        """The facts of the voice that spoke last."""
        self._unread, self._complete = "", False
        self._arrived = asyncio.Event()
        self._parts: asyncio.Queue[Part | VoiceChange | None] = asyncio.Queue()
        self._next: LiveUtterance | None = first
        self._last = first
        self._open: LiveUtterance | None = None
        self._held = ""
        """Text of the next part, which has nothing to speak yet."""
        self._reached = 0
        """End of the written text that the current part has got."""
        self.ends: list[int] = []
        """Ends of the texts of the parts that have begun, in what was written. That of an open part moves on."""
        self.part_turns: list[PartTurn | None] = []
        """The turn of each such part; None for a pause."""
        self._turn = -1
        """Number of the turn that speaks."""
        self.texts: list[str] = []
        """Text of each part that speaks. That of an open part grows."""
        self.places = WordMap()
        """Places of the parts' words in the writing. Its `written` is the text that has been read."""
        self._said: list[Traced] = []
        self.chars = 0
        """Characters of text so far."""
        self.passed_over = False
        """True once text was refused because the utterance would be too long with it."""
        self.ignored = plan.ignored
        self.warnings = plan.warnings
        """Sentences that say what is not spoken as it was asked for. Those about the text come at its end."""

    # ---- text comes in ----------------------------------------------------------------------------------------

    @property
    def written(self) -> str:
        """The text that has been read."""
        return self.places.written

    @property
    def _has_begun(self) -> bool:
        return self._next is None

    def append(self, text: str) -> None:
        self.chars += len(text)
        self._unread += text
        self._arrived.set()

    def end(self) -> None:
        self._complete = True
        self._arrived.set()

    # ---- and goes into the engine -----------------------------------------------------------------------------

    async def feed(self) -> None:
        """Takes all text to the engine. Returns when its end is there.

        Raises:
            ApiError: nothing in the text can be spoken.
            EngineError: the engine refuses the text, or could not go on.
        """
        while text := await self._take_unread():
            self.places.written += text
            await self._say(await in_worker(self._reading.append, text))
        await self._say(await in_worker(self._reading.close))
        self.places.close()
        await self._finish()
        self._parts.put_nowait(None)

    async def _take_unread(self) -> str:
        """The next characters that were not read, as few as a job of a worker takes. "" at the text's end."""
        while not self._unread and not self._complete:
            self._arrived.clear()
            await self._arrived.wait()
        text, self._unread = self._unread[:CHARS_A_JOB], self._unread[CHARS_A_JOB:]
        return text

    async def _say(self, pieces: list[Traced]) -> None:
        for piece in pieces:
            self._said.append(piece)
            self.places.append(piece)
            if PAUSE_TAG.fullmatch(piece.text):
                self._pause(piece)
                continue
            if VOICE_TAG.fullmatch(piece.text) and self._plan.profile.voice_tags:
                await self._change_voice(piece.text)
                continue
            signs = [place for place, char in enumerate(piece.text) if not char.isspace()]
            texts = self._cutter.append(piece.text)
            taken = 0
            for number, text in enumerate(texts, start=1):
                if number > 1:
                    self._end_part()
                # The cutter moves blanks alone.
                if signs_here := sum(not char.isspace() for char in text):
                    taken += signs_here
                    self._reached = piece.ends[signs[taken - 1]]
                await self._speak(text, number == len(texts) and self._ends_word(piece))

    def _ends_word(self, piece: Traced) -> bool:
        """True if the last word of a piece is complete. A blank behind it stays one, or a sign takes its place."""
        return piece.text[-1].isalnum() and self.written[piece.ends[-1] : piece.ends[-1] + 1].isspace()

    def _pause(self, tag: Traced) -> None:
        try:
            seconds = self._pauses.take(tag.text)
        except ApiError as error:
            self._pass_over(error.detail)
            return
        self._end_part(self._cutter.end_part())
        self._reached = tag.ends[-1]
        self._put(Silence(seconds * self._settings.audio.speed), self._reached)
        self._is_paused = True

    async def _change_voice(self, tag: str) -> None:
        """Gives the text behind a tag to its voice. One that does not exist is reported, and the voice stays."""
        name = voice_of_tag(tag) or ""
        try:
            chosen = await self._voice_of(tag, name.casefold())
        except (ApiError, Overloaded) as error:
            self._pass_over(error_detail(error)[1])
            return
        self._chosen[name.casefold()] = chosen
        if facts_of(chosen) == facts_of(self._speaks):
            self._cutter.pass_over()
            return
        self._end_part(self._cutter.end_part())
        self._voice, self._speaks = name, chosen

    async def _voice_of(self, tag: str, name: str) -> Chosen:
        check_tag(tag)
        self._turns += 1
        if self._turns > MAX_TURNS:
            raise invalid("input", f"There are more than {MAX_TURNS} voice tags, which is the most", TOO_MANY_TURNS)
        if name in self._chosen:
            return self._chosen[name]
        if len(self._chosen) == MAX_VOICES:
            raise invalid("input", f"There are more than {MAX_VOICES} voices, which is the most", TOO_MANY_TURNS)
        return await self._settings.voice_of_tag(tag)

    def _pass_over(self, detail: ErrorDetail) -> None:
        """Leaves out a tag, and reports why. That there are too many is reported once."""
        self._cutter.pass_over()
        if detail.code not in (TOO_MANY_PAUSES, TOO_MANY_TURNS):
            code = "invalid_value" if detail.code is None else detail.code
            self._report(fault(f"{detail.message}. The tag is passed over", code, "text"))
            return
        self._report_limit(detail, "Further tags are passed over")

    def _report_limit(self, detail: ErrorDetail, effect: str) -> None:
        assert detail.code is not None
        if detail.code not in self._reported:
            self._reported.add(detail.code)
            self._report(fault(f"{detail.message}. {effect}", detail.code, "text"))

    async def _speak(self, text: str, word_ends: bool) -> None:
        if not text:
            return
        if self._open is not None:
            self._append(self._open, text, word_ends)
            self.ends[-1] = self._reached
            return
        self._held += text
        if is_speakable(text) if self._has_begun else can_begin(self._plan, text):
            await self._begin(word_ends)

    async def _begin(self, word_ends: bool = False) -> None:
        """Begins a part with the text that was held back."""
        first, self._next = self._next, None
        voice = facts_of(self._speaks)
        if first is None:
            await self._last.stream.all_codes()  # so that an utterance has one row at a time
            live = self._follow(self._speaks, False)
        elif voice == self._first_voice:
            live = first
        else:
            first.stream.cancel()
            live = self._follow(self._speaks, True)
        self._begin_turn(voice)
        self._put(live.stream, self._reached)
        self._last = self._open = live
        text, self._held = self._held, ""
        self.places.begin_part()
        self.texts.append("")
        self._append(live, text, word_ends)

    def _append(self, live: LiveUtterance, text: str, word_ends: bool = False) -> None:
        """Gives text to the open part."""
        self.places.say(text)
        self.texts[-1] += text
        live.append(text, word_ends)

    def _begin_turn(self, voice: Hashable) -> None:
        """Puts what is between the turns of two voices, if another voice has spoken before."""
        if self._voice and self._voice not in self.voices:
            self.voices.append(self._voice)
        before, self._last_voice = self._last_voice, voice
        if before is not None and before != voice:
            self._pause_between_turns()
            self._parts.put_nowait(VoiceChange())
        self._turn += before != voice
        self._is_paused = False

    def _pause_between_turns(self) -> None:
        seconds = self._settings.turn_pause_s
        if self._is_paused or not seconds:
            return
        try:
            self._pauses.take_seconds(seconds, "turn_pause_s")
        except ApiError as error:
            self._report_limit(error.detail, "Further turns follow without one")
        else:
            self._put(Silence(seconds * self._settings.audio.speed, is_written=False), self.ends[-1])

    def _put(self, part: Part, end: int) -> None:
        """Puts a part, whose text ends at `end` in what was written."""
        self.ends.append(end)
        self.part_turns.append(None if isinstance(part, Silence) else PartTurn(self._turn, self._voice or None))
        self._parts.put_nowait(part)

    def _end_part(self, last: str = "") -> None:
        """Ends the part, which has `last` at its end. A part without anything to speak is left out."""
        live, self._open = self._open, None
        self.places.skip(self._held)
        self._held = ""
        if live is not None:
            if last:
                self._append(live, last)
            live.end()

    async def _finish(self) -> None:
        if self._has_begun:
            self._end_part(self._cutter.end_part())
        elif not self.written.strip():
            raise nothing_to_speak("All of the input was passed over") if self.passed_over else nothing_to_speak()
        spoken = await in_worker(self._spoken)
        if not self._has_begun:
            await in_worker(check_speakable, self._plan, self.written, spoken)
            if is_speakable(self._held):
                await self._begin()
                self._end_part(self._cutter.end_part())
            elif not self.ends:
                self._put(Silence(NOTHING_S * self._settings.audio.speed), self._reached)
        self.ends[-1] = len(self.written)
        self.warnings += await in_worker(warnings_of, self._plan, self.written, spoken)

    def _spoken(self) -> Spoken:
        return Spoken(Traced.join(self._said), self._reading.left_out)

    # ---- and comes out as speech ------------------------------------------------------------------------------

    async def parts(self) -> AsyncIterator[Part | VoiceChange]:
        """Yields the parts in order, each as soon as it has begun, and where another voice goes on."""
        while (part := await self._parts.get()) is not None:
            yield part
