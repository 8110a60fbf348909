"""Images that the tests share: each is built once."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.image.podman import Podman, temporary_podman
from tests.support.programs import path_of

MAKE_BASE = Path(__file__).with_name("make_base.sh")
BASE = "localhost/python-base"
REACHING = ("index-url", "trusted-host", "proxy", "cert", "timeout", "default-timeout", "retries")
"""Settings of pip that say how it reaches its index."""


@pytest.fixture(scope="session")
def podman() -> Iterator[Podman]:
    with temporary_podman() as running:
        yield running


@pytest.fixture(scope="session")
def base(podman: Podman) -> str:
    """The image that stands for python:3.11-slim-bookworm: $PYTHON_IMAGE, or one made by debootstrap."""
    named = os.environ.get("PYTHON_IMAGE")
    if named:
        podman.run("pull", named)
        return named
    podman.run("import", str(base_archive()), BASE)
    return BASE


@pytest.fixture(scope="session")
def index_mounts(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Options of `podman build` and `podman run`, after which pip reaches its index as it does on this machine."""
    pip = pip_settings()
    configuration = tmp_path_factory.mktemp("pip") / "pip.conf"
    configuration.write_text("".join(["[global]\n", *(f"{name} = {pip[name]}\n" for name in REACHING if name in pip)]))
    options = ["--volume", f"{configuration}:/etc/pip.conf:ro"]
    return [*options, "--volume", f"{pip['cert']}:{pip['cert']}:ro"] if "cert" in pip else options


@pytest.fixture(scope="session")
def build_options(base: str, index_mounts: list[str]) -> list[str]:
    """Options of `podman build`. torch comes from a folder of wheels that pip looks into here, if there is one."""
    options = ["--build-arg", f"PYTHON_IMAGE={base}", *index_mounts]
    wheels = next(filter(has_cpu_torch, pip_settings().get("find-links", "").split()), None)
    if wheels:
        options += ["--build-arg", f"TORCH_CPU_WHEELS={wheels}", "--volume", f"{wheels}:{wheels}:ro"]
    return options


@pytest.fixture(scope="session")
def cpu_image(podman: Podman, build_options: list[str]) -> str:
    return podman.build("cpu", *build_options)


def base_archive() -> Path:
    """The archive that make_base.sh writes, kept for the next time."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vivavoce"
    recipe = hashlib.sha256(MAKE_BASE.read_bytes()).hexdigest()[:12]
    archive = cache / f"python-base-{recipe}.tar"
    if not archive.exists():
        path_of("debootstrap")
        cache.mkdir(parents=True, exist_ok=True)
        done = subprocess.run([MAKE_BASE, archive], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return archive


def pip_settings() -> dict[str, str]:
    """Name → value of pip's settings on this machine, from files and from the environment, which wins."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    settings: dict[str, str] = {}
    for line in sorted(listed, key=lambda line: line.startswith(":env:")):
        name, _, value = line.partition("=")
        settings[name.rpartition(".")[2]] = value.strip("'")
    return settings


def has_cpu_torch(folder: str) -> bool:
    return any(Path(folder).glob("torch-*+cpu-cp311-*"))
