"""The build of the CPU's kernels: `python engine/vivavoce_engine/cpu/build.py`, for this machine unless told otherwise.

It compiles native/ once for every level of a platform's processors. The compiler is that of the machine, or the one of
the package `ziglang`, which reaches the other platforms as well. The file imports nothing of this package, because the
build hook of the wheels (hatch_build.py) loads it before anything is installed.
"""

import argparse
import hashlib
import importlib.util
import os
import platform as machine
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

NATIVE = Path(__file__).parent / "native"
"""Folder of the sources, and of the libraries of an installation."""
UNITS = ("speech.cpp", "code2wav.cpp")
ZIGLANG = "ziglang==0.17.1"
"""The requirement that brings a compiler."""
FLAGS = (
    *("-std=c++17", "-fPIC", "-pthread", "-fno-exceptions", "-fno-rtti"),
    # A product and a sum become one FMA, the same everywhere; otherwise the order of operations is the source's.
    *("-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math"),
)
FAST = ("-O3",)
CHECKED = ("-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
CHECKS = "-DVIVAVOCE_ASSERTS"
"""The macro with which VIVAVOCE_ASSERT stops a program."""
COMPILE_TIMEOUT_S = 900.0


@dataclass(frozen=True)
class Level:
    """A set of instructions that kernels are compiled for, in the words of GCC and Clang, and of Zig."""

    name: str
    flags: tuple[str, ...]
    zig_flags: tuple[str, ...]


# Clang would split the vectors of 16 floats into halves for processors that slow down at full width. VNNI multiplies
# whole numbers in half the steps. Windows does not tell whether a processor has it.
WIDE = ("-march=x86-64-v4", "-mprefer-vector-width=512")
AVX512 = Level("avx512", (*WIDE, "-mavx512vnni"), ("-mcpu=x86_64_v4-prefer_256_bit+avx512vnni",))
AVX512_OF_WINDOWS = Level("avx512", WIDE, ("-mcpu=x86_64_v4-prefer_256_bit",))
AVX2 = Level("avx2", ("-march=x86-64-v3",), ("-mcpu=x86_64_v3",))
PORTABLE = Level("portable", ("-march=x86-64",), ("-mcpu=x86_64",))
NEON = Level("neon", (), ())


@dataclass(frozen=True)
class Platform:
    """A system and a kind of processor: what a library is called there, and for which wheels it counts."""

    name: str
    levels: tuple[Level, ...]
    suffix: str
    zig_target: str
    wheel_tag: str
    """Tag of a wheel whose libraries Zig has built: the oldest system that they run on."""


X86_64 = (AVX512, AVX2, PORTABLE)
WINDOWS = (AVX512_OF_WINDOWS, AVX2, PORTABLE)
PLATFORMS = {
    platform.name: platform
    for platform in (
        Platform("linux-x86_64", X86_64, ".so", "x86_64-linux-gnu.2.17", "manylinux2014_x86_64"),
        Platform("linux-aarch64", (NEON,), ".so", "aarch64-linux-gnu.2.17", "manylinux2014_aarch64"),
        Platform("macos-arm64", (NEON,), ".dylib", "aarch64-macos.11.0", "macosx_11_0_arm64"),
        Platform("windows-x86_64", WINDOWS, ".dll", "x86_64-windows-gnu", "win_amd64"),
    )
}


class CannotBuild(Exception):
    """No library could be made. The message is one sentence for a person."""


@dataclass(frozen=True)
class Compiler:
    """A command that compiles C++, without flags."""

    command: tuple[str, ...]
    is_zig: bool = False

    def line(self, platform: Platform, level: Level, checked: bool) -> list[str]:
        """The command for a level, without sources and output. What is `checked` ends its process at a fault."""
        words = ["-target", platform.zig_target, *level.zig_flags] if self.is_zig else level.flags
        return [*self.command, *words, *FLAGS, *((*CHECKED, CHECKS) if checked else FAST)]

    def link_line(self, platform: Platform, checked: bool) -> list[str]:
        """The command that makes a library of objects, without these and output.

        It names no level: Zig would build the start-up code of Windows for each of them, which takes minutes.
        """
        if self.is_zig:
            words = ["-target", platform.zig_target]
        else:  # g++ would link the library of C++, which nothing uses
            words = ["-Wl,--as-needed"] if platform.suffix == ".so" else []
        sanitizers = [word for word in CHECKED if word.startswith("-fsanitize=")]
        return [*self.command, *words, "-shared", "-pthread", *(sanitizers if checked else ["-s"])]


def library_name(level: str, platform: Platform) -> str:
    """Name of the library of a level."""
    return f"libvivavoce-{level}{platform.suffix}"


def digest_path(library: Path) -> Path:
    """The file beside a library that holds its digest, and in a second line that of its sources."""
    return library.with_name(f"{library.name}.sha256")


def digest_of(library: Path) -> str:
    """SHA-256 of a library's bytes, in hexadecimal. Raises OSError if it cannot be read."""
    return hashlib.sha256(library.read_bytes()).hexdigest()


def sources_digest() -> str:
    """SHA-256 of the sources and of this file, of which libraries are made, in hexadecimal.

    Empty if there are no sources here, as in an installed wheel.
    """
    if not (NATIVE / UNITS[0]).exists():
        return ""
    parts = (*sorted((*NATIVE.glob("*.cpp"), *NATIVE.glob("*.h"))), Path(__file__))
    return hashlib.sha256(b"".join(hashlib.sha256(path.read_bytes()).digest() for path in parts)).hexdigest()


def stored_digests(library: Path) -> tuple[str, str]:
    """The digests of a library and of its sources that were stored when it was built, each empty if it is missing.

    Raises FileNotFoundError if there is no file of them.
    """
    own, sources, *_ = [*digest_path(library).read_text(encoding="ascii", errors="replace").split(), "", ""]
    return own, sources


def is_whole(library: Path) -> bool:
    """True if a library has the digest that was stored when it was built: it is neither cut off nor overwritten."""
    try:
        return stored_digests(library)[0] == digest_of(library)
    except OSError:
        return False


def this_platform() -> Platform | None:
    """The platform of this machine; None if the kernels have no form for it."""
    system = {"Linux": "linux", "Darwin": "macos", "Windows": "windows"}.get(machine.system())
    processor = {"amd64": "x86_64", "arm64": "arm64" if system == "macos" else "aarch64"}
    kind = machine.machine().lower()
    return PLATFORMS.get(f"{system}-{processor.get(kind, kind)}")


def find_compiler() -> Compiler | None:
    """The compiler of this machine's kernels; None if there is none."""
    return machines_compiler() or zig()


def machines_compiler() -> Compiler | None:
    """The first of CXX, c++, g++ and clang++ that can make a library of this machine's best level; None if none can.

    None on Windows: GCC misaligns wide vectors there, and MSVC has none.
    """
    if machine.system() != "Windows":
        for name in (os.environ.get("CXX", ""), "c++", "g++", "clang++"):
            command = tuple(name.split())  # empty if CXX is
            if command and compiles(Compiler(command)):
                return Compiler(command)
    return None


def platform_named(name: str) -> Platform:
    """The platform of a name; CannotBuild lists the names if it is none of them."""
    if name not in PLATFORMS:
        raise CannotBuild(f"{name!r} is no platform of the CPU's kernels: {', '.join(PLATFORMS)}")
    return PLATFORMS[name]


def zig() -> Compiler | None:
    """The compiler of the package `ziglang`, for every platform; None if it is not installed."""
    if importlib.util.find_spec("ziglang") is None:
        return None
    # `cc`, not `c++`: that one would first build a library of C++, which nothing uses, for a minute and a half.
    return Compiler((sys.executable, "-m", "ziglang", "cc"), is_zig=True)


def compiles(compiler: Compiler) -> bool:
    """True if the command exists and can make a library of the highest level.

    A `c++` may lack headers, be a stub that asks for Xcode, or be too old to know the levels of x86-64.
    """
    try:
        return shutil.which(compiler.command[0]) is not None and _makes_a_library(compiler)
    except (OSError, subprocess.SubprocessError):
        return False


def _makes_a_library(compiler: Compiler) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "try.cpp"
        source.write_text('#include <math.h>\n#include <pthread.h>\nextern "C" double f(double x) { return exp(x); }\n')
        platform = this_platform()
        flags = platform.levels[0].flags if platform else ()
        line = [*compiler.command, *flags, "-std=c++17", "-shared", "-fPIC", str(source), "-o", f"{folder}/try", "-lm"]
        return subprocess.run(line, capture_output=True, check=False, timeout=COMPILE_TIMEOUT_S).returncode == 0


def is_current(platform: Platform, folder: Path = NATIVE) -> bool:
    """True if `folder` has a library of a level of the platform, and each is whole and made of the present sources."""
    paths = [folder / library_name(level.name, platform) for level in platform.levels]
    libraries = [path for path in paths if path.exists()]
    sources = sources_digest()
    return bool(libraries) and all(is_whole(path) and stored_digests(path)[1] == sources for path in libraries)


def build(platform: Platform, compiler: Compiler, folder: Path, checked: bool = False) -> list[Path]:
    """Compiles the library of each level of a platform into `folder`, and its digest beside it. Returns their paths.

    A level that this compiler does not know is left out, with a line on stderr. Files appear whole or not at all, so a
    server that has an older library in use keeps it. CannotBuild if no level could be compiled or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CannotBuild(f"the CPU's kernels cannot be written to {folder}: {error}") from error
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        made = list(threads.map(lambda level: _tried(platform, compiler, level, folder, checked), platform.levels))
    libraries = [path for path, _ in made if path is not None]
    faults = [fault for _, fault in made if fault]
    if not libraries:
        raise CannotBuild(f"{compiler.command[0]} cannot compile the CPU's kernels: {faults[0]}")
    for fault in faults:
        print(f"left out: {fault}", file=sys.stderr)
    return libraries


def _tried(
    platform: Platform, compiler: Compiler, level: Level, folder: Path, checked: bool
) -> tuple[Path | None, str]:
    """The library of one level; or None, and what the compiler or the operating system says."""
    try:
        return _compiled(platform, compiler, level, folder, checked)
    except subprocess.TimeoutExpired as error:
        reason = f"the compiler took more than {error.timeout:g} s"
    except (OSError, subprocess.SubprocessError) as error:
        reason = str(error)
    return None, f"{library_name(level.name, platform)}: {reason}"


def _compiled(
    platform: Platform, compiler: Compiler, level: Level, folder: Path, checked: bool
) -> tuple[Path | None, str]:
    """The library of one level; or None and what the compiler says."""
    library, sources = folder / library_name(level.name, platform), sources_digest()
    with tempfile.TemporaryDirectory(dir=folder, prefix=".build-") as scratch:
        made = Path(scratch) / library.name
        objects = {unit: f"{scratch}/{unit}.o" for unit in UNITS}
        line = compiler.line(platform, level, checked)
        lines = [[*line, "-c", str(NATIVE / unit), "-o", out] for unit, out in objects.items()]
        maths = [] if platform.suffix == ".dll" else ["-lm"]
        lines.append([*compiler.link_line(platform, checked), *objects.values(), "-o", str(made), *maths])
        for each in lines:
            done = subprocess.run(each, capture_output=True, text=True, check=False, timeout=COMPILE_TIMEOUT_S)
            if done.returncode:
                said = [text for text in done.stderr.splitlines() if "error" in text] or done.stderr.splitlines()[-1:]
                return None, f"{library.name}: {said[0].strip() if said else 'no reason given'}"
        digest_path(made).write_text(f"{digest_of(made)}\n{sources}\n", encoding="ascii")
        os.replace(made, library)
        os.replace(digest_path(made), digest_path(library))
    return library, ""


def build_here(folder: Path = NATIVE, checked: bool = False) -> list[Path]:
    """Compiles the libraries of this machine. Returns their paths; CannotBuild says what is missing."""
    platform = this_platform()
    if platform is None:
        raise CannotBuild(f"the CPU's kernels have no form for {machine.system()} on {machine.machine()}")
    if not (NATIVE / UNITS[0]).exists():
        raise CannotBuild(
            "this installation lacks the sources of the CPU's kernels: install Vivavoce from its repository"
        )
    compiler = find_compiler()
    if compiler is None:
        raise CannotBuild(f"no C++ compiler was found for the CPU's kernels; one comes with: pip install {ZIGLANG}")
    return build(platform, compiler, folder, checked)


def build_for(platform: Platform, folder: Path, checked: bool = False) -> list[Path]:
    """Compiles the libraries of a platform by Zig, the same files on every machine. Returns their paths."""
    compiler = zig()
    if compiler is None:
        raise CannotBuild(f"libraries for {platform.name} are built by Zig: pip install {ZIGLANG}")
    return build(platform, compiler, folder, checked)


def main(words: Sequence[str] | None = None) -> int:
    """Builds what the command line asks for. Returns the exit status."""
    parser = argparse.ArgumentParser(description="Compiles the CPU's kernels.")
    parser.add_argument(
        "--platform", choices=sorted(PLATFORMS), help="by ziglang; default: this machine's, by its compiler"
    )
    parser.add_argument(
        "--out", type=Path, default=NATIVE, help="folder of the libraries; default: that of the sources"
    )
    parser.add_argument("--checked", action="store_true", help="with asserts and sanitizers; some twenty times slower")
    given = parser.parse_args(words)
    try:
        if given.platform:
            libraries = build_for(PLATFORMS[given.platform], given.out, given.checked)
        else:
            libraries = build_here(given.out, given.checked)
    except CannotBuild as error:
        print(error, file=sys.stderr)
        return 1
    print(*libraries, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
