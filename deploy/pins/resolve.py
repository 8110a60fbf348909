"""Asks pip and uv whether the extra `server` and constraints.txt go together with CUDA's torch. It installs nothing.

`make test-pins` runs it. Each package that would be installed must have its version in constraints.txt, since the index
may offer another tomorrow.
"""

import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from itertools import product

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from deploy.pins.installers import AT_ONCE, Refused, index_url, pip_report, uv_resolution
from deploy.pins.pins import MACHINES, ROOT, applying, constraints, pins, requirements, supported_pythons

EXTRA = "server"


def by_pip(python: str, machine: str) -> dict[str, Version]:
    """=== asks for CUDA's torch where an index or a folder has the CPU's as well."""
    wanted = [str(line) for line in applying(requirements(EXTRA), python, machine)]
    limits = [str(line) for line in applying(constraints(), python, machine)]
    torch = f"torch==={pins(python, machine)['torch']}"
    found = pip_report([*wanted, torch], python, machine, constraints=limits)
    return {canonicalize_name(package["name"]): Version(package["version"]) for package in found}


def by_uv(python: str, machine: str) -> dict[str, Version]:
    """The shipped voice is a folder of the clone, which uv names `./voice` or `voice`."""
    resolved = (line for line in uv_resolution(ROOT, EXTRA, python, machine) if not (ROOT / line).is_dir())
    lines = applying(map(Requirement, resolved), python, machine)
    return {canonicalize_name(line.name): Version(next(iter(line.specifier)).version) for line in lines}


def problems(installer: str, python: str, machine: str) -> list[str]:
    where = f"{installer}, Python {python} on {machine}"
    try:
        found = by_pip(python, machine) if installer == "pip" else by_uv(python, machine)
    except Refused as refusal:
        return [str(refusal)]
    pinned = pins(python, machine)
    said = [
        f"{where}: {name} {version} has no version in constraints.txt"
        for name, version in found.items()
        if name not in pinned
    ]
    said += [f"{where}: no {name} is installed" for name in ("torch", "triton", "nvidia-cublas") if name not in found]
    print(f"{where}: {len(found)} packages", flush=True)
    return said


def registry_answers() -> bool:
    try:
        urllib.request.urlopen(f"{index_url().rstrip('/')}/torch/", timeout=30).close()
    except urllib.error.HTTPError:
        return True  # pip may know a password
    except OSError:
        return False
    return True


def main() -> int:
    if not registry_answers():
        print(f"no registry at {index_url()}: the pins are not resolved")
        return 0
    questions = [("pip", python, "x86_64") for python in supported_pythons()]  # pip takes ten times as long as uv
    questions += [("uv", *question) for question in product(supported_pythons(), MACHINES)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        said = [line for lines in pool.map(lambda question: problems(*question), questions) for line in lines]
    for line in said:
        print(line, file=sys.stderr)
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
