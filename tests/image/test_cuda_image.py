"""The CUDA image as far as a machine without gigabytes to spare goes: what Triton needs, and which packages are chosen.

The install step is the Dockerfile's own line. pip's settings in the environment make it choose packages and fetch their
metadata alone: `third-party-cuda` as a whole would download 3 GB.
"""

import json
import re
from pathlib import Path

import pytest

from tests.image.podman import ROOT, Podman
from tests.support.dockerfile import of_stage
from tests.support.programs import needs

PIP = "25.3"
"""The first pip versions with a dry run download whole wheels."""
DRY_RUN = ("PIP_DRY_RUN=1", "PIP_REPORT=/report/report.json", "PIP_USE_FEATURE=fast-deps")
EXTENSION = """#include <Python.h>
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "launcher", NULL, -1, NULL};
PyMODINIT_FUNC PyInit_launcher(void) { return PyModule_Create(&module); }
"""
COMPILE_AND_IMPORT = """
cd /cache
include=$(python -c 'import sysconfig; print(sysconfig.get_path("include"))')
gcc -O3 -shared -fPIC -I"$include" /tmp/launcher.c -o launcher.so
python -c 'import launcher; print(launcher.__file__)'
"""

pytestmark = needs("podman", "runc", "debootstrap")


def test_its_user_compiles_launchers_into_the_cache(podman: Podman, build_options: list[str], tmp_path: Path) -> None:
    """The extension stands for the launcher that Triton builds before a kernel first runs."""
    image = podman.build("runtime-cuda", *build_options)
    (tmp_path / "launcher.c").write_text(EXTENSION)
    locked = ("--read-only", "--read-only-tmpfs=false", "--tmpfs", "/tmp", "--cap-drop", "all")  # noqa: S108 (a mount)
    mounts = ("--volume", f"{tmp_path}/launcher.c:/tmp/launcher.c:ro", "--volume", "kernels:/cache")
    user = of_stage("cuda", "USER")[0]
    done = podman.run("run", "--rm", *locked, *mounts, "--user", user, "--entrypoint", "sh", image, "-ec",
                      COMPILE_AND_IMPORT)  # fmt: skip
    assert done.stdout.strip() == "/cache/launcher.so"
    variables = dict(line.split("=", 1) for line in podman.image(image)["Config"]["Env"])
    assert variables["TRITON_CACHE_DIR"] == "/cache/triton"


@pytest.fixture(scope="module")
def chosen(
    podman: Podman, build_options: list[str], index_mounts: list[str], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """Name → version of the packages that the install step chooses."""
    image = podman.build("build", *build_options)
    report = tmp_path_factory.mktemp("report")
    (step,) = of_stage("third-party-cuda", "RUN")
    line = re.sub(r"--mount=\S+\s+", "", step)
    script = f"python -m pip install -q --break-system-packages pip=={PIP} && env {' '.join(DRY_RUN)} {line}"
    podman.run("run", "--rm", "--volume", f"{report}:/report", *index_mounts, image, "sh", "-ec", script)
    installs = json.loads((report / "report.json").read_text())["install"]
    return {package["metadata"]["name"].lower(): package["metadata"]["version"] for package in installs}


def test_its_packages_resolve_to_the_projects_versions(chosen: dict[str, str]) -> None:
    pinned = {
        name.lower().replace("_", "-"): version
        for name, version in re.findall(
            r"^([\w.-]+)==([^\s;]+)(?:; python_version < .*)?$", constraints(), re.MULTILINE
        )
    }
    assert {"torch", "triton", "transformers", "fastapi"} <= chosen.keys()
    assert [name for name in chosen if name.startswith("nvidia-")]
    assert {name: chosen[name] for name in chosen if chosen[name] != pinned.get(name.replace("_", "-"))} == {}


def constraints() -> str:
    return (ROOT / "constraints.txt").read_text()
