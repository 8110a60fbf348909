"""Work of Code2Wav that threads do beside the frames of the loop's thread, which helps while it waits.

A job belongs to a row. Jobs of one row run in the order in which they were put, one at a time; those of different rows
run side by side, and share nothing. A job lets go of Python's lock while it computes, so threads of Python are enough.
"""

import threading
import time
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(eq=False, slots=True)
class Job:
    """Work on a row's state. `work` gets the number of the thread that does it, 0 for the one that waits."""

    row: int
    utterance_id: int
    work: Callable[[int], object]
    is_shared: bool = False
    """True for work that a pool of other threads shares: only the thread that waits begins it."""
    is_done: bool = False
    error: Exception | None = None
    """The exception that `work` has raised."""
    took_s: float = 0.0


class Decoders:
    """A number of threads, which may be 0, that do jobs in the order in which they come. They end with this object."""

    def __init__(self, threads: int) -> None:
        self._queue = _Queue()
        for number in range(1, threads + 1):
            name = f"vivavoce-code2wav-{number}"
            threading.Thread(target=_work, args=(self._queue, number), name=name, daemon=True).start()
        weakref.finalize(self, self._queue.stop).atexit = False

    def put(self, jobs: Iterable[Job]) -> None:
        """Adds jobs behind all others."""
        self._queue.put(jobs)

    def finish(self, jobs: Iterable[Job]) -> None:
        """Returns when these jobs are done. Until then the calling thread does what waits, the oldest first."""
        left = list(jobs)
        while left := [job for job in left if not job.is_done]:
            self._queue.help_with(left[0])


class _Queue:
    """The jobs that wait, and the rows that are worked on."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: list[Job] = []
        self._busy: set[int] = set()
        self._stopped = False

    def put(self, jobs: Iterable[Job]) -> None:
        with self._changed:
            self._waiting += jobs
            self._changed.notify_all()

    def stop(self) -> None:
        """Lets all threads end after what they do now."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def help_with(self, job: Job) -> None:
        """Does a job that waits, unless `job` is done; waits for a change where none can be begun."""
        with self._changed:
            taken = None if job.is_done else self._take(0)
            if taken is None:
                if not job.is_done:
                    self._changed.wait()
                return
        self._do(taken, 0)

    def next_one(self, number: int) -> bool:
        """Waits for a job, and does it as thread `number`. Returns False if the thread is to end."""
        with self._changed:
            while (job := self._take(number)) is None and not self._stopped:
                self._changed.wait()
        if job is not None:
            self._do(job, number)
        return not self._stopped

    def _take(self, number: int) -> Job | None:
        """The oldest job for thread `number` whose row nobody works on, and which no older job of its row precedes."""
        passed = set(self._busy)
        for at, job in enumerate(self._waiting):
            if job.row not in passed and not (job.is_shared and number):
                self._busy.add(job.row)
                return self._waiting.pop(at)
            passed.add(job.row)
        return None

    def _do(self, job: Job, number: int) -> None:
        started_s = time.monotonic()
        try:
            job.work(number)
        except Exception as error:
            job.error = error
        job.took_s = time.monotonic() - started_s
        with self._changed:
            self._busy.remove(job.row)
            job.is_done = True
            self._changed.notify_all()


def _work(queue: _Queue, number: int) -> None:
    while queue.next_one(number):
        pass
