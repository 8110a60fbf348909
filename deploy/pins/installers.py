"""Owns the calls of pip and uv that ask an index and install nothing. It does not know which answer is right.

Both are asked for Linux machines and Python versions that need not be those of this machine. pip reads a wheel's
metadata alone, by PEP 658 or by HTTP range, never the gigabytes of the wheel.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

GLIBC_MINORS = range(28, 4, -1)  # torch's wheels are made for glibc 2.28
OLD_TAGS = ("manylinux2014", "manylinux2010", "manylinux1")
AT_ONCE = 4  # questions: most of the time is the index's
DEFAULT_INDEX = "https://pypi.org/simple"


class Refused(Exception):
    """An installer found nothing to install; its message holds the installer's last lines."""


def index_url() -> str:
    """The index that pip is configured to use."""
    done = subprocess.run([*pip(), "config", "get", "global.index-url"], capture_output=True, text=True, check=False)
    return os.environ.get("PIP_INDEX_URL") or done.stdout.strip() or DEFAULT_INDEX


def pip() -> list[str]:
    return [sys.executable, "-m", "pip", "--disable-pip-version-check"]


def run(command: list[str], asked: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if not line.startswith("WARNING")]
        raise Refused("\n  ".join([f"{asked}:", *lines[-12:]]))


def pip_report(
    requirements: list[str], python: str, machine: str, *, constraints: list[str] | None = None, deps: bool = True
) -> list[dict[str, Any]]:
    """The metadata of what pip would install from wheels.

    pip judges markers by the Python that runs it, so the requirements and the constraints must hold none.
    """
    tags = [f"manylinux_2_{minor}_{machine}" for minor in GLIBC_MINORS] + [f"{tag}_{machine}" for tag in OLD_TAGS]
    with tempfile.TemporaryDirectory() as folder:
        report, pinned = Path(folder, "report.json"), Path(folder, "constraints.txt")
        pinned.write_text("\n".join(constraints or []), encoding="utf-8")
        command = [*pip(), "install", "--dry-run", "--ignore-installed", "--use-feature=fast-deps", "--no-input"]
        command += [
            "--only-binary=:all:",
            f"--target={folder}/none",
            f"--python-version={python}",
            f"--report={report}",
        ]
        command += [f"--platform={tag}" for tag in tags]
        command += [f"--constraint={pinned}"] if deps else ["--no-deps"]
        run([*command, *requirements], f"pip, Python {python} on {machine}")
        return [item["metadata"] for item in json.loads(report.read_text(encoding="utf-8"))["install"]]


def uv_resolution(project: Path, extra: str, python: str, machine: str) -> list[str]:
    """The lines `name==version` of what uv would install of a project's extra, with the constraints.txt beside it."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder, "found.txt")
        command = [
            "uv",
            "pip",
            "compile",
            str(project / "pyproject.toml"),
            f"--extra={extra}",
            "--quiet",
            "--no-config",
        ]
        command += [
            f"--constraint={project / 'constraints.txt'}",
            f"--default-index={index_url()}",
            "--only-binary=:all:",
        ]
        command += [
            f"--python-version={python}",
            f"--python-platform={machine}-manylinux_2_28",
            f"--output-file={found}",
        ]
        command += ["--no-header", "--no-annotate", "--no-strip-markers"]
        run([str(Path(sys.executable).with_name(command[0])), *command[1:]], f"uv, Python {python} on {machine}")
        return found.read_text(encoding="utf-8").splitlines()
