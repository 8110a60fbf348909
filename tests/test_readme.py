"""The commands and code of the READMEs work, with the shipped voice."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from vivavoce_engine import EngineConfig
from vivavoce_engine.load import load_engine
from vivavoce_voice import CHECKPOINT

from tests.support.live_server import LiveServer, live_server

ROOT = Path(__file__).parents[1]
README_ADDRESS = "http://127.0.0.1:8000"


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with live_server(load_engine(str(CHECKPOINT), EngineConfig(device="cpu"))) as running:
        yield running


def python_blocks() -> list[tuple[str, str]]:
    found = []
    for readme in ("README.md", "engine/README.md", "clients/README.md"):
        blocks = re.findall(r"```python\n(.*?)```", (ROOT / readme).read_text(), re.DOTALL)
        found += [(f"{readme}-{number}", block) for number, block in enumerate(blocks)]
    return found


def curl_lines() -> list[str]:
    text = (ROOT / "README.md").read_text().replace("\\\n", " ")
    return [line.strip() for line in text.splitlines() if line.startswith("    curl ")]


@pytest.mark.parametrize(("name", "code"), python_blocks(), ids=lambda value: value if len(value) < 40 else "code")
def test_python_blocks_run(server: LiveServer, name: str, code: str, tmp_path: Path) -> None:
    program = code.replace(README_ADDRESS, server.url)
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"{name}: {done.stderr}"


@pytest.mark.parametrize("line", curl_lines())
def test_curl_lines_run(server: LiveServer, line: str, tmp_path: Path) -> None:
    arguments = shlex.split(line.replace(README_ADDRESS, server.url))
    subprocess.run([*arguments, "--fail"], cwd=tmp_path, check=True, timeout=120)
    outputs = list(tmp_path.iterdir())
    assert outputs
    assert all(path.stat().st_size > 1000 for path in outputs)


def test_there_is_something_to_run() -> None:
    assert len(python_blocks()) >= 2
    assert len(curl_lines()) >= 1


def test_make_verbs_of_the_documents_exist() -> None:
    verbs = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for document in ("README.md", "CONTRIBUTING.md"):
        named = set(re.findall(r"(?:^    |`)make ([a-z-]+)", (ROOT / document).read_text(), re.MULTILINE))
        assert named, document
        assert named <= verbs, f"{document} names {named - verbs}"


def test_files_that_documents_link_to_exist() -> None:
    for document in ROOT.glob("*.md"):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", document.read_text()):
            assert (ROOT / target).exists(), f"{document.name} links to {target}"
