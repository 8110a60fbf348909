"""A job that is killed, at any step and at random moments, ends with the files of one that ran through."""

import contextlib
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from vivavoce_client.__main__ import main
from vivavoce_client.batch import work
from vivavoce_client.batch.job import Job

from tests.clients.batch.folders import content_of
from tests.support.live_server import LiveServer, fake_engine, live_server
from tests.support.waiting import wait_until

KILLS = 10
BOOK = "# One\n\nIt rained.\n\n# Two\n\nIt shone.\n"
OPTIONS = ("--seed", "5", "--join", "--srt", "--vtt", "--words")


class Crash(BaseException):
    """The end of a process, as far as a test can have it inside its own."""


class Steps:
    """The steps after which a crash leaves another state on the disk. `crash_at` is the one that does not return."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.crash_at = 0
        stepping: tuple[tuple[Any, str], ...] = (
            (os, "replace"),
            (Path, "unlink"),
            (Job, "add_part"),
            (Job, "add_track"),
            (Job, "set_plan"),
            (Job, "drop_track"),
            (Job, "drop_parts"),
            (work, "remove_tree"),
        )
        for owner, name in stepping:
            monkeypatch.setattr(owner, name, self._counted(getattr(owner, name)))

    def _counted(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **options: Any) -> Any:
            if self.crash_at and self.count >= self.crash_at:
                raise Crash  # a process that has ended does nothing more
            self.count += 1
            result = step(*args, **options)
            if self.count == self.crash_at:
                raise Crash
            return result

        return run


@pytest.mark.long
@pytest.mark.parametrize("before", [None, "# Zero\n\nIt froze.\n\n# Two\n\nIt shone.\n\n# One\n\nIt rained.\n"])
def test_a_crash_at_any_step_changes_nothing(
    before: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with live_server() as server:
        options = ("--url", server.url, *OPTIONS, "--changed", "--streams", "1")

        def run(text: str = BOOK) -> None:
            Path("book.md").write_text(text)
            assert main(["batch", "book.md", "--out", "out", *options]) == 0

        run()
        expected = content_of(Path("out"))
        steps = Steps(monkeypatch)
        for step in itertools.count(1):
            shutil.rmtree("out")
            if before is not None:
                run(before)
            steps.count, steps.crash_at = 0, step
            try:
                run()
            except Crash:
                steps.crash_at = 0
                run()
            else:
                break  # the job has no step of this number
            assert content_of(Path("out")) == expected, f"after a crash at step {step}"
        assert step > 20


@pytest.fixture
def slow_server() -> Iterator[LiveServer]:
    with live_server(fake_engine(step_s=0.005)) as server:
        yield server


def lines_done(folder: Path) -> int:
    return len(list(folder.glob("0*.wav")))


def kill_at(process: "subprocess.Popen[bytes]", folder: Path, lines: int, delay_s: float) -> None:
    """Kills a job some time after a number of its lines is done."""
    wait_until(lambda: lines_done(folder) >= lines or process.poll() is not None)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(delay_s)
    process.kill()
    assert process.wait() == -signal.SIGKILL, "the job ended before it was killed"


def test_a_job_that_is_killed_at_random_moments_ends_with_the_same_files(
    slow_server: LiveServer, tmp_path: Path
) -> None:
    chance = random.Random(29)
    lines = 4 * KILLS
    source = tmp_path / "lines.txt"
    source.write_text("".join(f"This is line number {number}, and it is said.\n" for number in range(lines)))

    def start(folder: Path) -> "subprocess.Popen[bytes]":
        words = ["batch", str(source), "--out", str(folder), "--url", slow_server.url, *OPTIONS]
        return subprocess.Popen([sys.executable, "-m", "vivavoce_client", *words], stderr=subprocess.DEVNULL)

    through, killed = tmp_path / "through", tmp_path / "killed"
    assert start(through).wait() == 0
    done = 0
    for kill in range(KILLS):
        kill_at(start(killed), killed, max(done, 3 * kill + chance.randrange(3)), chance.uniform(0, 0.1))
        done = lines_done(killed)
        assert done < lines
    assert start(killed).wait() == 0
    assert content_of(killed) == content_of(through)
    assert len(content_of(killed)) == lines + 4
