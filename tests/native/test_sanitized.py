"""The kernels with asserts, under the sanitizers of addresses and undefined behaviour, at this processor's levels."""

import subprocess
import sys
from pathlib import Path

import pytest
from vivavoce_engine.cpu.build import Level

from tests.native.compiling import FORWARD, GCC, LEVELS, ROOT, SELFTEST, Said, compiled, run
from tests.native.sanitized import Sanitized
from tests.support.programs import needs

pytestmark = [needs("g++"), pytest.mark.skipif(not LEVELS, reason="the processor is not of the kind x86-64")]
THROUGH_PYTHON = ["tests/engine/test_native_code2wav.py", "tests/engine/test_native_runner.py"]
PYTHON_TIMEOUT_S = 1800
OVERRUN = """
from vivavoce_engine.cpu import library as c
from vivavoce_engine.cpu.packing import address, aligned

scores, sampling = aligned((64,)), c.Sampling(1, 1, 1, 0)  # with less than 64 bytes of room behind the scores
draw = c.load_library().functions.vivavoce_draw
print(draw(address(scores), 64, address(sampling), 0.5), flush=True)
draw(address(scores), 64 + 32, address(sampling), 0.5)
print("lived")
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Sanitized:
    return Sanitized.built(tmp_path_factory.mktemp("checked"))


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
def test_single_kernels_are_right(level: Level, tmp_path: Path) -> None:
    assert run(compiled(GCC, level, SELFTEST, tmp_path)).startswith(f"{level.name}: all is")


def test_every_level_says_the_same(tmp_path: Path) -> None:
    first, *others = [Said.parsed(run(compiled(GCC, level, FORWARD, tmp_path))) for level in LEVELS]
    for other in others:
        other.assert_is_that_of(first)


def test_python_hands_over_what_the_kernels_read_and_write(library: Sanitized) -> None:
    """The tests of the runner and of Code2Wav, on a library that ends the process at a first fault."""
    there = [path for path in THROUGH_PYTHON if (ROOT / path).exists()]
    command = [sys.executable, "-m", "pytest", "-p", "tests.native.checked", "-p", "no:cacheprovider", "-x", *there]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=library.environment(),
        capture_output=True,
        text=True,
        timeout=PYTHON_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "passed" in done.stdout
    assert library.faults(done.stderr) == []


def test_an_overrun_ends_the_process_and_leaves_a_report(library: Sanitized, tmp_path: Path) -> None:
    own = Sanitized(tmp_path)
    for path in library.folder.glob("libvivavoce-*"):
        (tmp_path / path.name).symlink_to(path)
    done = subprocess.run(
        [sys.executable, "-c", OVERRUN], env=own.environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert done.stdout.strip().isdigit()
    (fault,) = own.faults(done.stderr)
    assert "heap-buffer-overflow" in fault
    assert "vivavoce_draw" in fault
