"""The identity of an engine's speech: it changes with weights, code, settings and arithmetic, and with nothing else."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from vivavoce_engine import EngineConfig, EngineProcess
from vivavoce_engine.checkpoint import identity
from vivavoce_engine.checkpoint.identity import digest_of_folder, versions_of
from vivavoce_engine.cpu.library import Library
from vivavoce_engine.device import arithmetic_of
from vivavoce_engine.fake_runner import fake_model
from vivavoce_engine.load import read_model, why_not_reproducible
from vivavoce_engine.model import Model, Parts
from vivavoce_engine.process.pool import EnginePool

from tests.support.cpu_runners import skip_without_kernels
from tests.support.tiny_checkpoints import write_checkpoint

CONFIG = EngineConfig(max_streams=2, max_context=512, device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoints") / "tiny", "tiny", "custom_voice")


def loaded(path: Path, config: EngineConfig = CONFIG) -> Parts:
    return read_model(str(path), config, identify=True).load()


def test_it_is_the_same_for_the_same_speech(checkpoint: Path, tmp_path: Path) -> None:
    first = loaded(checkpoint).identity
    assert len(first) == 64
    assert loaded(checkpoint).identity == first
    copy = Path(shutil.copytree(checkpoint, tmp_path / "copy"))
    (copy / ".hidden").write_text("of a program that manages the folder")
    assert loaded(copy).identity == first
    assert loaded(checkpoint, replace(CONFIG, max_streams=3, max_queue=7, max_prefills_per_step=1)).identity == first
    assert loaded(checkpoint, replace(CONFIG, max_context=600)).identity != first


def test_a_model_that_nobody_asked_to_identify_has_none(checkpoint: Path) -> None:
    assert read_model(str(checkpoint), CONFIG).load().identity == ""


@pytest.mark.parametrize("pattern", ["model.safetensors", "generation_config.json", "speech_tokenizer/*.safetensors"])
def test_one_changed_bit_of_any_file_is_another_identity(checkpoint: Path, tmp_path: Path, pattern: str) -> None:
    copy = Path(shutil.copytree(checkpoint, tmp_path / "copy"))
    (path,) = copy.glob(pattern)
    before, times = digest_of_folder(copy), path.stat()
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert digest_of_folder(copy) != before


def test_names_count_as_contents_do(tmp_path: Path) -> None:
    digests = set()
    for number, files in enumerate([{"a": "1", "b": "2"}, {"a": "2", "b": "1"}, {"a": "12"}, {"a": "1", "b/c": "2"}]):
        folder = tmp_path / str(number)
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(content)
        digests.add(digest_of_folder(folder))
    assert len(digests) == 4


def test_files_that_change_under_a_server_leave_it_without_identity(
    checkpoint: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The text frontend has read the files as they were: the speech of both is that of no checkpoint."""
    copy = Path(shutil.copytree(checkpoint, tmp_path / "copy"))
    model = read_model(str(copy), CONFIG, identify=True)
    assert model.load().identity
    times = (copy / "generation_config.json").stat()
    os.utime(copy / "generation_config.json", ns=(times.st_atime_ns, times.st_mtime_ns + 1))
    assert model.load().identity == ""
    assert "its files have changed" in caplog.text
    assert loaded(copy).identity


def test_versions_tell_a_file_that_was_replaced(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    before = versions_of(tmp_path)
    assert versions_of(tmp_path) == before
    (tmp_path / "b").write_text("1")
    assert versions_of(tmp_path) != before
    os.utime(tmp_path / "b", ns=(0, before[0][2]))
    (tmp_path / "b").replace(tmp_path / "a")
    os.utime(tmp_path / "a", ns=(0, before[0][2]))
    assert versions_of(tmp_path) != before


def test_the_code_counts(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = loaded(checkpoint).identity
    files = identity._files

    def with_more(folder: Path, pattern: str = "*") -> list[tuple[str, Path]]:
        more = [("more.py", Path(__file__))] if pattern == "*.py" else []
        return [*files(folder, pattern), *more]

    monkeypatch.setattr(identity, "_files", with_more)
    assert loaded(checkpoint).identity != first


def test_the_arithmetic_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cpu")
    before = arithmetic_of(device)
    assert arithmetic_of(device) == before
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    assert arithmetic_of(device) != before
    monkeypatch.delenv("MKL_CBWR")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 97)
    assert arithmetic_of(device) != before


def test_the_kernels_of_a_cpu_count_and_threads_do_not(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    skip_without_kernels()
    native = replace(CONFIG, runner="native")
    first = loaded(checkpoint, native).identity
    assert first
    assert loaded(checkpoint, replace(native, threads=2)).identity == first
    assert loaded(checkpoint, replace(native, runner="torch")).identity != first
    assert loaded(checkpoint, replace(native, dtype="bfloat16")).identity not in ("", first)
    monkeypatch.setattr(Library, "sha256", "of another build")
    assert loaded(checkpoint, native).identity != first


NATIVE = EngineConfig(device="cpu", runner="native")
CARD = EngineConfig(device="cuda", runner="triton", deterministic=True)


@pytest.mark.parametrize(
    ("config", "device", "dtype", "reason"),
    [
        (CONFIG, "cpu", "float32", ""),
        (CONFIG, "cpu", "bfloat16", "float32 alone"),
        (NATIVE, "cpu", "float32", ""),
        (NATIVE, "cpu", "bfloat16", ""),
        (NATIVE, "cpu", "int8", ""),
        (CARD, "cuda", "bfloat16", ""),
        (CARD, "cuda", "float16", "bfloat16 alone"),
        (replace(CARD, deterministic=False), "cuda", "bfloat16", "setting `deterministic` alone"),
        (replace(CARD, runner="torch"), "cuda", "bfloat16", "runner triton alone"),
    ],
)
def test_speech_that_depends_on_the_load_has_a_reason(
    config: EngineConfig, device: str, dtype: str, reason: str
) -> None:
    found = why_not_reproducible(config, device, dtype)
    assert reason in found
    assert bool(found) == bool(reason)


def test_a_process_tells_its_identity_once_it_is_loaded() -> None:
    engine = EngineProcess(fake_model(), EngineConfig())
    assert engine.identity == ""
    engine.start()
    try:
        assert engine.identity == "fake"
    finally:
        engine.stop()


def test_a_pool_has_the_identity_that_all_its_processes_share() -> None:
    model: Model = fake_model()
    pool = EnginePool.of_processes(model, EngineConfig(), 2)
    assert pool.identity == ""
    first, second = pool.engines
    first._identity = "one"
    assert pool.identity == "one"  # the other one has no model in memory
    second._identity = "two"
    assert pool.identity == ""
    second._identity = "one"
    assert pool.identity == "one"
