"""The text of one live utterance on its way into the engine.

    fragments ─► Reading, in a worker thread ─► parts: speech, silence, speech … ─► the engine, one part at a time

A part is an utterance of the engine. Pause tags and the model's longest utterance end parts. The next part begins when
the one before it has been made, which is before it has been heard. It continues nothing in the model, but has the same
seed, gets the next row, and is never refused because the engine is busy.
"""

import asyncio
from collections.abc import AsyncIterator, Callable

from vivavoce_engine import AudioStream, LiveUtterance
from vivavoce_text import PAUSE_TAG, Reading, Spoken, Traced

from vivavoce_server.errors import ApiError, ErrorDetail
from vivavoce_server.jobs import NOTHING_S, Silence
from vivavoce_server.live.closing import fault
from vivavoce_server.live.cutting import PartCutter
from vivavoce_server.live.plan import LivePlan
from vivavoce_server.reading import CHARS_A_JOB, can_begin, check_speakable, in_worker, nothing_to_speak, warnings_of
from vivavoce_server.text_parts import TOO_MANY_PAUSES, PauseBudget, is_speakable
from vivavoce_server.word_times import WordMap

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
        follow: Callable[[], LiveUtterance],
        report: Callable[[ErrorDetail], None],
    ) -> None:
        """`first` speaks the first part, and `follow` opens the others. `report` sends an error that ends nothing."""
        self._plan = plan.text
        self._speed = plan.audio.speed
        self._follow = follow
        self._report = report
        self._reading: Reading = plan.text.start()
        self._cutter = PartCutter(plan.max_part_chars)
        self._pauses = PauseBudget()
        self._has_too_many_pauses = False
        self._unread = ""
        self._complete = False
        self._arrived = asyncio.Event()
        self._parts: asyncio.Queue[Part | None] = asyncio.Queue()
        self._next: LiveUtterance | None = first
        self._last = first
        self._open: LiveUtterance | None = None
        self._has_begun = False
        self._held = ""
        """Text of the next part, which has nothing to speak yet."""
        self._reached = 0
        """End of the written text that the current part has got."""
        self.ends: list[int] = []
        """Ends of the texts of the parts that have begun, in what was written. That of an open part moves on."""
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
            if PAUSE_TAG.fullmatch(piece.text):
                self._pause(piece)
                continue
            self.places.append(piece)
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
        self._put(Silence(seconds * self._speed))

    def _pass_over(self, detail: ErrorDetail) -> None:
        """Leaves out a pause tag, and reports why. That there are too many is reported once."""
        self._cutter.pass_over()
        if detail.code != TOO_MANY_PAUSES:
            self._report(fault(f"{detail.message}. The tag is passed over", "invalid_value", "text"))
        elif not self._has_too_many_pauses:
            self._has_too_many_pauses = True
            self._report(fault(f"{detail.message}. Further tags are passed over", TOO_MANY_PAUSES, "text"))

    async def _speak(self, text: str, word_ends: bool) -> None:
        if not text:
            return
        if self._open is not None:
            self.places.say(text)
            self._open.append(text, word_ends)
            self.ends[-1] = self._reached
            return
        self._held += text
        if is_speakable(text) if self._has_begun else can_begin(self._plan, text):
            await self._begin(word_ends)

    async def _begin(self, word_ends: bool = False) -> None:
        """Begins a part with the text that was held back."""
        if self._next is not None:
            live, self._next = self._next, None
        else:
            await self._last.stream.all_codes()  # so that an utterance has one row at a time
            live = self._follow()
        self._put(live.stream)
        self._last = self._open = live
        self._has_begun = True
        text, self._held = self._held, ""
        self.places.begin_part()
        self.places.say(text)
        live.append(text, word_ends)

    def _put(self, part: Part) -> None:
        self.ends.append(self._reached)
        self._parts.put_nowait(part)

    def _end_part(self, last: str = "") -> None:
        """Ends the part, which has `last` at its end. A part without anything to speak is left out."""
        live, self._open = self._open, None
        self.places.skip(self._held)
        self._held = ""
        if live is not None:
            if last:
                self.places.say(last)
                live.append(last)
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
            else:
                self._put(Silence(NOTHING_S * self._speed))
        self.ends[-1] = len(self.written)
        self.warnings += await in_worker(warnings_of, self._plan, self.written, spoken)

    def _spoken(self) -> Spoken:
        return Spoken(Traced.join(self._said), self._reading.left_out)

    # ---- and comes out as speech ------------------------------------------------------------------------------

    async def parts(self) -> AsyncIterator[Part]:
        """Yields the parts in order, each as soon as it has begun."""
        while (part := await self._parts.get()) is not None:
            yield part
