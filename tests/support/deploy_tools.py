"""The environment of requirements.txt, made by `make test`."""

import subprocess
from pathlib import Path

from tests.support.programs import needs

BIN = Path(__file__).parents[2] / ".venv-deploy/bin"
RENDER_CHART = Path(__file__).with_name("render_chart.py")

needs_tools = needs(".venv-deploy")


def tool(name: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([BIN / name, *arguments], capture_output=True, text=True, check=False)
