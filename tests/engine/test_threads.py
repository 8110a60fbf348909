"""The number of threads that compute a model on a CPU, on machines that this one is not."""

import ctypes
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from vivavoce_engine.checkpoint.files import read_checkpoint
from vivavoce_engine.config import EngineConfig, NumberOrAuto
from vivavoce_engine.cpu import threads
from vivavoce_engine.cpu.runner import use_cpu_threads
from vivavoce_engine.cpu.threads import Threads, on_threads, share_out, threads_for, usable_cores
from vivavoce_engine.load import make_runner
from vivavoce_engine.runtime import return_freed_memory

from tests.support.cpu_runners import skip_without_kernels
from tests.support.tiny_checkpoints import write_checkpoint

needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's files")


def machine(folder: Path, siblings: dict[int, str]) -> Path:
    """Files of processors: number → its core's hardware threads, as Linux lists them."""
    for cpu, listed in siblings.items():
        place = folder / f"cpu{cpu}" / "topology"
        place.mkdir(parents=True)
        (place / "thread_siblings_list").write_text(listed + "\n")
    return folder


def test_a_small_model_takes_one_thread_and_a_wide_one_every_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_physical_cores", lambda: 12)
    monkeypatch.setattr(threads, "_quota", lambda: sys.maxsize)
    assert [threads_for("auto", hidden_size) for hidden_size in (256, 512, 1024, 2048)] == [1, 1, 12, 12]
    assert [threads_for(3, hidden_size) for hidden_size in (256, 2048)] == [3, 3]


@pytest.mark.parametrize(
    ("cores", "variable", "asked", "small", "wide"),
    [
        (12, None, "auto", Threads(1, 1), Threads(12, 0)),
        (1, None, "auto", Threads(1, 0), Threads(1, 0)),
        (12, "1", "auto", Threads(1, 0), Threads(1, 0)),
        (12, None, 1, Threads(1, 0), Threads(1, 0)),
        (1, "1", 3, Threads(1, 2), Threads(3, 0)),
    ],
)
def test_a_second_thread_of_a_small_model_decodes_and_those_of_a_wide_one_share(
    monkeypatch: pytest.MonkeyPatch,
    cores: int,
    variable: str | None,
    asked: NumberOrAuto,
    small: Threads,
    wide: Threads,
) -> None:
    monkeypatch.setattr(threads, "usable_cores", lambda: cores)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if variable is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", variable)
    assert (share_out(asked, 512), share_out(asked, 1024)) == (small, wide)


def test_many_rows_are_decoded_by_a_thread_each_and_few_by_all_threads_together() -> None:
    each = [Threads(1, 0), Threads(1, 1), Threads(2, 0), Threads(3, 0), Threads(16, 0)]
    assert [threads.rows_each_alone for threads in each] == [2, 1, 2, 2, 8]
    assert [threads.decoders for threads in each] == [0, 1, 1, 2, 15]


def test_a_thread_that_decodes_doubles_the_rows_that_auto_gives() -> None:
    alone, beside = Threads(1, 0), Threads(1, 1)
    assert [on_threads(EngineConfig(), each).max_streams for each in (alone, Threads(12, 0), beside)] == [8, 8, 16]
    many, wide = Threads(1, 63), Threads(64, 0)
    assert [on_threads(EngineConfig(), each).threads for each in (alone, beside, many, wide)] == [1, 2, 17, 64]
    assert on_threads(EngineConfig(max_streams=4), many).threads == 5, "a row is decoded by one thread at a time"
    assert on_threads(EngineConfig(max_streams=5), beside).max_streams == 5
    assert on_threads(EngineConfig(), beside).threads == 2
    assert (str(alone), str(beside)) == ("1 thread", "2 threads, 1 of them for Code2Wav")


@pytest.mark.parametrize(("cores", "quota", "usable"), [(8, sys.maxsize, 8), (8, 3, 3), (2, 16, 2), (4, 1, 1)])
def test_a_containers_share_counts(monkeypatch: pytest.MonkeyPatch, cores: int, quota: int, usable: int) -> None:
    monkeypatch.setattr(threads, "_physical_cores", lambda: cores)
    monkeypatch.setattr(threads, "_quota", lambda: quota)
    assert usable_cores() == usable


@needs_linux
def test_hardware_threads_of_one_core_count_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cpus = machine(tmp_path, {0: "0,4", 1: "1,5", 2: "2,6", 3: "3,7", 4: "0,4", 5: "1,5", 6: "2,6", 7: "3,7"})
    for allowed, cores in (({*range(8)}, 4), ({0, 4}, 1), ({0, 1, 4}, 2), ({7}, 1)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, allowed=allowed: allowed)
        assert threads._physical_cores(cpus) == cores
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    assert threads._physical_cores(tmp_path / "hidden") == 3


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "max 100000\n"}, sys.maxsize),
        ({"cpu.max": "250000 100000\n"}, 2),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, sys.maxsize),
        ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4),
        ({}, sys.maxsize),
        ({"cpu.max": "nonsense"}, sys.maxsize),
    ],
)
def test_the_limit_of_a_container_is_read(tmp_path: Path, files: dict[str, str], cores: int) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    assert threads._quota(tmp_path) == cores


def test_pytorch_takes_the_threads_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", told.append)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    use_cpu_threads("auto", 512)
    use_cpu_threads(5, 512)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    use_cpu_threads("auto", 512)
    use_cpu_threads(2, 2048)
    assert told == [1, 5, 2]


@pytest.mark.parametrize(
    ("variable", "threads", "expected"),
    [
        (None, "auto", 12),
        ("", "auto", 12),
        ("3", "auto", 3),
        (" 3,2", "auto", 3),
        ("99", "auto", 12),
        ("0", "auto", 12),
        ("many", "auto", 12),
        ("3", 5, 5),
    ],
)
def test_omp_num_threads_caps_auto_of_the_cpu_kernels(
    monkeypatch: pytest.MonkeyPatch, variable: str | None, threads: NumberOrAuto, expected: int
) -> None:
    monkeypatch.setattr("vivavoce_engine.cpu.threads.usable_cores", lambda: 12)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if variable is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", variable)
    assert threads_for(threads, 2048) == expected
    assert threads_for("auto", 512) == 1


def test_the_pool_has_the_threads_that_omp_num_threads_leaves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    skip_without_kernels()
    before = torch.get_num_threads()
    monkeypatch.setattr(threads, "SMALL_HIDDEN_SIZE", 1)
    monkeypatch.setattr(threads, "usable_cores", lambda: 12)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    checkpoint = read_checkpoint(write_checkpoint(tmp_path, "tiny", "custom_voice"))
    runner = make_runner("made", checkpoint, EngineConfig(device="cpu", runner="native", max_context=64))
    assert runner.config.threads == 3
    assert torch.get_num_threads() == before


def test_more_threads_than_a_machine_has_are_refused() -> None:
    assert EngineConfig(threads=1024).threads == 1024
    with pytest.raises(ValueError, match="threads must be at most 1024, not 1025"):
        EngineConfig(threads=1025)


@pytest.mark.parametrize(("system", "opened"), [("linux", [None]), ("win32", []), ("darwin", [])])
def test_freed_memory_is_returned_on_linux_alone(
    monkeypatch: pytest.MonkeyPatch, system: str, opened: list[None]
) -> None:
    seen: list[object] = []
    monkeypatch.setattr(sys, "platform", system)

    def opened_library(name: None) -> SimpleNamespace:
        seen.append(name)
        return SimpleNamespace(malloc_trim=id)

    monkeypatch.setattr(ctypes, "CDLL", opened_library)
    return_freed_memory()
    assert seen == opened


@pytest.mark.parametrize("wrong", [0, -1, "many"])
def test_a_number_of_threads_is_above_zero(wrong: object) -> None:
    with pytest.raises(ValueError, match="threads must be"):
        EngineConfig(threads=wrong)  # type: ignore[arg-type]
