"""The environment of requirements.txt, made by `make test`. Without it, tests are skipped visibly."""

import subprocess
from pathlib import Path

import pytest

BIN = Path(__file__).parents[2] / ".venv-deploy/bin"

needs_tools = pytest.mark.skipif(not BIN.exists(), reason="no .venv-deploy: `make test` makes it")


def tool(name: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([BIN / name, *arguments], capture_output=True, text=True, check=False)
