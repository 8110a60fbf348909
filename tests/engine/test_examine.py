"""Checks of a machine and of a checkpoint's files, each on a planted fault."""

import errno
import os
import platform
import re
import shutil
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub.constants
import pytest
import torch
from vivavoce_engine import EngineConfig, Finding, checks
from vivavoce_engine import examine as examining
from vivavoce_engine.examine import (
    check_cards,
    check_kernel_cache,
    check_launches,
    check_model,
    check_needs,
    check_rows,
    check_runner,
    check_system,
    check_voices,
    kernel_cache,
)
from vivavoce_engine.voices.store import STALE_S

from tests.engine.conftest import Checkpoints
from tests.support.machines import Machine, machine_with_card

L4 = SimpleNamespace(
    name="NVIDIA L4",
    major=8,
    minor=9,
    multi_processor_count=58,
    shared_memory_per_block_optin=101376,
    shared_memory_per_block=49152,
    total_memory=24 * 10**9,
)
HUB_ID = "Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    return machine_with_card(monkeypatch, tmp_path)


@pytest.fixture
def checkpoint(checkpoints: Checkpoints, tmp_path: Path) -> Path:
    """A small checkpoint, to be broken."""
    return shutil.copytree(checkpoints("tiny", "custom_voice"), tmp_path / "checkpoint")


def only(findings: list[Finding]) -> Finding:
    (found,) = findings
    return found


def states(findings: list[Finding]) -> dict[str, str]:
    return {found.name: found.state for found in findings}


# ---- the machine


def test_the_system_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examining, "is_wsl", lambda: False)
    found = only(check_system())
    assert found.state == "ok"
    assert found.text.startswith(f"{platform.system()}, {platform.machine()}, Python {platform.python_version()}, ")
    monkeypatch.setattr(examining, "is_wsl", lambda: True)
    assert only(check_system()).text.startswith(f"{platform.system()} inside WSL2, ")


def test_windows_itself_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    found = only(check_system())
    assert (found.state, found.mend) == ("error", "wsl --install")


def test_a_good_card_has_no_lack(machine: Machine) -> None:
    machine()
    found = check_needs(EngineConfig())
    assert states(found) == dict.fromkeys(("driver", "torch", "capability", "triton", "compiler", "headers"), "ok")
    runner = only(check_runner(EngineConfig(), {}))
    assert (runner.state, runner.text) == ("ok", "Serving takes the triton runner on cuda.")


@pytest.mark.parametrize(
    ("lack", "name"),
    [
        ({"usable": False, "driver": "550.54.14"}, "driver"),
        ({"usable": False, "cuda": None}, "torch"),
        ({"capability": (7, 5)}, "capability"),
        ({"triton": False}, "triton"),
        ({"compiler": False}, "compiler"),
        ({"headers": False}, "headers"),
    ],
)
def test_a_lack_is_a_warning_while_something_else_can_speak(machine: Machine, lack: dict[str, Any], name: str) -> None:
    machine(**lack)
    found = {each.name: each for each in check_needs(EngineConfig())}
    assert {each.name for each in found.values() if each.state != "ok"} == {name}
    assert found[name].state == "warning"
    assert found[name].mend or name == "capability"
    assert only(check_runner(EngineConfig(), {})).state == "warning"
    named = EngineConfig(device="cuda", runner="triton")
    assert states(check_needs(named))[name] == "error"
    assert found[name].text not in only(check_runner(EngineConfig(), {})).text, "a reason is told once"
    refused = only(check_runner(named, {}))
    assert refused.state == "error"
    assert refused.text.startswith("Nothing can speak with these settings: ")


def test_the_runner_is_the_one_that_each_model_takes(machine: Machine, checkpoint: Path, tmp_path: Path) -> None:
    """A small model speaks on the CPU where Triton's kernels cannot run, and a large one on the card."""
    machine((7, 5))
    small = only(check_runner(EngineConfig(), {"small": str(checkpoint)}))
    assert small.text.startswith("Serving takes the native runner on cpu: ")
    found = check_runner(EngineConfig(), {"small": str(checkpoint), "gone": str(tmp_path / "gone")})
    assert found[0].text == f"small: {small.text}"
    assert found[1].text.startswith("gone: Serving takes the torch runner on cuda: ")
    assert check_runner(EngineConfig(), {"one": str(checkpoint), "two": str(checkpoint)}) == [small]


def test_a_machine_without_a_card_has_two_lines_about_it(machine: Machine) -> None:
    machine(driver=None, usable=False, cuda=None)
    found = check_needs(EngineConfig())
    assert states(found) == {"torch": "ok", "card": "ok"}
    assert found[1].text == "This system shows no NVIDIA card."
    assert check_cards(EngineConfig()) == []
    assert check_kernel_cache(EngineConfig()) == []
    assert states(check_needs(EngineConfig(device="cuda")))["driver"] == "error"


def test_settings_that_choose_the_cpu_ask_nothing_of_a_card(machine: Machine) -> None:
    machine(compiler=False)
    config = EngineConfig(device="cpu")
    assert states(check_needs(config)) == {"torch": "ok"}
    assert check_cards(config) == []
    assert only(check_runner(config, {})).text == "Serving takes the native runner on cpu."


def test_a_card_beyond_the_last_is_named(machine: Machine) -> None:
    machine(cards=2)
    config = EngineConfig(device="cuda:2")
    assert "capability" not in states(check_needs(config))
    assert "this machine has 2 cards, numbered from 0" in only(check_runner(config, {})).text


def test_hidden_cards_have_a_reason(machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine(usable=False)
    monkeypatch.setattr(examining, "DEVICES", tmp_path)
    monkeypatch.setattr(examining, "is_wsl", lambda: False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def reason() -> tuple[str, str, str]:
        found = check_needs(EngineConfig())[-1]
        assert (found.name, found.state) == ("card", "warning")
        return found.state, found.text, found.mend

    assert reason()[2] == "docker run --gpus all ..."
    (tmp_path / "nvidia0").touch()

    def init() -> None:
        raise RuntimeError("Unexpected error from cudaGetDeviceCount()\nmore")

    monkeypatch.setattr(torch.cuda, "init", init)
    assert reason()[1] == "PyTorch cannot use the card: Unexpected error from cudaGetDeviceCount()."
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert reason()[1:] == (
        "CUDA_VISIBLE_DEVICES is '', which leaves PyTorch no card.",
        "unset CUDA_VISIBLE_DEVICES",
    )


def test_cards_are_described_and_only_the_one_that_serves_is_touched(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(cards=2)
    touched = []

    def free(number: int) -> tuple[int, int]:
        touched.append(number)
        return 21 * 10**9, L4.total_memory

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: L4)
    monkeypatch.setattr(torch.cuda, "mem_get_info", free)
    first, second = check_cards(EngineConfig(device="cuda:1"))
    assert first.text == (
        "cuda:0 is NVIDIA L4 (sm_89) with 58 multiprocessors, 99 KB of shared memory a block, and 24.0 GB of memory."
    )
    assert second.text.endswith("and 24.0 GB of memory, of which 21.0 GB are free.")
    assert touched == [1]

    def broken(number: int) -> tuple[int, int]:
        raise RuntimeError("CUDA error: out of memory\nmore")

    monkeypatch.setattr(torch.cuda, "mem_get_info", broken)
    found = check_cards(EngineConfig())[0]
    assert found.state == "error"
    assert found.text.endswith("which cannot be used: CUDA error: out of memory.")


# ---- folders


def blocked(tmp_path: Path) -> Path:
    """A folder that cannot be made, for root neither: a file is in its place."""
    (tmp_path / "file").write_text("x")
    return tmp_path / "file" / "folder"


def test_the_cache_of_kernels_can_be_written_to(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "kernels"))
    found = only(check_kernel_cache(EngineConfig()))
    assert (found.state, found.text) == ("ok", f"Compiled kernels are kept in {tmp_path / 'kernels'}.")
    assert not (tmp_path / "kernels").exists(), "a check makes nothing"
    monkeypatch.setenv("TRITON_CACHE_DIR", str(blocked(tmp_path)))
    found = only(check_kernel_cache(EngineConfig()))
    assert found.state == "error"
    assert os.strerror(errno.ENOTDIR) in found.text
    assert "TRITON_CACHE_DIR" in found.mend


def test_the_cache_of_kernels_is_the_one_that_triton_uses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    triton = pytest.importorskip("triton")
    for name, value in (("TRITON_CACHE_DIR", None), ("TRITON_HOME", str(tmp_path)), ("TRITON_CACHE_DIR", "/cache/x")):
        monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
        assert str(kernel_cache()) == triton.knobs.cache.dir


def test_the_folder_of_voices_is_counted_and_left_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "voices"
    assert only(check_voices(folder, 2)).text == f"{folder} will be made for stored voices."
    assert not folder.exists()
    folder.mkdir()
    (folder / "ann.safetensors").touch()
    left = folder / ".0123.partial"
    left.touch()
    long_ago_s = time.time() - 2 * STALE_S
    os.utime(left, (long_ago_s, long_ago_s))
    found = only(check_voices(folder, 2))
    assert (found.state, found.text.partition(",")[0]) == ("ok", f"{folder} holds 1 stored voices")
    assert "1 files that an interrupted server has left" in found.text
    assert sorted(path.name for path in folder.iterdir()) == [".0123.partial", "ann.safetensors"]
    (folder / "bob.safetensors").touch()
    found = only(check_voices(folder, 2))
    assert (found.state, found.mend) == ("warning", "vivavoce serve --max-voices 4")


def test_a_folder_of_voices_that_cannot_be_made_or_is_on_a_full_disk(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = only(check_voices(blocked(tmp_path), 2))
    assert found.state == "error"
    assert os.strerror(errno.ENOTDIR) in found.text
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1_000_000))
    assert "0.00 GB free, less than 0.01 GB" in only(check_voices(tmp_path, 2)).text


# ---- a model's files


def test_a_whole_checkpoint_is_described(checkpoint: Path) -> None:
    found = only(check_model("mine", str(checkpoint)))
    assert found.state == "ok"
    assert found.text.startswith("mine is complete (custom_voice, ")


@pytest.mark.parametrize("file", ["model.safetensors", "speech_tokenizer/model.safetensors"])
def test_a_download_that_broke_off_is_seen_without_reading_weights(checkpoint: Path, file: str) -> None:
    content = (checkpoint / file).read_bytes()
    for kept in (len(content) - 1, len(content) // 2, 100, 0):
        (checkpoint / file).write_bytes(content[:kept])
        found = only(check_model("mine", str(checkpoint)))
        assert found.state == "error"
        assert f"{checkpoint / file} " in found.text
        assert "is not whole" in found.text


def test_a_pointer_of_git_lfs_is_no_file_of_weights(checkpoint: Path) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    (checkpoint / "model.safetensors").write_text(pointer)
    assert "git lfs pull" in only(check_model("mine", str(checkpoint))).text


def test_a_folder_that_is_no_checkpoint_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    (checkpoint / "merges.txt").unlink()
    assert "missing: merges.txt" in only(check_model("mine", str(checkpoint))).text
    found = only(check_model("gone", str(tmp_path / "gone")))
    assert found.state == "error"
    assert "neither a folder nor a hub id" in found.text


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache of the hub."""
    cache = tmp_path / "hub"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=9 * 10**9))
    return cache


def test_a_model_of_the_hub_that_is_not_here_is_downloaded_at_the_start(
    hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = only(check_model(HUB_ID, HUB_ID))
    assert (found.state, found.mend) == ("warning", f"hf download {HUB_ID}")
    assert str(hub) in found.text
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    found = only(check_model(HUB_ID, HUB_ID))
    assert (found.state, found.mend) == ("error", f"HF_HUB_OFFLINE=0 hf download {HUB_ID}")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10**9))
    found = only(check_model(HUB_ID, HUB_ID))
    assert (found.state, "HF_HOME" in found.mend) == ("error", True)
    assert "1.00 GB free, less than 5 GB" in found.text


def test_a_model_in_the_hubs_cache_is_checked_there(hub: Path, checkpoint: Path) -> None:
    repository = hub / f"models--{HUB_ID.replace('/', '--')}"
    snapshot = repository / "snapshots" / ("0" * 40)
    shutil.copytree(checkpoint, snapshot)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    assert only(check_model(HUB_ID, HUB_ID)).state == "ok"
    weights = snapshot / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    found = only(check_model(HUB_ID, HUB_ID))
    assert (found.state, found.mend) == ("error", f"hf download --force-download {HUB_ID}")
    weights.unlink()
    assert only(check_model(HUB_ID, HUB_ID)).state == "warning", "the start goes on with the download"


def test_a_name_that_the_hub_cannot_have_is_an_error() -> None:
    found = only(check_model("a b/c", "a b/c"))
    assert (found.state, "neither a folder nor a hub id" in found.text) == ("error", True)


# ---- rows


@pytest.mark.parametrize(
    ("lack", "settings", "told"),
    [
        ({}, {}, "mine speaks 64 utterances at once on cuda, with 65536 positions of keys and values that they share."),
        (
            {},
            {"max_streams": 4},
            "mine speaks 4 utterances at once on cuda, with 4096 positions of keys and values that they share.",
        ),
        ({"triton": False}, {"device": "cuda"}, "mine speaks 8 utterances at once on cuda."),
        ({"triton": False}, {}, "mine speaks 8 utterances at once on the CPU."),
        ({}, {"device": "cpu"}, "mine speaks 8 utterances at once on the CPU."),
        ({}, {"device": "cpu", "threads": 2}, "mine speaks 16 utterances at once on the CPU."),
    ],
)
def test_rows_are_those_that_serving_settles_on(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, checkpoint: Path, lack: Any, settings: Any, told: str
) -> None:
    pytest.importorskip("triton")
    machine(**lack)
    monkeypatch.setattr("vivavoce_engine.cpu.threads.usable_cores", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: L4)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (23 * 10**9, 24 * 10**9))
    assert only(check_rows(EngineConfig(**settings), "mine", str(checkpoint))) == Finding("rows", "ok", told)


def test_a_model_without_room_names_settings_that_fit(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, checkpoint: Path
) -> None:
    pytest.importorskip("triton")
    machine()
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: L4)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (10**8, 24 * 10**9))
    found = only(check_rows(EngineConfig(), "mine", str(checkpoint)))
    assert found.state == "warning"
    assert found.text.startswith("mine does not fit cuda, so the CPU speaks: ")
    assert only(check_rows(EngineConfig(device="cuda"), "mine", str(checkpoint))).state == "error"


def test_rows_of_a_model_that_is_not_here_are_not_told(hub: Path, tmp_path: Path) -> None:
    assert check_rows(EngineConfig(device="cpu"), HUB_ID, HUB_ID) == []
    assert check_rows(EngineConfig(device="cpu"), "gone", str(tmp_path / "gone")) == []


def test_every_model_has_its_check() -> None:
    names = [name for name, _ in checks(EngineConfig(), {"one": "/one", "two": "/two"}, launches=True)]
    assert [names.count(name) for name in ("model", "rows", "launches")] == [2, 2, 2]
    assert "launches" not in [name for name, _ in checks(EngineConfig(), {"one": "/one"}, launches=False)]


# ---- launches


def test_launches_that_do_not_fit_are_counted_and_the_largest_is_named(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, checkpoint: Path
) -> None:
    pytest.importorskip("triton")
    from vivavoce_engine.gpu import lowering

    machine()
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: L4)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (23 * 10**9, 24 * 10**9))
    wanted = iter(range(101_000, 200_000, 100))
    monkeypatch.setattr(lowering, "shared_bytes", lambda *_: next(wanted))
    found = only(check_launches(EngineConfig(), "mine", str(checkpoint)))
    count, of, largest = re.findall(r"(\d+) of (\d+) kernel launches of mine .* wants (\d+)", found.text)[0]
    assert (found.state, found.mend) == ("error", "vivavoce serve --runner torch")
    assert int(count) == int(of) - 4  # 101,000, 101,100, 101,200 and 101,300 fit
    assert int(largest) == 101_000 + 100 * (int(of) - 1)
    monkeypatch.setattr(lowering, "shared_bytes", lambda *_: 101_376)
    assert (
        only(check_launches(EngineConfig(), "mine", str(checkpoint))).text
        == f"All {of} kernel launches of mine fit the card."
    )


def test_a_cpu_launches_nothing(checkpoint: Path) -> None:
    found = only(check_launches(EngineConfig(device="cpu"), "mine", str(checkpoint)))
    assert (found.state, found.text) == ("ok", "mine needs no launches of Triton here.")
