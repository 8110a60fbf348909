"""Signals that end the start: none is lost, and none ends it in the middle of starting a thread."""

import argparse
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from vivavoce_server import cli, sighup
from vivavoce_server.interrupts import InterruptHandler


@pytest.fixture(autouse=True)
def _default_handler() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    hangup = signal.getsignal(signal.SIGHUP)
    yield
    signal.signal(signal.SIGINT, before)
    signal.signal(signal.SIGHUP, hangup)


def test_an_interrupt_is_raised_at_once() -> None:
    InterruptHandler()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_an_interrupt_waits_for_the_end_of_what_is_held() -> None:
    done: list[str] = []

    def work() -> None:
        signal.raise_signal(signal.SIGINT)
        done.append("to its end")

    interrupts = InterruptHandler()
    with pytest.raises(KeyboardInterrupt), interrupts.held():
        work()
    assert done == ["to its end"]


def test_a_closed_terminal_waits_too(monkeypatch: pytest.MonkeyPatch) -> None:
    is_open = [True, False]
    monkeypatch.setattr(sighup, "has_terminal", lambda: is_open.pop(0))
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    done: list[str] = []

    def work() -> None:
        signal.raise_signal(signal.SIGHUP)
        done.append("to its end")

    interrupts = InterruptHandler()
    sighup.SighupHandler(interrupts)
    with pytest.raises(SystemExit) as left, interrupts.held():
        work()
    assert (left.value.code, done) == (sighup.STATUS, ["to its end"])


class Dropping:
    """Has a destructor, whose exceptions Python drops."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_that_python_dropped_is_raised_later() -> None:
    interrupts = InterruptHandler()
    Dropping()
    with pytest.raises(KeyboardInterrupt), interrupts.held():
        pass


def test_a_job_in_the_background_goes_on_ignoring_the_signal() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    interrupts = InterruptHandler()
    with interrupts.held():
        signal.raise_signal(signal.SIGINT)


def test_an_interrupt_while_texts_are_warmed_up_lets_their_threads_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps: list[str] = []

    def warm_up(*_: object) -> None:
        signal.raise_signal(signal.SIGINT)
        steps.append("the thread is known to its pool")

    monkeypatch.setattr(cli, "warm_up", warm_up)
    monkeypatch.setattr(cli, "log_to_stderr", lambda *_, **__: None)
    parser = argparse.ArgumentParser()
    cli.add_arguments(parser)
    flags = ["--model", "fake", "--port", "0", "--voices-dir", str(tmp_path)]
    assert cli.run(parser.parse_args(flags)) == cli.INTERRUPTED
    assert steps == ["the thread is known to its pool"]
    assert capsys.readouterr().err.endswith("vivavoce: interrupted before it served\n")
