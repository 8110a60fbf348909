"""constraints.txt and pyproject.toml agree with the metadata of torch's CUDA wheels: deploy/pins/cuda_wheels.json."""

from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version
from vivavoce_engine.gpu.needs import LEAST_DRIVER

from deploy.pins import refresh, resolve
from deploy.pins.installers import Refused
from deploy.pins.pins import (
    LEAST_DRIVERS,
    MACHINES,
    CudaWheel,
    applying,
    disagreements,
    least_version,
    pins,
    read_table,
    requirements,
    supported_pythons,
)

TABLE = read_table()
PINNED = pins("3.11", "x86_64")
by_python = pytest.mark.parametrize("python", supported_pythons())
by_machine = pytest.mark.parametrize("machine", MACHINES)


def wheel_of(torch: Version) -> CudaWheel:
    """The table's row of a version, for which 2.11 is 2.11.0."""
    rows = [wheel for version, wheel in TABLE.items() if Version(version) == torch]
    assert len(rows) == 1, f"cuda_wheels.json has {list(TABLE)} and not torch {torch}: run make refresh-pins"
    return rows[0]


def test_the_table_is_of_the_versions_that_the_project_names() -> None:
    named = {wheel_of(PINNED["torch"]).torch, wheel_of(Version(least_version("torch"))).torch}
    assert set(TABLE) == named, "run make refresh-pins"


@by_python
@by_machine
def test_the_pins_are_what_the_cuda_wheel_asks_for(python: str, machine: str) -> None:
    pinned = pins(python, machine)
    assert disagreements(pinned, wheel_of(pinned["torch"])) == []


@by_python
@by_machine
def test_there_are_wheels(python: str, machine: str) -> None:
    assert all(python in wheel.pythons[machine] for wheel in TABLE.values())


def test_a_pin_that_the_wheel_does_not_ask_for_is_named() -> None:
    wheel = wheel_of(PINNED["torch"])
    assert disagreements(PINNED | {"triton": Version("3.6.0")}, wheel) == [
        f"torch {wheel.torch} asks for triton=={wheel.triton} on CUDA, and constraints.txt has 3.6.0"
    ]
    lacking = {name: version for name, version in PINNED.items() if name != "nvidia-cublas"}
    [said] = disagreements(lacking, wheel)
    assert "asks for nvidia-cublas==" in said
    assert said.endswith("has no version of it")


def test_no_pin_of_cuda_is_left_over() -> None:
    asked = {Requirement(line).name for line in wheel_of(PINNED["torch"]).requires}
    ours = {name for name in PINNED if name.startswith(("cuda-", "nvidia-"))}
    assert ours - asked == {"cuda-pathfinder"}  # which cuda-bindings asks for


def test_the_least_versions_are_a_pair() -> None:
    assert Version(least_version("triton")) == Version(wheel_of(Version(least_version("torch"))).triton)


def test_the_least_driver_is_that_of_the_wheels_cuda() -> None:
    for wheel in TABLE.values():
        assert wheel.least_driver == LEAST_DRIVERS[wheel.cuda]
        assert any(line.startswith("cuda-toolkit[") and f"=={wheel.cuda}." in line for line in wheel.requires)


def test_the_engine_checks_the_driver_of_the_table() -> None:
    for wheel in TABLE.values():
        assert wheel.least_driver.startswith(LEAST_DRIVER[int(wheel.cuda.partition(".")[0])] + ".")


def test_triton_belongs_to_the_engine_on_linux_alone() -> None:
    [triton] = [line for line in requirements("engine") if line.name == "triton"]
    assert triton.marker is not None
    assert {name: triton.marker.evaluate({"sys_platform": name}) for name in ("linux", "darwin", "win32")} == {
        "linux": True,
        "darwin": False,
        "win32": False,
    }
    assert [line.name for line in requirements("dev")].count("triton") == 1


# ---- the reading of markers and of the index's answers


def test_markers_are_judged_for_the_python_that_is_asked_about() -> None:
    assert pins("3.13", "x86_64")["numpy"] < pins("3.14", "x86_64")["numpy"]
    lines = [
        Requirement("a==1; extra == 'x' and platform_machine == 'aarch64'"),
        Requirement("b>=2; sys_platform == 'win32'"),
    ]
    assert applying(lines, "3.11", "aarch64") == []
    assert applying(lines, "3.11", "x86_64", {"x"}) == []
    assert applying(lines, "3.11", "aarch64", {"x", "y"}) == [Requirement("a==1")]


ASKED = [
    "filelock",
    "cuda-toolkit[nvrtc]==13.0.3; platform_system == 'Linux'",
    "nvidia-nccl-cu13==2.29.7; platform_system == 'Linux'",
    "triton==3.7.1; platform_system == 'Linux'",
    "pyyaml; extra == 'pyyaml'",
]
TOOLKIT = ["nvidia-cuda-nvrtc==13.0.88.*; extra == 'nvrtc'", "nvidia-cufft==12.*; extra == 'cufft'"]


def index(monkeypatch: pytest.MonkeyPatch, without: dict[tuple[str, str, str], str]) -> None:
    """An index of three packages; `without` says for (package, Python, machine) what pip says instead."""

    def pip_report(lines: list[str], python: str, machine: str, **_: Any) -> list[dict[str, Any]]:
        name = Requirement(lines[0]).name
        if (name, python, machine) in without:
            raise Refused(without[name, python, machine])
        return [{"name": name, "requires_dist": {"torch": ASKED, "cuda-toolkit": TOOLKIT, "triton": []}[name]}]

    monkeypatch.setattr(refresh, "pip_report", pip_report)
    refresh.cuda_toolkit.cache_clear()


def test_a_row_holds_what_the_index_says(monkeypatch: pytest.MonkeyPatch) -> None:
    no_wheel = f"ERROR: {refresh.NO_WHEEL} for triton===3.7.1 (from versions: 3.6.0)"
    index(monkeypatch, {("triton", "3.14", "aarch64"): no_wheel, ("torch", "3.11", "aarch64"): no_wheel})
    assert refresh.row("2.13.0") == CudaWheel(
        torch="2.13.0",
        cuda="13.0",
        least_driver="580.65.06",
        triton="3.7.1",
        pythons={"x86_64": ["3.11", "3.12", "3.13", "3.14"], "aarch64": ["3.12", "3.13"]},
        requires=[
            "cuda-toolkit[nvrtc]==13.0.3",
            "nvidia-cuda-nvrtc==13.0.88.*",
            "nvidia-nccl-cu13==2.29.7",
            "triton==3.7.1",
        ],
    )


@pytest.mark.parametrize("said", [f"{refresh.NO_WHEEL} {refresh.NO_INDEX}", "connection refused"])
def test_an_index_that_does_not_answer_makes_no_row(monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    index(monkeypatch, {("torch", "3.12", "x86_64"): said})
    with pytest.raises(Refused):
        refresh.row("2.13.0")


def test_a_cuda_without_a_known_driver_is_refused() -> None:
    with pytest.raises(SystemExit, match=r"lacks CUDA 14\.0"):
        refresh.least_driver("14.0")


def test_a_package_without_a_version_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"torch": Version("2.13.0"), "triton": Version("3.7.1"), "left-pad": Version("1.0")}
    monkeypatch.setattr(resolve, "by_pip", lambda python, machine: found)
    assert resolve.problems("pip", "3.12", "x86_64") == [
        "pip, Python 3.12 on x86_64: left-pad 1.0 has no version in constraints.txt",
        "pip, Python 3.12 on x86_64: no nvidia-cublas is installed",
    ]


def test_an_installer_that_finds_nothing_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(python: str, machine: str) -> dict[str, Version]:
        raise Refused("uv: No solution found")

    monkeypatch.setattr(resolve, "by_uv", refuse)
    assert resolve.problems("uv", "3.11", "aarch64") == ["uv: No solution found"]


@pytest.mark.parametrize("answers", [True, False])
def test_without_a_registry_nothing_is_asked(monkeypatch: pytest.MonkeyPatch, answers: bool) -> None:
    asked: list[tuple[str, str, str]] = []

    def problems(installer: str, python: str, machine: str) -> list[str]:
        asked.append((installer, python, machine))
        return ["wrong"]

    monkeypatch.setattr(resolve, "registry_answers", lambda: answers)
    monkeypatch.setattr(resolve, "problems", problems)
    assert resolve.main() == (1 if answers else 0)
    assert {installer for installer, _, _ in asked} == ({"uv", "pip"} if answers else set())
