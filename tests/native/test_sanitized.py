"""The kernels with asserts, under the sanitizers of addresses and undefined behaviour, at this processor's levels."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from vivavoce_engine.config import LEVEL_VARIABLE
from vivavoce_engine.cpu.build import NATIVE, Level, build

from tests.native.compiling import FORWARD, GCC, LEVELS, ROOT, SANITIZERS, SELFTEST, X86_64, Said, compiled, run
from tests.support.programs import needs

pytestmark = [needs("g++"), pytest.mark.skipif(not LEVELS, reason="the processor is not of the kind x86-64")]
THROUGH_PYTHON = ["tests/engine/test_native_code2wav.py", "tests/engine/test_native_runner.py"]
PYTHON_TIMEOUT_S = 1800


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
def test_single_kernels_are_right(level: Level, tmp_path: Path) -> None:
    assert run(compiled(GCC, level, SELFTEST, tmp_path)).startswith(f"{level.name}: all is")


def test_every_level_says_the_same(tmp_path: Path) -> None:
    first, *others = [Said.parsed(run(compiled(GCC, level, FORWARD, tmp_path))) for level in LEVELS]
    for other in others:
        other.assert_is_that_of(first)


def test_python_hands_over_what_the_kernels_read_and_write(tmp_path: Path) -> None:
    """The tests of the runner and of Code2Wav, on a library that ends the process at a first fault."""
    build(replace(X86_64, levels=(LEVELS[0],)), GCC, tmp_path, checked=True)
    shutil.copy(NATIVE / "interface.h", tmp_path)  # a test compares it with Python's twins
    sanitizer = subprocess.run(["g++", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    environment = os.environ | SANITIZERS | {
        "LD_PRELOAD": sanitizer.stdout.strip(),
        "VIVAVOCE_CHECKED_LIBRARIES": str(tmp_path),
        LEVEL_VARIABLE: LEVELS[0].name,
        "PYTHONMALLOC": "malloc",  # so that each array is an allocation that the sanitizer knows
    }  # fmt: skip
    there = [path for path in THROUGH_PYTHON if (ROOT / path).exists()]
    command = [sys.executable, "-m", "pytest", "-p", "tests.native.checked", "-p", "no:cacheprovider", "-x", *there]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PYTHON_TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "passed" in done.stdout
