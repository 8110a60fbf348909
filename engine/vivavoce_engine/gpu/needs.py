"""Needs of the Triton kernels on a machine: a check for each, with the command that mends it.

Triton compiles two small C modules at its first launch, so it needs a C compiler and Python's headers beside a card and
its driver. Nothing here imports Triton, and nothing touches a card but `capability`.
"""

import importlib.metadata
import importlib.util
import os
import re
import shutil
import sys
import sysconfig
from pathlib import Path

import torch

from vivavoce_engine.findings import Finding
from vivavoce_engine.gpu.presence import card_present, driver_version

LEAST_CAPABILITY = (8, 0)
"""Ampere. Triton has no tensor-core products for older cards since its version 3.3."""
LEAST_DRIVER = {12: "525.60", 13: "580.65"}
"""CUDA's major version → the oldest Linux driver that runs it (release notes of the CUDA toolkit, minor version
compatibility)."""


def check_torch() -> Finding:
    """PyTorch's build: for CUDA, for ROCm, or for the CPU alone."""
    version = torch.__version__
    if torch.version.hip is not None:
        return Finding(
            "torch", "error", f"PyTorch {version} is built for ROCm, and the Triton kernels are for NVIDIA cards."
        )
    if torch.version.cuda is None:
        if sys.platform == "darwin":
            return Finding(
                "torch", "error", f"PyTorch {version} has no CUDA, as on every Mac; a Mac speaks on its CPU."
            )
        release = version.partition("+")[0]
        return Finding(
            "torch",
            "error",
            f"PyTorch {version} has no CUDA.",
            f"{sys.executable} -m pip install --force-reinstall --index-url https://pypi.org/simple torch=={release}",
        )
    return Finding("torch", "ok", f"PyTorch {version} is built for CUDA {torch.version.cuda}.")


def check_driver() -> Finding:
    """The NVIDIA driver: present, and new enough for PyTorch's CUDA."""
    if not card_present():
        if torch.cuda.is_available():
            return Finding("driver", "ok", "The driver works, but this system does not show its version.")
        return Finding("driver", "error", "No NVIDIA driver is loaded.")
    version, least = driver_version(), LEAST_DRIVER.get(int((torch.version.cuda or "0").partition(".")[0]))
    if version is None:
        return Finding("driver", "ok", "The NVIDIA driver of the Windows host is used.")
    if least and parts(version) < parts(least):
        return Finding(
            "driver",
            "error",
            f"The NVIDIA driver {version} is too old for PyTorch's CUDA {torch.version.cuda}, which needs {least}.",
            "sudo apt install nvidia-driver-580  # or the newest package of your distribution",
        )
    return Finding("driver", "ok", f"The NVIDIA driver is {version}" + (f" ({least} is needed)." if least else "."))


def check_capability(device: torch.device) -> Finding:
    """The card's compute capability, for which Triton must have tensor-core products."""
    major, minor = torch.cuda.get_device_capability(device)
    name = f"{torch.cuda.get_device_name(device)} (sm_{major}{minor})"
    if (major, minor) < LEAST_CAPABILITY:
        return Finding("capability", "error", f"{name} is older than sm_80, for which the Triton kernels are made.")
    return Finding("capability", "ok", f"{name} runs the Triton kernels.")


def check_triton() -> Finding:
    """The package triton, in the version that PyTorch asks for."""
    if sys.platform != "linux":
        return Finding("triton", "error", "Triton runs on Linux only (on Windows: inside WSL2).")
    wanted = wanted_triton()
    if importlib.util.find_spec("triton") is None:
        return Finding("triton", "error", "The package triton is missing.", install_triton(wanted))
    version = importlib.metadata.version("triton")
    if wanted and version != wanted:
        text = f"Triton is {version}, but PyTorch {torch.__version__} is made for {wanted}."
        return Finding("triton", "warning", text, install_triton(wanted))
    return Finding("triton", "ok", f"Triton is {version}.")


def wanted_triton() -> str | None:
    """Returns the version of Triton that the installed PyTorch pins. A PyTorch for CPUs pins none."""
    lines = importlib.metadata.requires("torch") or []
    found = (re.match(r"triton\s*\(?==\s*([\w.]+)", line) for line in lines)
    return next((match[1] for match in found if match), None)


def install_triton(wanted: str | None) -> str:
    return f"{sys.executable} -m pip install triton" + (f"=={wanted}" if wanted else "")


def check_compiler() -> Finding:
    """The C compiler that Triton calls: $CC, else gcc, else clang."""
    mend = "sudo apt install gcc libc6-dev"
    named = os.environ.get("CC")
    found = shutil.which("gcc") or shutil.which("clang") if named is None else shutil.which(named)
    if found:
        return Finding("compiler", "ok", f"The C compiler is {found}.")
    if named is not None:
        return Finding("compiler", "error", f"The variable CC names {named!r}, and there is no such C compiler.", mend)
    return Finding("compiler", "error", "No C compiler is installed, and Triton needs one for its first launch.", mend)


def check_headers() -> Finding:
    """Python's C headers, which belong to this Python's version."""
    scheme = sysconfig.get_default_scheme()
    folder = sysconfig.get_paths("posix_prefix" if scheme == "posix_local" else scheme)["include"]
    if (Path(folder) / "Python.h").is_file():
        return Finding("headers", "ok", f"Python's headers are in {folder}.")
    package = f"python{sys.version_info.major}.{sys.version_info.minor}-dev"
    text = f"Python's header {folder}/Python.h is missing, and Triton needs it for its first launch."
    return Finding("headers", "error", text, f"sudo apt install {package}")


def check_all(device: torch.device | None) -> list[Finding]:
    """All checks, in the order in which they should be mended. `device`: the CUDA card, if PyTorch can use one."""
    if torch.version.hip is not None:
        return [check_torch()]  # what is missing beside it does not matter
    card = [] if device is None else [check_capability(device)]
    return [check_driver(), check_torch(), *card, check_triton(), check_compiler(), check_headers()]


def parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
