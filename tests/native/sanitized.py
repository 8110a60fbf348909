"""Processes whose engine loads kernels with asserts and with the sanitizers of addresses and undefined behaviour.

A fault ends such a process. What the sanitizers say of it is in files, one for each process that had one.
"""

import os
import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

from vivavoce_engine.config import LEVEL_VARIABLE
from vivavoce_engine.cpu.build import NATIVE, build

from tests.native.compiling import GCC, LEVELS, ROOT, X86_64

SITE = Path(__file__).parent / "site"
REPORTS = "sanitizer"
"""Beginning of the names of files with reports; a process adds its number."""
OPTIONS = "log_path={path}:abort_on_error=1"
# Leaks are not looked for, because all memory lives as long as the program. What is freed is kept for a while, so that
# its use is seen: 16 MB, not the usual 256, which a soak would take for a leak.
ADDRESS_OPTIONS = ":detect_leaks=0:quarantine_size_mb=16"
SIGNS = ("not so: ", "Fatal Python error", "runtime error: ", "AddressSanitizer", " broke down ")
"""Words of a log where an assert, a signal or a sanitizer ended a process, and where the server lost its engine."""


@dataclass(frozen=True)
class Sanitized:
    """A folder with the library of this processor's best level, and with the reports of processes that load it."""

    folder: Path

    @staticmethod
    def built(folder: Path) -> "Sanitized":
        """Compiles the library by g++, for about a minute."""
        build(replace(X86_64, levels=(LEVELS[0],)), GCC, folder, checked=True)
        shutil.copy(NATIVE / "interface.h", folder)  # a test compares it with Python's twins
        return Sanitized(folder)

    def environment(self) -> dict[str, str]:
        """Variables of a process that is to load the library."""
        preloaded = subprocess.run(["g++", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
        options = OPTIONS.format(path=self.folder / REPORTS)
        paths = [str(SITE), str(ROOT), os.environ.get("PYTHONPATH", "")]
        return os.environ | {
            "LD_PRELOAD": preloaded.stdout.strip(),
            "ASAN_OPTIONS": options + ADDRESS_OPTIONS,
            "UBSAN_OPTIONS": options + ":print_stacktrace=1",
            "PYTHONMALLOC": "malloc",  # so that each array is an allocation that the sanitizer knows
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "CHECKED_LIBRARIES": str(self.folder),
            LEVEL_VARIABLE: LEVELS[0].name,
        }

    def is_loaded_by(self, pid: int) -> bool:
        """True if the process has the library in its memory."""
        return str(self.folder / "libvivavoce") in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")

    def faults(self, log: str = "") -> list[str]:
        """What the sanitizers have reported, and the lines of a server's log that tell of an end before its time."""
        reports = sorted(self.folder.glob(f"{REPORTS}.*"))
        found = [f"{path.name}: {path.read_text(encoding='utf-8', errors='replace')[:4000]}" for path in reports]
        return found + [f"the log: {line}" for line in log.splitlines() if any(sign in line for sign in SIGNS)]
