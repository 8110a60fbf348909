"""The C++ programs of this folder, compiled for a level of a platform, and what the model of one of them says."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from vivavoce_engine.cpu.build import CHECKS, NATIVE, PLATFORMS, UNITS, Compiler, Level
from vivavoce_engine.cpu.library import levels_here

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SELFTEST, FORWARD = HERE / "selftest.cpp", HERE / "forward.cpp"
NATIVE_PYTHON = ROOT / ".venv-native/bin/python"
"""The Python that has ziglang."""
ZIG = Compiler((str(NATIVE_PYTHON), "-m", "ziglang", "cc"), is_zig=True)
GCC = Compiler(("g++",))
X86_64, AARCH64 = PLATFORMS["linux-x86_64"], PLATFORMS["linux-aarch64"]
LEVELS = [level for level in X86_64.levels if level.name in levels_here()]
"""The levels that this machine runs."""
EMULATED = ("qemu-aarch64-static", "-L", "/usr/aarch64-linux-gnu")
SANITIZERS = {"ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1", "UBSAN_OPTIONS": "print_stacktrace=1"}
"""Leaks are not looked for, because all memory lives as long as the program."""
TIMEOUT_S = 1800
CLOSE = {"score": 1e-5, "sample": 1e-5, "whole_score": 5e-4, "whole_sample": 5e-4}
"""Most by which numbers of a kind may differ between levels: they add the lanes of a vector in different orders. Where
inputs become whole numbers, such a difference may decide between two of them."""


def compiled(compiler: Compiler, level: Level, program: Path, folder: Path, library: Path | None = None) -> Path:
    """Compiles a program: against a library as it is shipped, or with the kernels inside, checked."""
    platform = AARCH64 if level in AARCH64.levels else X86_64
    out = folder / f"{program.stem}-{level.name}"
    # Zig has no library of the address sanitizer; the asserts are in its programs.
    line = compiler.line(platform, level, checked=library is None and not compiler.is_zig)
    line += ["-Wall", "-Wextra", CHECKS, "-I", str(NATIVE), str(program)]
    if not compiler.is_zig:
        line.append("-Wno-maybe-uninitialized")  # GCC 12 warns of its own header of AVX-512
    if library is not None:
        line.append(str(library))
    elif program == FORWARD:
        line += [str(NATIVE / unit) for unit in UNITS]
    line += ["-o", str(out), "-lm"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr, done.stderr
    return out


def run(*words: str | Path) -> str:
    """Runs a program to its end. Returns what it prints."""
    environment = os.environ | SANITIZERS
    done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, env=environment)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@dataclass(frozen=True)
class Said:
    """The output of forward.cpp: codes of each frame, and scores and samples by kind."""

    codes: list[str]
    numbers: dict[str, list[float]]

    @staticmethod
    def parsed(text: str) -> "Said":
        """Reads the lines of the program."""
        lines = [line.split(" ", 1) for line in text.splitlines()]
        numbers = {kind: [float(value) for word, value in lines if word == kind] for kind in CLOSE}
        return Said([value for word, value in lines if word == "codes"], numbers)

    def assert_is_that_of(self, other: "Said") -> None:
        """The same codes, and scores and samples that differ by rounding alone."""
        assert self.codes == other.codes
        for kind, most in CLOSE.items():
            found, expected = self.numbers[kind], other.numbers[kind]
            assert len(found) == len(expected) > 0, kind
            assert max(abs(a - b) for a, b in zip(found, expected, strict=True)) < most, kind
