"""A Watcher and its process, without the callers' half: messages that reach a process, and events for the owner."""

import os
import signal
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from vivavoce_engine import EngineConfig, EngineError, NotServing
from vivavoce_engine.process import watcher as module
from vivavoce_engine.process.carrier import Phase
from vivavoce_engine.process.engine_process import engine_program
from vivavoce_engine.process.watcher import Watcher, backoff_s
from vivavoce_engine.process.wire import Answer, Ask, GetPresets, Loaded, Ready, SignOfLife

from tests.support.faulty_models import faulty_model
from tests.support.waiting import wait_until


class Owner:
    """Notes what it hears."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.lost: list[EngineError] = []
        self.rows: list[int] = []

    def on_report(self, report: SignOfLife) -> None:
        pass

    def on_answer(self, answer: Answer) -> None:
        self.answers.append(answer)

    def on_loading(self, now_s: float) -> None:
        pass

    def on_loaded(self, loaded: Ready) -> None:
        assert isinstance(loaded, Loaded)
        self.rows.append(loaded.config.rows)

    def last_needed_s(self) -> float:
        return float("inf")

    def on_gone(self, error: EngineError) -> None:
        self.lost.append(error)


@pytest.fixture
def owner() -> Owner:
    return Owner()


@pytest.fixture
def gate() -> threading.Lock:
    return threading.Lock()


@pytest.fixture
def watcher(owner: Owner, gate: threading.Lock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watcher]:
    """On demand; asleep."""
    monkeypatch.setattr(module, "FIRST_BACKOFF_S", 0.05)
    watcher = Watcher(engine_program(faulty_model(), EngineConfig()), 3600.0, gate, owner)
    watcher.start()
    watcher.wait_until_started()
    yield watcher
    watcher.stop()


def ask(watcher: Watcher, gate: threading.Lock, number: int) -> None:
    with gate:
        watcher.require()
        watcher.send(Ask(number, GetPresets()))


def test_messages_wait_for_the_process_that_they_wake(watcher: Watcher, owner: Owner, gate: threading.Lock) -> None:
    assert (watcher.phase, watcher.pid) == (Phase.ASLEEP, None)
    ask(watcher, gate, 1)
    phases = [watcher.phase]
    ask(watcher, gate, 2)
    wait_until(lambda: len(owner.answers) == 2)
    assert [answer.number for answer in owner.answers] == [1, 2]
    assert [*phases, watcher.phase] == [Phase.WAKING, Phase.SERVING]
    presets = owner.answers[0].value
    assert isinstance(presets, dict)
    assert np.array_equal(presets["heart"], np.ones(8, np.float32))


def test_a_message_to_a_process_that_broke_does_not_reach_the_next(
    watcher: Watcher, owner: Owner, gate: threading.Lock
) -> None:
    ask(watcher, gate, 1)
    wait_until(lambda: watcher.phase is Phase.SERVING)
    assert watcher.pid is not None
    os.kill(watcher.pid, signal.SIGSTOP)
    ask(watcher, gate, 2)
    os.kill(watcher.pid, signal.SIGKILL)
    wait_until(lambda: watcher.phase is Phase.ASLEEP)
    assert watcher.restarts == {"killed": 1}
    assert [str(error) for error in owner.lost] == ["the engine broke down and is being restarted"]
    ask(watcher, gate, 3)
    wait_until(lambda: any(answer.number == 3 for answer in owner.answers))
    assert 2 not in [answer.number for answer in owner.answers]


def test_the_owner_is_told_the_settings_of_every_process(watcher: Watcher, owner: Owner, gate: threading.Lock) -> None:
    for number in (1, 2):
        ask(watcher, gate, number)
        wait_until(lambda: watcher.phase is Phase.SERVING)
        assert owner.rows == [8] * number
        assert watcher.pid is not None
        os.kill(watcher.pid, signal.SIGKILL)
        wait_until(lambda: watcher.phase is Phase.ASLEEP)


def test_restarts_go_on_for_days() -> None:
    """Beside a card that others hold, a start fails once a minute."""
    assert [backoff_s(failures) for failures in (1, 2, 3, 7, 8, 10_000)] == [0.5, 1.0, 2.0, 32.0, 60.0, 60.0]


def test_require_takes_the_gate(watcher: Watcher) -> None:
    with pytest.raises(AssertionError):
        watcher.require()
    assert watcher.phase is Phase.ASLEEP


def test_nothing_is_accepted_after_the_end(watcher: Watcher, owner: Owner, gate: threading.Lock) -> None:
    watcher.stop()
    assert [str(error) for error in owner.lost] == ["the engine was stopped"]
    with pytest.raises(NotServing):
        ask(watcher, gate, 1)
