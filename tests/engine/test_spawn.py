"""Child processes leave the signals of their group to the parent, from their first moment on."""

import os
import signal

import numpy as np
import pytest
from vivavoce_engine.ipc.pipe import Pipe
from vivavoce_engine.ipc.spawn import GROUP_SIGNALS, blocked, spawn_module

from tests.support.recordings import voice_like, wav


@pytest.mark.parametrize("signum", GROUP_SIGNALS)
def test_a_child_survives_the_signals_of_its_group(signum: signal.Signals) -> None:
    process, end = spawn_module("vivavoce_engine.voices.reference_process")
    pipe = Pipe(end)
    for _ in range(2):  # before Python has started in it, and later
        os.kill(process.pid, signum)
        pipe.send(wav(voice_like(1, 1.5)))
        assert isinstance(pipe.receive(), np.ndarray)
    pipe.close()
    assert process.wait() == 0


def test_a_start_leaves_the_signals_of_the_parent_as_they_were() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with blocked(GROUP_SIGNALS):
        assert before | set(GROUP_SIGNALS) == signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
