"""The choice of device and runner on machines that this one is not: PyTorch's view of cards is replaced."""

import importlib.metadata
import logging
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from vivavoce_engine.checkpoint.files import read_checkpoint
from vivavoce_engine.config import EngineConfig
from vivavoce_engine.cpu import library
from vivavoce_engine.errors import CheckpointError, EngineError, NoRoom
from vivavoce_engine.gpu import choice, needs, presence
from vivavoce_engine.gpu.choice import choices, first_that_works
from vivavoce_engine.load import make_runner

from tests.support.machines import DRIVER, OPEN_DRIVER, Machine, machine_with_card
from tests.support.tiny_checkpoints import write_checkpoint


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    return machine_with_card(monkeypatch, tmp_path)


def tried(**settings: Any) -> list[tuple[str, str]]:
    """(device, runner) in the order in which they are tried."""
    return [(one.config.device, one.config.runner) for one in choices(EngineConfig(**settings))]


CARD, PLAIN, CPU, PLAIN_CPU = ("cuda", "triton"), ("cuda", "torch"), ("cpu", "native"), ("cpu", "torch")
LACKS = "The CPU's kernels are not built."


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [CARD, PLAIN, CPU, PLAIN_CPU]),
        ({"device": "cpu"}, [CPU, PLAIN_CPU]),
        ({"device": "cpu", "runner": "torch"}, [PLAIN_CPU]),
        ({"device": "cpu", "dtype": "float16"}, [PLAIN_CPU]),
        ({"runner": "native"}, [CPU]),
        ({"dtype": "int8"}, [CPU]),
        ({"dtype": "int8", "device": "cpu"}, [CPU]),
        ({"dtype": "int8", "runner": "native"}, [CPU]),
        ({"runner": "triton"}, [CARD]),
        ({"device": "cuda"}, [CARD, PLAIN]),
        ({"device": "cuda", "runner": "triton"}, [CARD]),
        ({"device": "cuda", "runner": "torch"}, [PLAIN]),
        ({"device": "cuda:0"}, [("cuda:0", "triton"), ("cuda:0", "torch")]),
        ({"runner": "torch"}, [PLAIN, PLAIN_CPU]),
    ],
)
def test_a_good_card_is_tried_first(
    machine: Machine, settings: dict[str, str], expected: list[tuple[str, str]]
) -> None:
    machine()
    assert tried(**settings) == expected
    loses = choices(EngineConfig(**settings))[0].loses  # type: ignore[arg-type]
    sentence = "kernels for CPUs have no float16" if settings.get("dtype") == "float16" else "The card is idle"
    assert (sentence in loses) == bool(loses)
    assert bool(loses) == (settings.get("dtype") == "float16" or settings == {"dtype": "int8"})


@pytest.mark.parametrize(
    ("lack", "reason"),
    [
        ({"capability": (7, 5)}, r"NVIDIA Card \(sm_75\) is older than sm_80"),
        ({"triton": False}, r"The package triton is missing. Mend it with: .* -m pip install triton"),
        ({"compiler": False}, r"No C compiler is installed.*apt install gcc libc6-dev"),
        ({"headers": False}, r"Python.h is missing.*apt install python3\.\d+-dev"),
        ({"hip": "7.0", "cuda": None, "driver": None}, r"built for ROCm"),
    ],
)
def test_what_triton_cannot_run_on_gets_the_plain_runner(machine: Machine, lack: dict[str, Any], reason: str) -> None:
    machine(**lack)
    assert tried() == [PLAIN, CPU, PLAIN_CPU]
    first = choices(EngineConfig())[0]
    assert first.loses.count("CUDA graphs") == 1
    with pytest.raises(EngineError, match=rf"runner triton cannot be used: .*{reason}"):
        choices(EngineConfig(device="cuda", runner="triton"))


@pytest.mark.parametrize(
    ("lack", "reason"),
    [
        ({"usable": False, "driver": "550.54.14"}, r"550.54.14 is too old for PyTorch's CUDA 13.0, which needs 580.65"),
        ({"usable": False, "cuda": None}, r"PyTorch \S+ has no CUDA. Mend it with: "),
        ({"usable": False}, r"no card that it can use"),
        ({"computes": False}, r"cannot compute on NVIDIA Card: CUDA error: no kernel image is available"),
    ],
)
def test_auto_speaks_on_the_cpu_beside_a_card_that_cannot_be_used(
    machine: Machine, lack: dict[str, Any], reason: str
) -> None:
    machine(**lack)
    only, _ = choices(EngineConfig())
    assert (only.config.device, only.config.runner) == CPU
    with pytest.raises(EngineError, match=rf"device cuda cannot be used: .*{reason}"):
        choices(EngineConfig(device="cuda"))
    assert "the CPU speaks although there is a card" in only.loses


def test_a_card_that_others_fill_can_be_used(machine: Machine) -> None:
    """To load the model there tells the lack, as one of room, which passes."""
    machine(full=True)
    assert tried() == [CARD, PLAIN, CPU, PLAIN_CPU]
    assert tried(device="cuda") == [CARD, PLAIN]


def test_a_small_model_speaks_on_the_cpu_where_triton_cannot_run(machine: Machine) -> None:
    """Beside a card too: to launch one operation after the other takes longer than to compute them."""
    machine((7, 5))
    only, _ = choices(EngineConfig(), hidden_size=512)
    assert (only.config.device, only.config.runner) == CPU
    assert "older than sm_80" in only.loses
    assert "faster for a small model" in only.loses
    named = choices(EngineConfig(device="cuda"), hidden_size=512)
    assert [(one.config.device, one.config.runner) for one in named] == [PLAIN]
    machine()
    good = choices(EngineConfig(), hidden_size=512)
    assert [(one.config.device, one.config.runner) for one in good] == [CARD, CPU, PLAIN_CPU]


def test_a_machine_without_a_card_speaks_without_a_warning(machine: Machine) -> None:
    machine(driver=None, usable=False, cuda=None)
    only, _ = choices(EngineConfig())
    assert only.loses == ""
    with pytest.raises(EngineError, match=r"device cuda cannot be used: No NVIDIA driver is loaded\."):
        choices(EngineConfig(device="cuda"))
    with pytest.raises(EngineError, match="runner triton needs an NVIDIA card"):
        choices(EngineConfig(runner="triton"))


def test_a_card_that_is_not_there_is_named(machine: Machine) -> None:
    machine(cards=2)
    with pytest.raises(EngineError, match=r"device cuda:2 cannot be used: this machine has 2 cards, numbered from 0"):
        choices(EngineConfig(device="cuda:2"))
    assert tried(device="cuda:1")[0] == ("cuda:1", "triton")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("device", "mps", r"device must be auto, cpu, cuda or cuda:N, not 'mps': Apple's GPU lacks float64"),
        ("device", "rocm", r"not 'rocm': a ROCm build of PyTorch calls"),
        ("device", "gpu", r"not 'gpu': an NVIDIA card is named cuda"),
        ("device", "cuda:x", r"not 'cuda:x'$"),
        ("device", "CUDA", r"not 'CUDA'$"),
        ("runner", "vulkan", r"runner must be auto, triton, native or torch, not 'vulkan'"),
        ("gpu_memory", 90.0, r"gpu_memory must be a share of at most 1, such as 0.9, not 90"),
        ("dtype", "int4", r"dtype must be one of auto, float32, bfloat16, float16, int8, not 'int4'"),
    ],
)
def test_wrong_names_are_refused_before_anything_loads(field: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EngineConfig(**{field: value})


def test_triton_on_a_cpu_is_refused() -> None:
    with pytest.raises(ValueError, match="runner triton needs a card"):
        EngineConfig(device="cpu", runner="triton")


def test_a_mac_is_told_that_no_package_brings_it_a_card(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(driver=None, usable=False, cuda=None)
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(EngineError, match=r"has no CUDA, as on every Mac; a Mac speaks on its CPU\.$"):
        choices(EngineConfig(device="cuda"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"runner": "native", "device": "cuda:1"}, "runner native is for a CPU, and device is cuda:1"),
        ({"runner": "native", "dtype": "float16"}, "runner native has no float16; bfloat16 takes as little"),
        ({"dtype": "int8", "device": "cuda"}, "dtype int8 is for the runner native on a CPU"),
        ({"dtype": "int8", "runner": "torch"}, "dtype int8 is for the runner native on a CPU"),
    ],
)
def test_what_the_cpu_kernels_cannot_do_is_refused(settings: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EngineConfig(**settings)  # type: ignore[arg-type]


def test_pytorch_speaks_where_the_cpu_kernels_cannot(machine: Machine) -> None:
    machine(driver=None, usable=False, cuda=None)
    (only,) = choices(EngineConfig(), cpu_lacks=lambda: LACKS)
    assert (only.config.device, only.config.runner) == PLAIN_CPU
    assert only.loses.startswith(LACKS)
    assert "four times as fast" in only.loses
    for settings, named in (({"runner": "native"}, "runner native"), ({"dtype": "int8"}, "dtype int8")):
        with pytest.raises(EngineError, match=f"{named} cannot be used: {LACKS}"):
            choices(EngineConfig(**settings), cpu_lacks=lambda: LACKS)  # type: ignore[arg-type]
    (plain,) = choices(EngineConfig(runner="torch"), cpu_lacks=lambda: LACKS)
    assert plain.loses == "", "it was asked for"


@pytest.mark.parametrize(
    "settings", [{"runner": "torch"}, {"device": "cpu", "runner": "torch"}, {"runner": "triton"}, {"device": "cuda"}]
)
def test_the_cpu_kernels_are_not_opened_where_they_cannot_speak(machine: Machine, settings: dict[str, str]) -> None:
    def opened() -> str:
        raise AssertionError("opened")

    machine()
    assert choices(EngineConfig(**settings), cpu_lacks=opened)  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="opened"):
        choices(EngineConfig(), cpu_lacks=opened)


def test_pytorchs_runner_is_made_without_the_cpu_kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def opened(_: str) -> None:
        raise AssertionError("opened")

    monkeypatch.setattr(library, "_load", opened)
    checkpoint = read_checkpoint(write_checkpoint(tmp_path, "tiny", "custom_voice"))
    assert make_runner("made", checkpoint, EngineConfig(device="cpu", runner="torch")).config.runner == "torch"


class Maker:
    """Makes runners, but for those named in `faults`."""

    def __init__(self, faults: dict[tuple[str, str], Exception]) -> None:
        self.faults = faults
        self.made: list[tuple[str, str]] = []

    def __call__(self, config: EngineConfig) -> tuple[str, str]:
        named = (config.device, config.runner)
        self.made.append(named)
        if named in self.faults:
            raise self.faults[named]
        return named


def test_the_next_choice_speaks_if_the_first_cannot_be_made(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    machine()
    fault = RuntimeError("out of resource: shared memory, Required: 184320\nmuch more")
    make = Maker({CARD: fault, PLAIN: RuntimeError("CUDA error: unspecified launch failure")})
    with caplog.at_level(logging.WARNING):
        assert first_that_works(choices(EngineConfig()), make) == CPU
    assert make.made == [CARD, PLAIN, CPU]
    warnings = [record.getMessage() for record in caplog.records]
    assert (
        "the triton runner on cuda cannot be used (out of resource: shared memory, Required: 184320); " in warnings[0]
    )
    assert any("The CPU speaks, and not the card" in warning for warning in warnings)


def test_the_cpu_speaks_if_an_error_destroys_the_context(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine()
    fault = RuntimeError("CUDA error: an illegal memory access was encountered")

    def empty_cache() -> None:
        raise fault

    monkeypatch.setattr(torch.cuda, "empty_cache", empty_cache)
    assert first_that_works(choices(EngineConfig()), Maker({CARD: fault, PLAIN: fault})) == CPU


def test_a_model_without_room_on_the_card_goes_to_the_cpu_at_once(machine: Machine) -> None:
    machine()
    make = Maker({CARD: NoRoom("8 rows take 9.0 GB; --max-streams 2 would fit")})
    assert first_that_works(choices(EngineConfig()), make) == CPU
    assert make.made == [CARD, CPU]
    with pytest.raises(NoRoom, match="--max-streams 2 would fit"):
        first_that_works(choices(EngineConfig(device="cuda")), Maker(make.faults))


def test_a_broken_checkpoint_is_reported_and_not_tried_elsewhere(machine: Machine) -> None:
    machine()
    make = Maker({CARD: CheckpointError("lacks tensors")})
    with pytest.raises(CheckpointError, match="lacks tensors"):
        first_that_works(choices(EngineConfig()), make)
    assert make.made == [CARD]


@pytest.mark.parametrize("text", [DRIVER, OPEN_DRIVER])
def test_the_drivers_version_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str) -> None:
    monkeypatch.setattr(presence, "DRIVER_FILE", tmp_path / "version")
    assert presence.driver_version() is None
    (tmp_path / "version").write_text(text.format("580.65.06"))
    assert presence.driver_version() == "580.65.06"


@pytest.mark.parametrize("value", ["", "ccache gcc", "/no/such/compiler"])
def test_the_compiler_is_the_one_that_triton_calls(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("CC", value)
    found = needs.check_compiler()
    assert found.state == "error"
    assert repr(value) in found.text


def test_the_pair_that_pytorch_pins_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    requires = ["filelock", 'triton==99.1.2; platform_system == "Linux"', "triton-extra==1"]
    monkeypatch.setattr(importlib.metadata, "requires", lambda _: requires)
    assert needs.wanted_triton() == "99.1.2"
    found = needs.check_triton()
    assert found.state == "warning"
    assert found.mend.endswith("-m pip install triton==99.1.2")


def test_the_cpu_is_chosen_here_without_a_card() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a card")
    assert tried() == [CPU, PLAIN_CPU]
    assert choice.choices(EngineConfig())[0].loses == ""


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_rows_that_the_host_cannot_hold_are_told_with_their_setting(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception
) -> None:
    def torch_runner(*_: object) -> None:
        raise error

    for name in ("native_runner.NativeRunner", "runner.TorchRunner"):
        monkeypatch.setattr(f"vivavoce_engine.cpu.{name}", torch_runner)
    checkpoint = read_checkpoint(write_checkpoint(tmp_path, "tiny", "custom_voice"))
    with pytest.raises(NoRoom, match=r"with 900 rows of 4096 positions; a lower --max-streams or --max-context"):
        make_runner("made", checkpoint, EngineConfig(device="cpu", max_streams=900))


@pytest.mark.parametrize("dtype", ["int8", "float16"])
def test_a_dtype_of_one_runner_is_not_asked_of_the_other(dtype: str) -> None:
    runner = "native" if dtype == "int8" else "torch"
    for asked in ("auto", runner):
        found = choices(EngineConfig(device="cpu", dtype=dtype, runner=asked), 512)  # type: ignore[arg-type]
        assert [one.config.runner for one in found] == [runner]
