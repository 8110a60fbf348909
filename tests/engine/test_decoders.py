"""Threads that decode: jobs of a row in order and one at a time, others beside them, and a fault costs its own job."""

import gc
import threading
import time
from collections import defaultdict

import pytest
from vivavoce_engine.cpu.decoders import Decoders, Job

from tests.support.waiting import HUNG_S


class Record:
    """Jobs that were done, by row, and how many of a row ran at once."""

    def __init__(self) -> None:
        self.done: defaultdict[int, list[int]] = defaultdict(list)
        self.by: set[int] = set()
        self._inside: defaultdict[int, int] = defaultdict(int)
        self.most_inside = 0
        self._lock = threading.Lock()

    def job(self, row: int, number: int, takes_s: float = 0.0) -> Job:
        def work(thread: int) -> None:
            with self._lock:
                self._inside[row] += 1
                self.most_inside = max(self.most_inside, self._inside[row])
            time.sleep(takes_s)
            with self._lock:
                self.by.add(thread)
                self.done[row].append(number)
                self._inside[row] -= 1

        return Job(row, number, work)


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_jobs_of_a_row_run_in_order_and_one_at_a_time(threads: int) -> None:
    record, decoders = Record(), Decoders(threads)
    jobs = [record.job(row, number, 0.0005 * ((row * number) % 3)) for number in range(12) for row in range(4)]
    for job in jobs:
        decoders.put([job])
    decoders.finish(jobs)
    assert record.done == {row: list(range(12)) for row in range(4)}
    assert record.most_inside == 1
    assert record.by <= set(range(threads + 1))


def test_rows_are_worked_on_side_by_side_and_whoever_waits_helps() -> None:
    """Two jobs that wait for each other end only if two threads have them."""
    meet = threading.Barrier(2, timeout=HUNG_S)
    by: set[int] = set()

    def work(thread: int) -> None:
        by.add(thread)
        meet.wait()

    decoders = Decoders(1)
    jobs = [Job(row, row, work) for row in range(2)]
    decoders.put(jobs)
    decoders.finish(jobs)
    assert by == {0, 1}
    assert [job.error for job in jobs] == [None, None]


def test_a_thread_works_while_nobody_waits() -> None:
    done, decoders = threading.Event(), Decoders(1)
    job = Job(0, 0, lambda _: done.set())
    decoders.put([job])
    assert done.wait(HUNG_S)
    decoders.finish([job])
    assert job.is_done


def test_a_step_is_waited_for_though_later_work_is_there() -> None:
    """The row's later job waits for its turn, and the one that is waited for is done when `finish` returns."""
    record, decoders = Record(), Decoders(1)
    first, second = record.job(0, 1, 0.02), record.job(0, 2, 0.02)
    decoders.put([first, second])
    decoders.finish([first])
    assert first.is_done
    decoders.finish([second])
    assert record.done[0] == [1, 2]


@pytest.mark.parametrize("threads", [0, 1])
def test_a_fault_is_kept_with_its_job_and_the_row_goes_on(threads: int) -> None:
    def broken(_: int) -> None:
        raise MemoryError("no room")

    record, decoders = Record(), Decoders(threads)
    jobs = [Job(0, 7, broken), record.job(0, 1), record.job(1, 2)]
    decoders.put(jobs)
    decoders.finish(jobs)
    assert isinstance(jobs[0].error, MemoryError)
    assert [job.error for job in jobs[1:]] == [None, None]
    assert record.done == {0: [1], 1: [2]}


def test_the_threads_end_with_the_object() -> None:
    before = set(threading.enumerate())
    decoders = Decoders(2)
    made = [thread for thread in threading.enumerate() if thread not in before]
    assert len(made) == 2
    del decoders
    gc.collect()
    for thread in made:
        thread.join(HUNG_S)
        assert not thread.is_alive()


def test_shared_work_is_done_by_the_thread_that_waits_alone() -> None:
    """A job behind it waits for it, and other rows go on meanwhile."""
    record, decoders = Record(), Decoders(2)
    shared = [record.job(0, 0), record.job(1, 0)]
    for job in shared:
        job.is_shared = True
    free = [record.job(0, 1), record.job(2, 0), record.job(3, 0)]
    decoders.put([*shared, *free])
    decoders.finish(free[1:])
    assert record.done[2] == record.done[3] == [0]
    decoders.finish([*shared, *free])
    assert record.done == {0: [0, 1], 1: [0], 2: [0], 3: [0]}


@pytest.mark.parametrize("rows", range(1, 6))
def test_shared_work_never_runs_on_a_decoders_thread(rows: int) -> None:
    by: list[int] = []
    decoders = Decoders(3)
    jobs = [Job(row, row, by.append, is_shared=True) for row in range(rows)]
    decoders.put(jobs)
    decoders.finish(jobs)
    assert by == [0] * rows
