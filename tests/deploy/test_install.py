"""`make` installs torch's CUDA build beside an NVIDIA card whose driver answers, and nowhere else."""

import os
import subprocess
from pathlib import Path

import pytest

from deploy.pins.pins import pins, read_table

ROOT = Path(__file__).parents[2]
TORCH = f"torch=={pins('3.11', 'x86_64')['torch']}"
CPU_INDEX = "--extra-index-url https://download.pytorch.org/whl/cpu"
# `python -m venv FOLDER` makes FOLDER/bin/python, a copy of it; `python -m pip` writes its arguments down.
PYTHON = """#!/bin/sh
case "$2" in
  venv) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
  pip) echo "$@" >> "$(dirname "$0")/../../asked" ;;
esac
"""


def install(folder: Path, nvidia_smi: str) -> tuple[str, list[str]]:
    """Output of make, and the arguments of each pip, where nvidia-smi is this shell script."""
    tools = folder / "tools"
    tools.mkdir()
    for name, script in (("python", PYTHON), ("nvidia-smi", f"#!/bin/sh\n{nvidia_smi}\n")):
        (tools / name).write_text(script)
        (tools / name).chmod(0o755)
    venv = folder / "venv"
    command = ["make", "--silent", f"VENV={venv}", f"PYTHON={tools / 'python'}", f"{venv}/.server"]
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "MAKEFLAGS": ""}
    done = subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True)
    return done.stdout, (folder / "asked").read_text().splitlines()


@pytest.mark.parametrize(
    "nvidia_smi",
    [
        "exit 127",  # as where there is no such program
        'echo "NVIDIA-SMI has failed because it couldn\'t communicate with the NVIDIA driver."; exit 9',
        "echo 'No devices were found'; exit 6",
        "echo 'No devices were found'",
    ],
)
def test_without_a_card_torch_is_the_cpus(tmp_path: Path, nvidia_smi: str) -> None:
    said, (torch, server) = install(tmp_path, nvidia_smi)
    assert torch.endswith(f"--retries 1 {CPU_INDEX} {TORCH}")
    assert server.endswith("-e ./voice -e .[server]")
    assert said == f"no NVIDIA card: installing {TORCH} for the CPU\n"


@pytest.mark.parametrize("drivers", ["580.65.06", "580.126.20\\n580.126.20", "1000.1"])
def test_beside_a_card_torch_is_that_of_the_index(tmp_path: Path, drivers: str) -> None:
    said, (torch, server) = install(tmp_path, f"printf '{drivers}\\n'")
    assert torch.endswith(f"-c constraints.txt {TORCH}")
    assert "index" not in torch
    assert server.endswith("-c constraints.txt -e ./voice -e .[server]")
    assert said == f"NVIDIA card found: installing {TORCH} for CUDA\n"


@pytest.mark.parametrize("driver", ["580.65.05", "575.64.03", "99.1"])
def test_a_driver_that_is_too_old_is_said(tmp_path: Path, driver: str) -> None:
    least = read_table()[TORCH.removeprefix("torch==")].least_driver
    said, _ = install(tmp_path, f"echo {driver}")
    assert said.splitlines() == [
        f"NVIDIA card found: installing {TORCH} for CUDA",
        f"the card's driver {driver} is too old for it: the CPU speaks until the driver is {least} or newer",
    ]


def test_each_install_is_constrained(tmp_path: Path) -> None:
    _, asked = install(tmp_path, "echo 580.65.06")
    assert {line[: line.index("constraints.txt")] for line in asked} == {
        "-m pip install --disable-pip-version-check -c "
    }
