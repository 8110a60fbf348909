"""Owns the reading of constraints.txt, of pyproject.toml's requirements, and of the table of torch's CUDA wheels.

It asks no index: refresh.py makes the table from one, and resolve.py asks one whether everything goes together.
"""

import json
import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
TABLE = Path(__file__).with_name("cuda_wheels.json")
VOICE = "vivavoce-voice"  # the project's own, in voice/
MACHINES = ("x86_64", "aarch64")
# NVIDIA's table "CUDA Toolkit and Corresponding Driver Versions", for Linux, by CUDA's major and minor version.
LEAST_DRIVERS = {"13.0": "580.65.06"}
LEAST_DRIVERS_SOURCE = "https://docs.nvidia.com/cuda/archive/13.0.0/cuda-toolkit-release-notes/index.html"


@dataclass(frozen=True)
class CudaWheel:
    """Metadata of one version of torch on Linux, as the index has it."""

    torch: str
    cuda: str  # major and minor version
    least_driver: str
    triton: str  # the least version that torch asks for
    pythons: dict[str, list[str]]  # machine → Python versions for which both torch and Triton have a wheel
    requires: list[str]  # Triton and CUDA packages that torch asks for, cuda-toolkit's extras spelled out


def applying(
    lines: Iterable[Requirement], python: str, machine: str, extras: set[str] | None = None
) -> list[Requirement]:
    """The requirements that hold on Linux with one of these extras, or without any; copies that have no marker."""
    environment = {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "platform_system": "Linux",
        "sys_platform": "linux",
        "platform_machine": machine,
        "os_name": "posix",
        "platform_python_implementation": "CPython",
        "implementation_name": "cpython",
    }
    found = []
    for line in lines:
        marker = line.marker
        if marker is None or any(marker.evaluate(environment | {"extra": extra}) for extra in extras or {""}):
            found.append(Requirement(str(line).partition(";")[0]))
    return found


def constraints() -> list[Requirement]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def pins(python: str, machine: str) -> dict[str, Version]:
    """Canonical name of a package → the version that constraints.txt has of it."""
    found: dict[str, Version] = {}
    for line in applying(constraints(), python, machine):
        [specifier] = line.specifier
        assert specifier.operator == "==", f"constraints.txt: {line} is no single version"
        found[canonicalize_name(line.name)] = Version(specifier.version)
    return found


def requirements(extra: str) -> Iterator[Requirement]:
    """Requirements of the project with an extra, other extras of the project spelled out, without its own voice."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for line in project["dependencies"]:
        yield Requirement(line)
    waiting = [extra]
    for name in waiting:
        for line in map(Requirement, project["optional-dependencies"][name]):
            if line.name == project["name"]:
                waiting += line.extras
            elif line.name != VOICE:
                yield line


def supported_pythons() -> list[str]:
    """The classifiers' versions, oldest first."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [line.rpartition(" ")[2] for line in project["classifiers"] if re.search(r"Python :: 3\.\d+$", line)]


def least_version(package: str) -> str:
    """The lower bound that pyproject.toml states for one of the engine's packages."""
    [line] = [line for line in requirements("engine") if line.name == package]
    [bound] = [specifier.version for specifier in line.specifier if specifier.operator == ">="]
    return bound


def disagreements(pinned: dict[str, Version], wheel: CudaWheel) -> list[str]:
    """Requirements of torch's CUDA wheel that these pins do not meet, a sentence each."""
    found = []
    for line in map(Requirement, wheel.requires):
        version = pinned.get(canonicalize_name(line.name))
        if version is None or version not in line.specifier:
            has = f"has {version}" if version else "has no version of it"
            found.append(f"torch {wheel.torch} asks for {line} on CUDA, and constraints.txt {has}")
    return found


def read_table() -> dict[str, CudaWheel]:
    """Version of torch → its row."""
    rows = json.loads(TABLE.read_text(encoding="utf-8"))["rows"]
    return {row["torch"]: CudaWheel(**row) for row in rows}


def write_table(rows: list[CudaWheel]) -> None:
    content = {
        "about": "torch's CUDA wheels on PyPI, for Linux: pyproject.toml's least version and constraints.txt's",
        "made_with": "make refresh-pins",
        "least_driver_source": LEAST_DRIVERS_SOURCE,
        "rows": [asdict(row) for row in rows],
    }
    TABLE.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
