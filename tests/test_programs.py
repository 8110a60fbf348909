"""A test without its program is skipped, naming the command that brings it, or fails where programs are required."""

import re
from pathlib import Path

import pytest

from tests.support import programs
from tests.support.programs import BROUGHT_BY, REQUIRE, ROOT, missing, needs, path_of

pytest_plugins = ["pytester"]
TESTS = """
import pytest
from tests.support.programs import needs

pytestmark = needs("curl")

@pytest.fixture(params=[pytest.param("nginx", marks=needs("nginx")), "none"])
def balancer(request):
    assert request.param == "none", "a fixture must not start what is not there"

@needs("haproxy", ".venv-deploy")
def test_two():
    raise AssertionError("it must not run")

def test_parameter(balancer):
    pass
"""
ABSENT = [
    "needs .venv-deploy: make .venv-deploy/.done; needs haproxy: apt-get install haproxy",
    "needs nginx: apt-get install nginx",
]


def add_program(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)


@pytest.fixture
def machine(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """One with curl alone, and a small project whose tests need more."""
    add_program(pytester.path / "usr/bin/curl")
    monkeypatch.setenv("PATH", str(pytester.path / "usr/bin"))
    monkeypatch.setattr(programs, "ROOT", pytester.path)
    monkeypatch.delenv(REQUIRE, raising=False)
    pytester.makeconftest((ROOT / "tests/conftest.py").read_text())
    pytester.makeini(
        "[pytest]\nmarkers = needs(*names)\naddopts = --strict-markers -p no:asyncio -p no:cacheprovider\n"
    )
    pytester.makepyfile(TESTS)
    return pytester


def test_without_a_program_a_test_is_skipped_by_its_name(machine: pytest.Pytester) -> None:
    result = machine.runpytest_inprocess("-rs")
    result.assert_outcomes(skipped=2, passed=1)
    result.stdout.fnmatch_lines_random([f"SKIPPED*{reason}" for reason in ABSENT])


def test_where_programs_are_required_it_fails(machine: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(REQUIRE, "1")
    result = machine.runpytest_inprocess()
    result.assert_outcomes(errors=2, passed=1)
    result.stdout.fnmatch_lines_random([f"*{reason}" for reason in ABSENT])


def test_programs_are_found_on_path_and_in_the_sbin_beside_it(machine: pytest.Pytester) -> None:
    assert missing(["curl"]) == ""
    assert path_of("curl") == str(machine.path / "usr/bin/curl")
    assert missing(["haproxy", "curl", "promtool"]) == (
        "needs haproxy: apt-get install haproxy; needs promtool: apt-get install prometheus"
    )
    add_program(machine.path / "usr/sbin/haproxy")
    assert path_of("haproxy") == str(machine.path / "usr/sbin/haproxy")
    add_program(machine.path / "usr/bin/chromium-browser")
    assert path_of("chromium") == str(machine.path / "usr/bin/chromium-browser")
    with pytest.raises(AssertionError, match="marked with needs"):
        path_of("nginx")


def test_a_program_without_a_command_cannot_be_needed() -> None:
    with pytest.raises(AssertionError, match="telnet"):
        needs("curl", "telnet")


def test_commands_that_make_folders_are_targets_of_the_makefile() -> None:
    commands = [command for name, command in BROUGHT_BY.items() if name.startswith(".")]
    targets = re.findall(r"^\$\(VENV\)(-[a-z]+/\.done):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert commands
    assert {command.removeprefix("make .venv") for command in commands} <= set(targets)


def test_nothing_else_in_the_tests_looks_for_programs() -> None:
    looking = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("*.py")
        if "shutil.which" in path.read_text(encoding="utf-8") and path != Path(__file__)
    }
    assert looking == {"tests/support/programs.py"}
