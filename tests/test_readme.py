"""The commands and code of the READMEs work, with the shipped voice."""

import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import vivavoce_engine
from vivavoce_engine import EngineConfig, load_engine
from vivavoce_voice import CHECKPOINT

from tests.support.live_server import LiveServer, live_server
from tests.support.programs import needs

ROOT = Path(__file__).parents[1]
README_ADDRESS = "http://127.0.0.1:8000"
MAX_README_LINES = 130
MAX_PICTURE_BYTES = 200_000


def files(suffix: str) -> list[Path]:
    """Files of the repository with that suffix, without those of installed packages."""
    installed = re.compile(r"node_modules|\..*")
    found = sorted(ROOT.rglob(f"*{suffix}"))
    return [path for path in found if not any(installed.fullmatch(part) for part in path.relative_to(ROOT).parts)]


DOCUMENTS = files(".md")
PYTHON_FILES = [f"/{path.relative_to(ROOT)}" for path in files(".py")]


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


@needs("curl")
@pytest.mark.parametrize("line", curl_lines())
def test_curl_lines_run(server: LiveServer, line: str, tmp_path: Path) -> None:
    arguments = shlex.split(line.replace(README_ADDRESS, server.url))
    subprocess.run([*arguments, "--fail"], cwd=tmp_path, check=True, timeout=120)
    outputs = list(tmp_path.iterdir())
    assert outputs
    assert all(path.stat().st_size > 1000 for path in outputs)


def test_the_docstring_of_the_engine_runs() -> None:
    (example,) = re.findall(r"\n\n((?:    .*\n|\n)+)", vivavoce_engine.__doc__ or "")
    played: list[int] = []
    program = textwrap.dedent(example).replace("path/to/checkpoint", str(CHECKPOINT))
    exec(program, {"play": lambda pcm: played.append(len(pcm))})  # noqa: S102
    assert sum(played) > 12_000, "a word is at least half a second of 24 kHz"
    assert all(length % 1920 == 0 for length in played)


def test_there_is_something_to_run() -> None:
    assert len(python_blocks()) >= 2
    assert len(curl_lines()) >= 1


def test_make_verbs_of_the_documents_exist() -> None:
    verbs = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for document in ("README.md", "CONTRIBUTING.md"):
        named = set(re.findall(r"(?:^    |`)make ([a-z-]+)", (ROOT / document).read_text(), re.MULTILINE))
        assert named, document
        assert named <= verbs, f"{document} names {named - verbs}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_that_documents_link_to_exist(document: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", document.read_text()):
        assert (document.parent / target).exists(), target


@pytest.mark.parametrize(
    "document",
    [path for path in DOCUMENTS if path.name != "LOG.md"],  # whose entries keep the names of their day
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_python_files_that_documents_name_exist(document: Path) -> None:
    named = re.findall(r"`([\w/]+\.py)[`.]", document.read_text())
    assert [name for name in named if not any(path.endswith(f"/{name}") for path in PYTHON_FILES)] == []


def test_the_readme_is_short_and_shows_pictures() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= MAX_README_LINES
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)
    assert len(pictures) == 2
    for picture in pictures:
        assert (ROOT / picture).stat().st_size <= MAX_PICTURE_BYTES, picture
