"""The build of the CPU's kernels: compilers that are found or not, levels that fail, files that appear whole."""

import os
import platform
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from hatchling.builders.wheel import WheelBuilder
from vivavoce_engine.cpu import build, library

ROOT = Path(__file__).parents[2]
LINUX = build.PLATFORMS["linux-x86_64"]
STAND_IN = """#!/bin/sh
case "$*" in *REFUSED*) echo "error: bad value 'x86-64-v4' for '-march='" >&2; exit 1;; esac
while [ "$1" != -o ]; do shift; done
echo library > "$2"
"""
"""A compiler that knows all processors but one."""
AVX512 = "x86-64-v4"


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(build, "zig", lambda: None)


@pytest.fixture
def stand_in(no_compiler: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> build.Compiler:
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    return stand_in_without("-mips", tmp_path)


def stand_in_without(processor: str, tmp_path: Path) -> build.Compiler:
    path = tmp_path / "bin/c++"
    path.write_text(STAND_IN.replace("REFUSED", processor))
    path.chmod(0o755)
    return build.Compiler(("c++",))


def hook_of(wanted: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The packages that pip would install before it builds."""
    monkeypatch.setenv("VIVAVOCE_KERNELS", wanted)
    return [line for line in WheelBuilder(str(ROOT)).config.dependencies if "zig" in line]


def test_a_level_that_the_compiler_does_not_know_is_left_out(
    stand_in: build.Compiler, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = build.build(LINUX, stand_in_without(AVX512, tmp_path), tmp_path / "out")
    assert [path.name for path in made] == ["libvivavoce-avx2.so", "libvivavoce-portable.so"]
    there = {*made, *(build.digest_path(path) for path in made)}
    assert {*(tmp_path / "out").iterdir()} == there
    assert all(build.is_whole(path) for path in made)
    assert "left out: libvivavoce-avx512.so: error: bad value 'x86-64-v4'" in capsys.readouterr().err


def test_a_compiler_that_is_too_old_for_the_best_level_is_passed_over(stand_in: build.Compiler, tmp_path: Path) -> None:
    here = build.this_platform()
    assert here is not None
    assert build.compiles(stand_in)
    assert build.compiles(stand_in_without(AVX512, tmp_path)) == (f"-march={AVX512}" not in here.levels[0].flags)


def test_libraries_are_current_until_a_source_is_another(
    stand_in: build.Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "NATIVE", tmp_path)
    source, header = tmp_path / "speech.cpp", tmp_path / "kernels.h"
    source.write_text("first")
    header.write_text("first")
    assert not build.is_current(LINUX, tmp_path)
    made = build.build(LINUX, stand_in, tmp_path)
    assert build.is_current(LINUX, tmp_path)
    os.utime(source, (made[0].stat().st_mtime + 60,) * 2)
    assert build.is_current(LINUX, tmp_path)
    for changed in (source, header):
        changed.write_text("second")
        assert not build.is_current(LINUX, tmp_path)
        changed.write_text("first")
        assert build.is_current(LINUX, tmp_path)
    (tmp_path / "another.h").touch()
    assert not build.is_current(LINUX, tmp_path)


@pytest.mark.parametrize("damage", [build.digest_path, Path])
def test_a_library_without_its_digest_is_not_current(
    damage: Callable[[Path], Path], stand_in: build.Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "NATIVE", tmp_path)
    made = build.build(LINUX, stand_in, tmp_path)
    assert build.is_current(LINUX, tmp_path)
    damage(made[-1]).write_bytes(b"")
    assert not build.is_current(LINUX, tmp_path)
    build.digest_path(made[-1]).unlink()
    assert not build.is_current(LINUX, tmp_path)


def test_a_folder_that_cannot_be_written_is_told(
    stand_in: build.Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(build.CannotBuild, match=r"cannot be written to .*file/out: .*Not a directory"):
        build.build(LINUX, stand_in, tmp_path / "file/out")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryDirectory", refuse)
    with pytest.raises(build.CannotBuild, match=r"c\+\+ cannot compile .*avx512\.so: .*Permission denied"):
        build.build(LINUX, stand_in, tmp_path / "out")
    assert build.machines_compiler() is None


def test_a_compiler_that_does_not_end_is_told(
    stand_in: build.Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hang(line: list[str], timeout: float, **_: object) -> None:
        raise subprocess.TimeoutExpired(line, timeout)

    monkeypatch.setattr(subprocess, "run", hang)
    with pytest.raises(build.CannotBuild, match=r"avx512\.so: the compiler took more than 900 s"):
        build.build(LINUX, stand_in, tmp_path / "out")
    assert build.machines_compiler() is None


@pytest.mark.parametrize("empty", ["", "  "])
def test_an_empty_name_of_a_compiler_is_skipped(
    empty: str, stand_in: build.Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", empty)
    assert build.machines_compiler() == stand_in


def test_without_a_compiler_a_sentence_says_what_brings_one(
    no_compiler: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert build.main([]) == 1
    assert capsys.readouterr().err == (
        f"no C++ compiler was found for the CPU's kernels; one comes with: pip install {build.ZIGLANG}\n"
    )


def test_a_compiler_that_refuses_everything_is_quoted(no_compiler: None, tmp_path: Path) -> None:
    broken = tmp_path / "bin/c++"
    broken.write_text("#!/bin/sh\necho 'fatal error: math.h not found' >&2; exit 1\n")
    broken.chmod(0o755)
    assert build.machines_compiler() is None
    with pytest.raises(
        build.CannotBuild, match=r"cannot compile .*libvivavoce-avx512\.so: fatal error: math\.h not found"
    ):
        build.build(LINUX, build.Compiler((str(broken),)), tmp_path / "out")


def test_a_processor_without_a_form_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(build.CannotBuild, match="no form for Linux on riscv64"):
        build.build_here()


@pytest.mark.parametrize(
    ("system", "processor", "name"),
    [
        ("Linux", "x86_64", "linux-x86_64"),
        ("Linux", "aarch64", "linux-aarch64"),
        ("Darwin", "arm64", "macos-arm64"),
        ("Windows", "AMD64", "windows-x86_64"),
    ],
)
def test_each_platform_knows_itself(system: str, processor: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "machine", SimpleNamespace(system=lambda: system, machine=lambda: processor))
    assert build.this_platform() == build.PLATFORMS[name]


def test_the_libraries_are_named_as_the_engine_looks_for_them() -> None:
    here = build.this_platform()
    assert here is not None
    assert {build.library_name(level, here) for level in library.levels_here()} <= {
        build.library_name(level.name, here) for level in here.levels
    }
    for level in here.levels:
        assert library.file_of(level.name) == build.NATIVE / build.library_name(level.name, here)


def test_pip_fetches_a_compiler_where_it_is_needed(no_compiler: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert hook_of("", monkeypatch) == [build.ZIGLANG]
    assert hook_of("macos-arm64", monkeypatch) == [build.ZIGLANG]
    assert hook_of("none", monkeypatch) == []


def test_pip_uses_the_machines_compiler(stand_in: build.Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    assert hook_of("", monkeypatch) == []


def test_a_wheel_for_this_machine_has_its_tag(
    stand_in: build.Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIVAVOCE_KERNELS", "")
    (made,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    assert sys.platform != "linux" or Path(made).name.endswith(f"-py3-none-linux_{platform.machine()}.whl")
    with zipfile.ZipFile(made) as wheel:
        files = {name for name in wheel.namelist() if "/libvivavoce-" in name}
    libraries = {name for name in files if not name.endswith(".sha256")}
    assert files - libraries == {f"{name}.sha256" for name in libraries} != set()


def test_a_machine_without_a_compiler_gets_a_wheel_without_kernels(
    no_compiler: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIVAVOCE_KERNELS", "none")
    (made,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    assert Path(made).name.endswith("-py3-none-any.whl")
