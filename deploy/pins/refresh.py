"""Writes cuda_wheels.json: asks the index for the metadata of torch's CUDA wheels. `make refresh-pins` runs it."""

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import product
from typing import Any

from packaging.requirements import Requirement
from packaging.version import Version

from deploy.pins.installers import AT_ONCE, Refused, pip_report
from deploy.pins.pins import (
    LEAST_DRIVERS,
    LEAST_DRIVERS_SOURCE,
    MACHINES,
    CudaWheel,
    applying,
    least_version,
    pins,
    supported_pythons,
    write_table,
)

# pip's words where the index has the package, but no wheel that fits.
NO_WHEEL = "No matching distribution found"
NO_INDEX = "(from versions: none)"


def metadata(package: str, version: str, python: str, machine: str) -> dict[str, Any] | None:
    """None where there is no wheel for this Python and machine."""
    try:  # === leaves out other builds of the version, such as 2.13.0+cpu
        [found] = pip_report([f"{package}==={version}"], python, machine, deps=False)
    except Refused as refusal:
        if NO_WHEEL in str(refusal) and NO_INDEX not in str(refusal):
            return None
        raise
    return found


@cache
def cuda_toolkit(line: str, python: str, machine: str) -> list[Requirement]:
    """Requirements of cuda-toolkit with the extras of this line."""
    toolkit = Requirement(line)
    [found] = pip_report([f"{toolkit.name}{toolkit.specifier}"], python, machine, deps=False)
    return applying(map(Requirement, found["requires_dist"]), python, machine, toolkit.extras)


def least_driver(cuda: str) -> str:
    if cuda not in LEAST_DRIVERS:
        raise SystemExit(
            f"LEAST_DRIVERS of deploy/pins/pins.py lacks CUDA {cuda}; its release notes have the driver, as those of "
            f"another version have: {LEAST_DRIVERS_SOURCE}"
        )
    return LEAST_DRIVERS[cuda]


def answer(version: str, python: str, machine: str) -> list[str] | None:
    """Triton's version, then torch's requirements of it and of CUDA. None where torch or its Triton has no wheel."""
    torch = metadata("torch", version, python, machine)
    if torch is None:
        return None
    lines = applying(map(Requirement, torch["requires_dist"]), python, machine)
    [triton] = [pinned.version for line in lines if line.name == "triton" for pinned in line.specifier]
    if metadata("triton", triton, python, machine) is None:
        return None
    found = [line for line in lines if line.name.startswith(("cuda-", "nvidia-", "triton"))]
    [toolkit] = [str(line) for line in found if line.name == "cuda-toolkit"]
    return [triton, *sorted({str(line) for line in found + cuda_toolkit(toolkit, python, machine)})]


def row(version: str) -> CudaWheel:
    cells = list(product(MACHINES, supported_pythons()))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = dict(zip(cells, pool.map(lambda cell: answer(version, cell[1], cell[0]), cells), strict=True))
    pythons = {
        machine: [python for where, python in cells if where == machine and answers[where, python]]
        for machine in MACHINES
    }
    different = {tuple(found) for found in answers.values() if found}
    if len(different) != 1:
        raise SystemExit(f"the wheels of torch {version} ask for {len(different)} sets of packages; a row holds one")
    [(triton, *requires)] = different
    [toolkit] = [
        Version(pinned.version)
        for line in requires
        if line.startswith("cuda-toolkit")
        for pinned in Requirement(line).specifier
    ]
    cuda = f"{toolkit.major}.{toolkit.minor}"
    return CudaWheel(version, cuda, least_driver(cuda), triton, pythons, requires)


def main() -> None:
    least = Version(least_version("torch"))
    pinned = pins(supported_pythons()[0], MACHINES[0])["torch"]
    versions = sorted({f"{least.major}.{least.minor}.{least.micro}", str(pinned)}, key=Version)
    write_table([row(version) for version in versions])


if __name__ == "__main__":
    main()
