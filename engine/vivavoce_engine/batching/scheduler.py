"""Who runs next. Pure Python: no tensors, no threads, no clock."""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from vivavoce_engine.batching.chunking import host_chunk_frames
from vivavoce_engine.batching.pending import Pending
from vivavoce_engine.batching.sequence import Sequence
from vivavoce_engine.batching.slots import Slots
from vivavoce_engine.config import EngineConfig
from vivavoce_engine.pages import pages_of

PREFILL_TOKENS = 1024
HOST_PREFILL_TOKENS = 512
"""Prompts that start in one step have no more than this, unless a single one has: many long ones would stall everybody.
On a host each counts as the longest, to which they are padded."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One engine step: prefill `start`, make a frame for each of `step`, decode audio for `vocode`.

    `start` rows are part of `step`, so a new utterance has its first frame, and usually its first audio, after one
    engine step. `vocode` gives the number of frames, the step's own included.
    """

    start: tuple[Sequence, ...]
    step: tuple[Sequence, ...]
    vocode: tuple[tuple[Sequence, int], ...]

    def __bool__(self) -> bool:
        return bool(self.start or self.step or self.vocode)


class Scheduler:
    """Owns the queue, the rows and the pages of the talker's KV cache: admits, plans, releases.

    A row's pages grow with its speech. Where none is free, older rows get the next ones first; the others rest.
    """

    def __init__(self, config: EngineConfig, max_unread_frames: int, pages: int, on_device: bool) -> None:
        """`on_device`: a device works beside the host, decodes beside the next frame, and takes prompts packed."""
        self._config = config
        self._on_device = on_device
        self._max_unread_frames = max_unread_frames
        self._rows = Slots("row", config.max_streams)
        self._pages = Slots("page", pages)
        self._queue: dict[int, Pending] = {}
        self._running: dict[int, Sequence] = {}
        self.left_queue = 0
        self.left_queue_frames = 0.0
        """How many requests, and estimated frames, have left the queue so far, by whatever way."""
        self.short_of_pages = False
        """Whether the next in the queue waits for pages, though there may be rows."""

    @property
    def running(self) -> int:
        return len(self._running)

    def enqueue(self, pending: Pending) -> None:
        self._queue[pending.utterance_id] = pending

    def append_text(self, utterance_id: int, ids: tuple[int, ...], complete: bool) -> None:
        """More text for an utterance that waits or runs; one that has ended needs no more."""
        if utterance_id in self._queue:
            self._queue[utterance_id].trailing.append(ids, complete)
        elif utterance_id in self._running:
            self._running[utterance_id].trailing.append(ids, complete)

    def cancel(self, utterance_id: int) -> None:
        """Forgets an utterance wherever it is; one that has already ended is no error."""
        if utterance_id in self._queue:
            self._dequeue(utterance_id)
        elif utterance_id in self._running:
            self.release(self._running[utterance_id])

    def _dequeue(self, utterance_id: int) -> Pending:
        pending = self._queue.pop(utterance_id)
        self.left_queue += 1
        self.left_queue_frames += pending.frames
        return pending

    def expire(self, now_s: float) -> list[Pending]:
        """Removes and returns what has waited past its deadline."""
        late = [pending.utterance_id for pending in self._queue.values() if pending.deadline_s <= now_s]
        return [self._dequeue(utterance_id) for utterance_id in late]

    @property
    def next_deadline_s(self) -> float:
        """The earliest deadline in the queue, infinite without one."""
        return min((pending.deadline_s for pending in self._queue.values()), default=math.inf)

    def release(self, sequence: Sequence) -> None:
        """Frees the row and the pages of an utterance that is complete, cancelled or failed.

        A step that is underway may still write to them. Whoever gets them writes later: steps are done in the order in
        which they were begun, and so are the changes to the table that says where a row's pages are.
        """
        del self._running[sequence.utterance_id]
        self._rows.release(sequence.row)
        for page in sequence.pages:
            self._pages.release(page)

    def is_running(self, sequence: Sequence) -> bool:
        """Whether it still has its row."""
        return sequence.utterance_id in self._running

    def running_sequences(self) -> list[Sequence]:
        return list(self._running.values())

    def plan(self, runs_dry: Callable[[Sequence], bool] = lambda _: False) -> Plan:
        """Starts what fits, and steps every row that has text, room, and a listener who is not too far behind.

        Rows that run get their pages before any goes to one that starts. Frames wait until they are a piece of audio,
        but for a listener who `runs_dry` before they would be.
        """
        step = [sequence for sequence in self._running.values() if self._wants_frame(sequence) and self._grow(sequence)]
        start = self._admit()
        step += filter(self._wants_frame, start)
        stepping = {sequence.utterance_id for sequence in step}
        largest = self._config.max_chunk_frames
        if not self._on_device:
            largest = min(largest, host_chunk_frames(len(self._running)))
        vocode = []
        for sequence in self._running.values():
            coming = sequence.utterance_id in stepping
            frames = sequence.next_chunk(largest, coming)
            if not frames and runs_dry(sequence):
                frames = sequence.frames_waiting + coming
            if frames:
                vocode.append((sequence, frames))
        return Plan(tuple(start), tuple(step), tuple(vocode))

    def stuck(self) -> Sequence | None:
        """For when a plan is empty and no step is underway: the youngest row, if all of them wait for a page.

        None of them can go on then before one gives way. A row that rests for its listener or for text is not counted
        among them: it goes on or is cancelled, and its pages are free in the end.
        """
        running = self.running_sequences()
        if all(self._wants_frame(sequence) and self._lacks_page(sequence) for sequence in running):
            return running[-1] if running else None
        return None

    def _wants_frame(self, sequence: Sequence) -> bool:
        return sequence.can_step and sequence.stream.unread_frames <= self._max_unread_frames

    def _lacks_page(self, sequence: Sequence) -> bool:
        """Whether the next frame's position is on a page that it does not have yet."""
        return pages_of(sequence.position + 1) > len(sequence.pages)

    def _grow(self, sequence: Sequence) -> bool:
        """Whether it has room for its next frame, for which it gets a page if one is free."""
        if not self._lacks_page(sequence):
            return True
        if not self._pages.free:
            return False
        sequence.pages.append(self._pages.take())
        return True

    def _admit(self) -> list[Sequence]:
        started: list[Sequence] = []
        tokens = longest = 0
        most_tokens = PREFILL_TOKENS if self._on_device else HOST_PREFILL_TOKENS
        self.short_of_pages = False
        while self._queue and self._rows.free and len(started) < self._config.max_prefills_per_step:
            pending = self._queue[self._next_in_turn()]
            longest = max(longest, pending.prompt.prefill_tokens)
            tokens = tokens + pending.prompt.prefill_tokens if self._on_device else (len(started) + 1) * longest
            if started and tokens > most_tokens:
                break
            if not self._fits(pending):
                self.short_of_pages = True
                break  # nobody overtakes it: it would wait for ever
            sequence = Sequence(self._dequeue(pending.utterance_id), self._rows.take())
            sequence.pages += (self._pages.take() for _ in range(pages_of(sequence.position + 1)))
            self._running[sequence.utterance_id] = sequence
            started.append(sequence)
        return started

    def _fits(self, pending: Pending) -> bool:
        """Whether there are pages for it, besides those that running rows will need by their own estimates."""
        promised = sum(
            max(0, self._pages_expected(sequence.pending) - len(sequence.pages)) for sequence in self._running.values()
        )
        return self._pages_expected(pending) <= self._pages.free - promised

    def _pages_expected(self, pending: Pending) -> int:
        """For its prompt and the frames that it is likely to have; never more than there are."""
        frames = min(pending.max_frames, max(1, math.ceil(pending.frames)))
        return min(self._pages.count, pages_of(pending.prompt.prefill_tokens + frames))

    def _next_in_turn(self) -> int:
        """What goes on from speech that is being heard; else the oldest request of the client that has the fewest rows:
        one client's burst delays nobody else."""
        rows = Counter(sequence.pending.request.client for sequence in self._running.values())
        requests = {utterance_id: pending.request for utterance_id, pending in self._queue.items()}
        return min(requests, key=lambda number: (requests[number].context is None, rows[requests[number].client]))

    def drop_all(self) -> list[Pending]:
        """Empties queue and rows, and returns what was in them."""
        dropped = [self._dequeue(utterance_id) for utterance_id in list(self._queue)]
        dropped += (sequence.pending for sequence in self._running.values())
        for sequence in list(self._running.values()):
            self.release(sequence)
        return dropped

    def check_integrity(self) -> None:
        """Raises AssertionError if a row or a page leaked."""
        self._rows.check_integrity(sequence.row for sequence in self._running.values())
        self._pages.check_integrity(page for sequence in self._running.values() for page in sequence.pages)
