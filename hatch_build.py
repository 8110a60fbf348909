"""The build hook of the wheels: the CPU's kernels are compiled, and become part of the wheel.

VIVAVOCE_KERNELS names the platform to build for (engine/vivavoce_engine/cpu/build.py lists them), or is "none". Without
it, the kernels are those of this machine, and a machine that cannot compile them gets a package without: PyTorch then
speaks on its CPU.
"""

import importlib.util
import os
import sys
import sysconfig
import tempfile
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

VARIABLE = "VIVAVOCE_KERNELS"
NONE = "none"
FOLDER = "engine/vivavoce_engine/cpu"


class KernelsHook(BuildHookInterface[Any]):
    """Compiles the kernels: into the source's folder for an editable install, otherwise into the wheel."""

    PLUGIN_NAME = "custom"

    @cached_property
    def wanted(self) -> str:
        """The platform that is asked for; empty for this machine's."""
        return os.environ.get(VARIABLE, "")

    @cached_property
    def kernels(self) -> ModuleType:
        """cpu/build.py."""
        return _build_module(Path(self.root))

    @cached_property
    def scratch(self) -> tempfile.TemporaryDirectory[str]:
        """A folder for the libraries of a wheel."""
        return tempfile.TemporaryDirectory(prefix="vivavoce-kernels-")

    def dependencies(self) -> list[str]:
        """The package with a compiler, where the machine has none or the wheel is for another one."""
        if self.wanted == NONE:
            return []
        here = not self.wanted
        if here and (self.kernels.this_platform() is None or self.kernels.machines_compiler() is not None):
            return []
        return [self.kernels.ZIGLANG]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compiles, and names the libraries and the platform to the builder."""
        if self.wanted == NONE:
            return
        try:
            if version == "editable":
                self._in_place()
            else:
                self._into_wheel(build_data)
        except self.kernels.CannotBuild as error:
            if self.wanted:
                raise
            self.app.display_warning(f"{error}. Without them PyTorch speaks on a CPU, several times slower.")

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Removes the libraries that the wheel now has."""
        self.scratch.cleanup()

    def _in_place(self) -> None:
        platform = self.kernels.this_platform()
        if platform is None or not self.kernels.is_current(platform):
            self.kernels.build_here()

    def _into_wheel(self, build_data: dict[str, Any]) -> None:
        folder = Path(self.scratch.name)
        if self.wanted:
            platform = self.kernels.platform_named(self.wanted)
            libraries, tag = self.kernels.build_for(platform, folder), platform.wheel_tag
        else:
            libraries, tag = self.kernels.build_here(folder), self._tag_here()
        for path in libraries:
            for file in (path, self.kernels.digest_path(path)):
                build_data["force_include"][str(file)] = f"vivavoce_engine/cpu/native/{file.name}"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{tag}"  # one library serves every version of Python

    def _tag_here(self) -> str:
        """The wheel's platform: the system of the machine's compiler, or the oldest one that Zig serves."""
        if self.kernels.machines_compiler() is None:
            return str(self.kernels.this_platform().wheel_tag)
        return sysconfig.get_platform().replace("-", "_").replace(".", "_")


def _build_module(root: Path) -> ModuleType:
    """cpu/build.py of the source tree, without the package around it, whose dependencies are not installed yet."""
    spec = importlib.util.spec_from_file_location("vivavoce_kernels_build", root / FOLDER / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
