"""The wheels of all platforms: what is in them, and that the libraries for Linux run, ARM's on an emulated processor.

Those of macOS and Windows are built and looked at, not run.
"""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from vivavoce_engine.config import LEVEL_VARIABLE
from vivavoce_engine.cpu.build import PLATFORMS, Platform, digest_path, is_whole, library_name

from tests.native.compiling import (
    AARCH64,
    EMULATED,
    FORWARD,
    LEVELS,
    NATIVE_PYTHON,
    ROOT,
    SELFTEST,
    TIMEOUT_S,
    X86_64,
    ZIG,
    Said,
    compiled,
    run,
)
from tests.support.programs import needs

pytestmark = needs(".venv-native")
MOST_BYTES = 1_000_000
"""Most bytes of a library."""
FOLDER = "vivavoce_engine/cpu/native"
SYSTEM_LIBRARIES = {
    "linux": {"libc.so.6", "libm.so.6", "libpthread.so.0", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"},
    "macos": {"libSystem.B.dylib"},
    "windows": {"KERNEL32.dll"},
}
UNIVERSAL_RUNTIME = "api-ms-win-crt-"
"""Beginning of the names of Windows' own C library, which is part of it since version 10."""
FORMAT = {"linux": b"\x7fELF", "macos": b"\xcf\xfa\xed\xfe", "windows": b"MZ"}
OLDEST_GLIBC = (2, 17)


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Platform → folder of its unpacked wheel."""
    folders = {}
    for name, platform in PLATFORMS.items():
        out = tmp_path_factory.mktemp(name)
        command = [str(NATIVE_PYTHON), "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
        environment = os.environ | {"VIVAVOCE_KERNELS": name}
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True, env=environment, timeout=TIMEOUT_S)
        (wheel,) = out.glob("*.whl")
        assert wheel.name.endswith(f"-py3-none-{platform.wheel_tag}.whl")
        folders[name] = out / "unpacked"
        with zipfile.ZipFile(wheel) as file:
            file.extractall(folders[name])
    return folders


def names_in(library: bytes, system: str) -> set[str]:
    """The libraries that one asks for."""
    pattern = {
        "linux": rb"(?<=\0)(?:lib\w+|ld-linux[\w-]*)\.so\.\d+(?=\0)",
        "macos": rb"lib[\w.]+\.dylib(?=\0)",
        "windows": rb"[\w-]+\.dll(?=\0)",
    }[system]
    return {name.decode() for name in re.findall(pattern, library)}


@pytest.mark.parametrize("platform", PLATFORMS.values(), ids=lambda platform: platform.name)
def test_a_wheel_has_a_library_for_each_level_that_asks_for_the_system_alone(
    platform: Platform, unpacked: dict[str, Path]
) -> None:
    folder = unpacked[platform.name] / FOLDER
    wanted = {library_name(level.name, platform) for level in platform.levels}
    digests = {digest_path(folder / name).name for name in wanted}
    assert {path.name for path in folder.iterdir()} == wanted | digests | {"LICENSES.txt"}
    assert all(is_whole(folder / name) for name in wanted)
    system = platform.name.partition("-")[0]
    for name in wanted:
        library = (folder / name).read_bytes()
        assert library.startswith(FORMAT[system])
        assert len(library) < MOST_BYTES
        asked = {each for each in names_in(library, system) if not each.startswith(UNIVERSAL_RUNTIME)}
        assert asked - {name} <= SYSTEM_LIBRARIES[system]
        versions = {
            tuple(map(int, found.split(b"."))) for found in re.findall(rb"GLIBC_(\d+\.\d+)(?:\.\d+)*\0", library)
        }
        assert all(version <= OLDEST_GLIBC for version in versions)


@pytest.mark.parametrize("level", [level.name for level in LEVELS])
def test_an_unpacked_wheel_loads(level: str, unpacked: dict[str, Path]) -> None:
    folder = unpacked[X86_64.name]
    code = "from vivavoce_engine.cpu.library import load_library as f; print(f().path, f().functions.vivavoce_isa())"
    environment = os.environ | {"PYTHONPATH": str(folder), LEVEL_VARIABLE: level}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [str(folder / FOLDER / f"libvivavoce-{level}.so"), f"b'{level}'"]


@needs("qemu-aarch64-static", "/usr/aarch64-linux-gnu/lib")
@pytest.mark.skipif(not LEVELS, reason="the processor is not of the kind x86-64")
def test_an_arm_wheel_says_what_this_processors_says(unpacked: dict[str, Path], tmp_path: Path) -> None:
    said: dict[str, Said] = {}
    for platform, level, runner in ((X86_64, LEVELS[0], ()), (AARCH64, AARCH64.levels[0], EMULATED)):
        library = unpacked[platform.name] / FOLDER / library_name(level.name, platform)
        program = compiled(ZIG, level, FORWARD, tmp_path, library)
        variable = f"LD_LIBRARY_PATH={library.parent}"
        setting = (*runner, "-E", variable) if runner else ("env", variable)
        said[platform.name] = Said.parsed(run(*setting, program))
    said[AARCH64.name].assert_is_that_of(said[X86_64.name])


@needs("qemu-aarch64-static", "/usr/aarch64-linux-gnu/lib")
def test_single_kernels_are_right_on_arm(tmp_path: Path) -> None:
    assert run(*EMULATED, compiled(ZIG, AARCH64.levels[0], SELFTEST, tmp_path)).startswith("neon: all is")
