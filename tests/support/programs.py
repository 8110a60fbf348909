"""Programs that tests run and `make test` does not install.

A test marked with `needs` is skipped where one of them is missing, and the reason names the command that brings it.
With REQUIRE_PROGRAMS=1 in the environment such a test fails instead. tests/conftest.py calls `skip_without_programs`
before every test.
"""

import os
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
REQUIRE = "REQUIRE_PROGRAMS"
MARK = "needs"
BROUGHT_BY = {
    "bash": "apt-get install bash",
    "caddy": "apt-get install caddy",
    "chromium": "apt-get install chromium",
    "curl": "apt-get install curl",
    "debootstrap": "apt-get install debootstrap",
    "g++": "apt-get install g++",
    "haproxy": "apt-get install haproxy",
    "nginx": "apt-get install nginx",
    "node": "apt-get install nodejs npm",
    "npm": "apt-get install nodejs npm",
    "openssl": "apt-get install openssl",
    "podman": "apt-get install podman",
    "prometheus": "apt-get install prometheus",
    "promtool": "apt-get install prometheus",
    "ps": "apt-get install procps",
    "qemu-aarch64-static": "apt-get install qemu-user-static",
    "runc": "apt-get install runc",
    "/usr/aarch64-linux-gnu/lib": "apt-get install libc6-arm64-cross",
    # Folders of this project, which `make test` makes: those of npm only where there is npm.
    ".venv-deploy": "make .venv-deploy/.done",
    ".venv-native": "make .venv-native/.done",
    "tests/clients/real/openai_npm/node_modules": "npm ci --prefix tests/clients/real/openai_npm",
    "tests/web/node_modules": "npm ci --prefix tests/web",
}
"""Name of a program, or path of a folder → the command that brings it."""
OTHER_NAMES = {"chromium": ("chromium-browser",)}


def needs(*names: str) -> pytest.MarkDecorator:
    """Marks a test, a module or a parameter that uses these programs or folders; AssertionError for an unknown name."""
    assert names
    assert set(names) <= BROUGHT_BY.keys(), f"which command brings {set(names) - BROUGHT_BY.keys()}?"
    return pytest.mark.needs(*names)


def path_of(name: str) -> str:
    """Absolute path of a program that the test is marked with."""
    found = _find(name)
    assert found is not None, f"{name} is not on PATH: is the test marked with needs({name!r})?"
    return found


def missing(names: list[str]) -> str:
    """The missing ones of these, each with the command that brings it; empty if nothing is missing."""
    absent = [name for name in names if _find(name) is None]
    return "; ".join(f"needs {name}: {BROUGHT_BY[name]}" for name in absent)


def skip_without_programs(item: pytest.Item) -> None:
    """Skips a test of which a program is missing; fails it where programs are required."""
    reason = missing(sorted({name for mark in item.iter_markers(MARK) for name in mark.args}))
    if not reason:
        return
    if os.environ.get(REQUIRE) == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def _find(name: str) -> str | None:
    if name.startswith(".") or "/" in name:
        return str(ROOT / name) if (ROOT / name).exists() else None
    found = (shutil.which(each, path=_search_path()) for each in (name, *OTHER_NAMES.get(name, ())))
    return next(filter(None, found), None)


def _search_path() -> str:
    """PATH, with the sbin beside each bin: Debian puts servers there, where a user without privileges does not look."""
    folders = [Path(folder) for folder in os.environ.get("PATH", os.defpath).split(os.pathsep)]
    beside = [folder.with_name("sbin") for folder in folders if folder.name == "bin"]
    return os.pathsep.join(map(str, [*folders, *beside]))
