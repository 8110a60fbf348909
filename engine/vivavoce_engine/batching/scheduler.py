"""The scheduler: which utterances start, make a frame, or become audio in the next step.

Pure Python: no tensors, no threads, no clock.
"""

import math
from collections import Counter
from collections.abc import Container
from dataclasses import dataclass

from vivavoce_engine.batching.capacity import Capacity
from vivavoce_engine.batching.pace import UNHURRIED, Moment, next_piece
from vivavoce_engine.batching.pending import Pending
from vivavoce_engine.batching.sequence import Sequence
from vivavoce_engine.batching.slots import Slots
from vivavoce_engine.config import EngineConfig
from vivavoce_engine.pages import pages_of
from vivavoce_engine.text.words import TextWord


@dataclass(frozen=True, slots=True)
class Plan:
    """One engine step: prefill `start`, make a frame for each of `step`, decode audio for `vocode`.

    Rows of `start` are part of `step` too, so a new utterance has its first frame, and usually its first audio, after
    one engine step. `vocode` gives the number of frames to decode, including the frame that the step makes.
    """

    start: tuple[Sequence, ...]
    step: tuple[Sequence, ...]
    vocode: tuple[tuple[Sequence, int], ...]

    def __bool__(self) -> bool:
        return bool(self.start or self.step or self.vocode)

    def count_begun(self, failed: Container[int] = ()) -> None:
        """Counts the plan's frames in its sequences once its step has begun, except for `failed` utterances."""
        for sequence in self.step:
            if sequence.utterance_id not in failed:
                sequence.add_frame()
        for sequence, frames in self.vocode:
            if sequence.utterance_id not in failed:
                sequence.add_vocoded(frames)


class Scheduler:
    """Owns the queue, the rows and the pages of the talker's KV cache: admits, plans, releases.

    A row gets pages as its speech grows. Where no page is free, older rows get the next ones first; the others rest.
    """

    def __init__(self, config: EngineConfig, max_unread_frames: int, pages: int, capacity: Capacity) -> None:
        self._config = config
        self._capacity = capacity
        self._max_unread_frames = max_unread_frames
        self._rows = Slots("row", config.rows)
        self._pages = Slots("page", pages)
        self._queue: dict[int, Pending] = {}
        self._running: dict[int, Sequence] = {}
        self.left_queue = 0
        """Requests that have left the queue so far, in whatever way."""
        self.short_of_pages = False
        """True while the next request in the queue waits for pages, though rows may be free."""

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waits(self) -> bool:
        """True if one more request would find no row free, as far as the last plan knows."""
        return self.short_of_pages or len(self._queue) >= self._rows.free

    def enqueue(self, pending: Pending) -> None:
        self._queue[pending.utterance_id] = pending

    def append_text(
        self, utterance_id: int, ids: tuple[int, ...], complete: bool, words: tuple[TextWord, ...] = ()
    ) -> None:
        """Adds text to an utterance that waits or runs. Text for an utterance that has ended is dropped."""
        if utterance_id in self._queue:
            self._queue[utterance_id].trailing.append(ids, complete, words)
        elif utterance_id in self._running:
            self._running[utterance_id].trailing.append(ids, complete, words)

    def cancel(self, utterance_id: int) -> None:
        """Removes an utterance from the queue or its row. An utterance that has already ended is no error."""
        if utterance_id in self._queue:
            self._dequeue(utterance_id)
        elif utterance_id in self._running:
            self.release(self._running[utterance_id])

    def _dequeue(self, utterance_id: int) -> Pending:
        pending = self._queue.pop(utterance_id)
        self.left_queue += 1
        return pending

    def expire(self, now_s: float) -> list[Pending]:
        """Removes and returns the requests that have waited past their deadlines."""
        late = [pending.utterance_id for pending in self._queue.values() if pending.deadline_s <= now_s]
        return [self._dequeue(utterance_id) for utterance_id in late]

    @property
    def next_deadline_s(self) -> float:
        """The earliest deadline in the queue, infinite without one."""
        return min((pending.deadline_s for pending in self._queue.values()), default=math.inf)

    def release(self, sequence: Sequence) -> None:
        """Frees the row and the pages of an utterance that is complete, cancelled or failed.

        A step that is underway may still write to them. Their next owner writes later, because steps run in the order
        in which they began, and so do changes to the table of each row's pages.
        """
        del self._running[sequence.utterance_id]
        self._rows.release(sequence.row)
        for page in sequence.pages:
            self._pages.release(page)

    def is_running(self, sequence: Sequence) -> bool:
        """True if the utterance still has its row."""
        return sequence.utterance_id in self._running

    def running_sequences(self) -> list[Sequence]:
        return list(self._running.values())

    def plan(self, moment: Moment = UNHURRIED) -> Plan:
        """Starts what fits, and steps every row that has text, room, and a listener who is not too far behind.

        Rows that run get their pages before any goes to one that starts. `pace.next_piece` decides which frames become
        audio at this `moment`.
        """
        step = [sequence for sequence in self._running.values() if self._wants_frame(sequence) and self._grow(sequence)]
        start = self._admit()
        step += filter(self._wants_frame, start)
        stepping = {sequence.utterance_id for sequence in step}
        largest = self._capacity.largest_piece(len(self._running), self._config.max_chunk_frames)
        pieces = (
            (sequence, next_piece(sequence, int(sequence.utterance_id in stepping), largest, moment))
            for sequence in self._running.values()
        )
        return Plan(tuple(start), tuple(step), tuple((sequence, frames) for sequence, frames in pieces if frames))

    def stuck(self) -> Sequence | None:
        """The youngest row, if every row waits for a page; asked when a plan is empty and no step is underway.

        No row can go on then before one gives way. A row that rests for its listener or for text does not count: it
        goes on or is cancelled, and its pages are free in the end.
        """
        running = self.running_sequences()
        if all(self._wants_frame(sequence) and self._lacks_page(sequence) for sequence in running):
            return running[-1] if running else None
        return None

    def queued(self) -> list[Pending]:
        """The requests in the queue, in the order of their arrival. Any thread may ask."""
        return list(self._queue.values())

    def rests(self, sequence: Sequence) -> bool:
        """True if the row waits because its listener has too much unread."""
        return sequence.stream.unread_frames > self._max_unread_frames

    def _wants_frame(self, sequence: Sequence) -> bool:
        return sequence.can_step and not self.rests(sequence)

    def _lacks_page(self, sequence: Sequence) -> bool:
        """True if the position of the next frame lies on a page that the row does not have yet."""
        return pages_of(sequence.position + 1) > len(sequence.pages)

    def _grow(self, sequence: Sequence) -> bool:
        """Gives the row a page for its next frame if it needs one. Returns False if none is free."""
        if not self._lacks_page(sequence):
            return True
        if not self._pages.free:
            return False
        sequence.pages.append(self._pages.take())
        return True

    def _admit(self) -> list[Sequence]:
        started: list[Sequence] = []
        tokens = 0
        self.short_of_pages = False
        while self._queue and self._rows.free and len(started) < self._config.max_prefills_per_step:
            pending = self._queue[self._next_in_turn()]
            tokens += pending.prompt.prefill_tokens
            if started and tokens > self._capacity.prefill_tokens:
                break
            if not self._fits(pending):
                self.short_of_pages = True
                break  # nothing overtakes it, or it would wait for ever
            sequence = Sequence(self._dequeue(pending.utterance_id), self._rows.take())
            sequence.pages += (self._pages.take() for _ in range(pages_of(sequence.position + 1)))
            self._running[sequence.utterance_id] = sequence
            started.append(sequence)
        return started

    def _fits(self, pending: Pending) -> bool:
        """True if there are pages for it beyond those that running rows will need by their own estimates."""
        promised = sum(
            max(0, self._pages_expected(sequence.pending) - len(sequence.pages)) for sequence in self._running.values()
        )
        return self._pages_expected(pending) <= self._pages.free - promised

    def _pages_expected(self, pending: Pending) -> int:
        """Pages for its prompt and its estimated frames, at most all pages."""
        frames = min(pending.max_frames, max(1, math.ceil(pending.frames)))
        return min(self._pages.count, pages_of(pending.prompt.prefill_tokens + frames))

    def _next_in_turn(self) -> int:
        """The next request to start.

        Requests that continue speech being heard come first. Then the oldest request of the client with the fewest
        rows, so that a burst of one client delays nobody else.
        """
        rows = Counter(sequence.pending.request.client for sequence in self._running.values())
        requests = {utterance_id: pending.request for utterance_id, pending in self._queue.items()}
        return min(requests, key=lambda number: (not requests[number].is_next, rows[requests[number].client]))

    def drop_all(self) -> list[Pending]:
        """Empties queue and rows, and returns the utterances that were in them."""
        dropped = [self._dequeue(utterance_id) for utterance_id in list(self._queue)]
        dropped += (sequence.pending for sequence in self._running.values())
        for sequence in list(self._running.values()):
            self.release(sequence)
        return dropped

    def check_integrity(self) -> None:
        """Raises AssertionError if a row or a page leaked."""
        self._rows.check_integrity(sequence.row for sequence in self._running.values())
        self._pages.check_integrity(page for sequence in self._running.values() for page in sequence.pages)
