"""Reference audio is read in a process of its own. Audio that breaks the process fails only its own request."""

import os
import signal
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from vivavoce_engine import Rejected
from vivavoce_engine.voices.reference_audio import read_reference
from vivavoce_engine.voices.reference_reader import ReferenceReader

from tests.support.recordings import voice_like, wav

RECORDING = wav(voice_like(1, 1.5, 24000), 24000)


@pytest.fixture
def reader() -> Iterator[ReferenceReader]:
    reader = ReferenceReader(timeout_s=20.0)
    yield reader
    reader.close()


def test_it_reads_what_is_read_here(reader: ReferenceReader) -> None:
    assert reader.pid is None, "nothing is started before it is needed"
    for _ in range(2):
        np.testing.assert_array_equal(reader.read(RECORDING), read_reference(RECORDING))
    with pytest.raises(Rejected, match="the reference audio is no audio file that can be read") as caught:
        reader.read(b"no audio")
    assert caught.value.param == "reference"
    first = reader.pid
    reader.read(RECORDING)
    assert reader.pid == first, "a file that is refused does not break it"


def test_a_file_that_crashes_it_is_refused_and_the_next_is_read(reader: ReferenceReader) -> None:
    reader.read(RECORDING)
    crashed = reader.pid
    assert crashed is not None
    os.kill(crashed, signal.SIGSTOP)
    threading.Timer(0.2, os.kill, (crashed, signal.SIGKILL)).start()
    with pytest.raises(Rejected, match="no audio file that can be read"):
        reader.read(RECORDING)
    np.testing.assert_array_equal(reader.read(RECORDING), read_reference(RECORDING))
    assert reader.pid != crashed


def test_a_file_that_hangs_it_is_refused_and_the_next_is_read() -> None:
    reader = ReferenceReader(timeout_s=20.0)
    reader.read(RECORDING)
    hung = reader.pid
    assert hung is not None
    os.kill(hung, signal.SIGSTOP)
    reader.timeout_s = 0.2
    with pytest.raises(Rejected, match="takes too long to read"):
        reader.read(RECORDING)
    with pytest.raises(ProcessLookupError):
        os.kill(hung, 0)
    reader.timeout_s = 20.0
    assert len(reader.read(RECORDING))
    reader.close()


def test_its_process_ends_with_it() -> None:
    reader = ReferenceReader()
    reader.read(RECORDING)
    pid = reader.pid
    assert pid is not None
    del reader
    for _ in range(100):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    pytest.fail("it lives on")
