"""The wheels: a bare install is a client, small and without tracebacks, and the voice is a distribution of its own."""

import os
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, PathDistribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from vivavoce_client.arguments import package_version

ROOT = Path(__file__).parents[1]
LIMIT_BYTES = 3_000_000
"""Most bytes of the wheel that a bare install takes."""
SERVER = "pip install 'vivavoce-speech[server]'"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(ROOT, tmp_path_factory.mktemp("wheel"))


def built(project: Path, folder: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=project, check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages as `pip install vivavoce-speech` fills it."""
    folder = tmp_path_factory.mktemp("bare")
    with zipfile.ZipFile(wheel) as file:
        file.extractall(folder)
    (ours,) = folder.glob("*.dist-info")
    for needed in closure(PathDistribution(ours)):
        for top in {path.parts[0] for path in needed.files or () if path.parts[0] not in ("..", "__pycache__")}:
            link = folder / top
            if not link.exists():
                link.symlink_to(Path(str(needed.locate_file(top))))
    return folder


def closure(root: Distribution) -> Iterator[Distribution]:
    """The distributions that one needs without extras."""
    waiting, seen = [root], set()
    for each in waiting:
        for line in map(Requirement, each.requires or ()):
            if line.name not in seen and (line.marker is None or line.marker.evaluate({"extra": ""})):
                seen.add(line.name)
                waiting.append(distribution(line.name))
                yield waiting[-1]


def run(bare: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {"PYTHONPATH": str(bare), "PATH": os.environ["PATH"], "HOME": str(bare)}
    command = [sys.executable, "-S", "-m", "vivavoce_client", *words]  # -S: without the packages of this Python
    return subprocess.run(command, cwd=bare, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.long
def test_the_wheel_of_the_client_is_small_and_has_no_voice(wheel: Path) -> None:
    assert wheel.stat().st_size < LIMIT_BYTES
    names = zipfile.ZipFile(wheel).namelist()
    assert not [name for name in names if name.startswith("vivavoce_voice") or name.endswith(".safetensors")]
    assert "vivavoce_client/say.py" in names


@pytest.mark.long
@pytest.mark.parametrize(
    ("command", "needs"),
    [
        ("say Hi", SERVER),
        ("text Hi", SERVER),
        ("voices", SERVER),
        ("voices list", SERVER),
        ("serve --port 0", SERVER),
        ("serve --help", SERVER),
        ("doctor", SERVER),
        ("eval text", "pip install 'vivavoce-speech[eval]'"),
        ("completions bash", "pip install 'vivavoce-speech[completions]'"),
        ("bench acceptance", SERVER),
        ("bench card", SERVER),
        ("bench engine", SERVER),
        ("bench plan", "pip install 'vivavoce-speech[engine]'"),
        ("bench reading", SERVER),
        ("bench steps", SERVER),
    ],
)
def test_a_bare_install_says_what_a_command_needs(bare: Path, command: str, needs: str) -> None:
    done = run(bare, *command.split())
    assert needs in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.returncode in (1, 2)


@pytest.mark.long
@pytest.mark.parametrize("command", ["--help", "say --help", "voices add --help", "bench --help", "bench load --help"])
def test_a_bare_install_shows_its_help(bare: Path, command: str) -> None:
    done = run(bare, *command.split())
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.long
def test_a_bare_install_knows_its_version(bare: Path) -> None:
    assert run(bare, "--version").stdout == f"vivavoce {package_version()}\n"


@pytest.mark.long
def test_the_voice_carries_its_checkpoint_its_card_and_the_licence(tmp_path: Path) -> None:
    names = zipfile.ZipFile(built(ROOT / "voice", tmp_path)).namelist()
    assert "vivavoce_voice/checkpoint/model.safetensors" in names
    assert "vivavoce_voice/checkpoint/MODEL_CARD.md" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert {name.split("/")[0].split("-")[0] for name in names} == {"vivavoce_voice"}


@pytest.mark.long
def test_the_extra_server_asks_for_the_voice_of_this_tree() -> None:
    ours = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    voice = tomllib.loads((ROOT / "voice/pyproject.toml").read_text(encoding="utf-8"))["project"]
    for extra in ("server", "eval"):
        (line,) = [
            Requirement(line) for line in ours["project"]["optional-dependencies"][extra] if voice["name"] in line
        ]
        assert voice["version"] in line.specifier
    assert ours["tool"]["uv"]["sources"][voice["name"]] == {"path": "voice"}
