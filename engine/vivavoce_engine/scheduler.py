"""Who runs next. Pure Python: no tensors, no threads, no clock."""

import math
from collections import Counter
from dataclasses import dataclass

from vivavoce_engine.config import EngineConfig
from vivavoce_engine.rows import Rows
from vivavoce_engine.sequence import Pending, Sequence


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
    """Owns the queue and the rows: admits, plans, releases."""

    def __init__(self, config: EngineConfig, max_unread_frames: int) -> None:
        self._config = config
        self._max_unread_frames = max_unread_frames
        self._rows = Rows(config.max_streams)
        self._queue: dict[int, Pending] = {}
        self._running: dict[int, Sequence] = {}
        self.left_queue = 0
        self.left_queue_frames = 0.0
        """How many requests, and estimated frames, have left the queue so far, by whatever way."""

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
        """Frees the row of an utterance that is complete, cancelled or failed."""
        del self._running[sequence.utterance_id]
        self._rows.release(sequence.row)

    def is_running(self, sequence: Sequence) -> bool:
        """Whether it still has its row."""
        return sequence.utterance_id in self._running

    def running_sequences(self) -> list[Sequence]:
        return list(self._running.values())

    def plan(self) -> Plan:
        """Starts what fits, then steps every row that has text and whose listener is not too far behind."""
        start = tuple(self._admit())
        step = tuple(
            sequence
            for sequence in self._running.values()
            if sequence.can_step and sequence.stream.unread_frames <= self._max_unread_frames
        )
        stepping = {sequence.utterance_id for sequence in step}
        vocode = []
        for sequence in self._running.values():
            frames = sequence.next_chunk(self._config.max_chunk_frames, sequence.utterance_id in stepping)
            if frames:
                vocode.append((sequence, frames))
        return Plan(start, step, tuple(vocode))

    def _admit(self) -> list[Sequence]:
        started: list[Sequence] = []
        while self._queue and self._rows.can_admit() and len(started) < self._config.max_prefills_per_step:
            sequence = Sequence(self._dequeue(self._next_in_turn()), self._rows.admit())
            self._running[sequence.utterance_id] = sequence
            started.append(sequence)
        return started

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
        """Raises AssertionError if a row leaked."""
        self._rows.check_integrity({sequence.row for sequence in self._running.values()})
