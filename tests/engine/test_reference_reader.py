"""Reference audio is read in a process of its own. Audio that breaks the process fails only its own request."""

import os
import resource
import signal
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from vivavoce_engine import Rejected
from vivavoce_engine.ipc.pipe import Pipe
from vivavoce_engine.voices.reference_audio import MAX_BYTES, read_reference
from vivavoce_engine.voices.reference_limits import CPU_S, MEMORY_BYTES, OPEN_FILES, address_space_bytes
from vivavoce_engine.voices.reference_reader import ReferenceReader

from tests.support.hostile_recordings import lying_mp4
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


def stopped(reader: ReferenceReader) -> int:
    """The process id of a reader that has read a file and now stands still."""
    reader.read(RECORDING)
    assert reader.pid is not None
    os.kill(reader.pid, signal.SIGSTOP)
    return reader.pid


def test_a_process_that_dies_after_other_files_is_replaced(reader: ReferenceReader) -> None:
    dying = stopped(reader)
    threading.Timer(0.2, os.kill, (dying, signal.SIGKILL)).start()
    np.testing.assert_array_equal(reader.read(RECORDING), read_reference(RECORDING))
    assert reader.pid != dying


def test_a_new_process_that_dies_has_had_a_file_that_kills(
    reader: ReferenceReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = reader._start

    def start_dead() -> Pipe:
        pipe = start()
        assert reader.pid is not None
        os.kill(reader.pid, signal.SIGKILL)
        return pipe

    monkeypatch.setattr(reader, "_start", start_dead)
    with pytest.raises(Rejected, match="no audio file that can be read"):
        reader.read(RECORDING)
    monkeypatch.undo()
    np.testing.assert_array_equal(reader.read(RECORDING), read_reference(RECORDING))


def test_a_file_that_uses_up_its_time_is_refused_and_the_next_is_read(reader: ReferenceReader) -> None:
    spinning = stopped(reader)
    os.kill(spinning, signal.SIGXCPU)
    threading.Timer(0.2, os.kill, (spinning, signal.SIGCONT)).start()
    with pytest.raises(Rejected, match="takes too long to read"):
        reader.read(RECORDING)
    np.testing.assert_array_equal(reader.read(RECORDING), read_reference(RECORDING))


@pytest.mark.skipif(address_space_bytes() is None, reason="the limit needs Linux's /proc")
@pytest.mark.parametrize("frames", [5_000_000, 85_000_000, 2**32 - 1])
def test_a_header_that_promises_millions_of_frames_costs_a_bounded_amount(reader: ReferenceReader, frames: int) -> None:
    reader.read(RECORDING)
    before = memory_bytes(reader)
    with pytest.raises(Rejected, match="holds no sound"):
        reader.read(lying_mp4(frames))
    assert memory_bytes(reader) < before + MEMORY_BYTES
    np.testing.assert_array_equal(reader.read(RECORDING), read_reference(RECORDING))


@pytest.mark.skipif(address_space_bytes() is None, reason="the limit needs Linux's /proc")
def test_a_file_that_exhausts_the_memory_ends_the_process_and_the_next_is_read(reader: ReferenceReader) -> None:
    first = stopped(reader)
    os.kill(first, signal.SIGCONT)
    with pytest.raises(Rejected, match="takes more memory than a recording needs"):
        reader.read(lying_mp4(3_000_000, tracks=100))
    np.testing.assert_array_equal(reader.read(RECORDING), read_reference(RECORDING))
    assert reader.pid != first


def test_its_process_is_limited_for_life_and_for_each_file(reader: ReferenceReader) -> None:
    reader.read(RECORDING)
    assert reader.pid is not None
    for kind, most in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_NOFILE, OPEN_FILES)):
        assert resource.prlimit(reader.pid, kind)[0] == most
    used_s, _ = resource.prlimit(reader.pid, resource.RLIMIT_CPU)
    assert used_s >= CPU_S


@pytest.mark.parametrize("rate", [48_000, 192_000])
def test_the_largest_recordings_fit(reader: ReferenceReader, rate: int) -> None:
    file = wav(voice_like(1, 27.0, rate), rate)
    assert len(file) < MAX_BYTES
    np.testing.assert_array_equal(reader.read(file), read_reference(file))


def memory_bytes(reader: ReferenceReader) -> int:
    """The most memory that the process has held."""
    with open(f"/proc/{reader.pid}/status", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))


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
