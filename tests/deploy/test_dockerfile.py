"""The Dockerfile agrees with the project: it installs pyproject's packages at constraints.txt's versions, as nobody."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.dockerfile import ancestors, instructions, of_stage

ROOT = Path(__file__).parents[2]


def test_requirements_are_those_of_the_server_extra(tmp_path: Path) -> None:
    """The step that writes them, executed."""
    (step,) = [rest for rest in of_stage("build", "RUN") if "requirements.txt" in rest]
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    step = step.replace("python -c", f"{sys.executable} -c", 1)
    subprocess.run(["/bin/sh", "-ec", step], cwd=tmp_path, check=True)
    written = set((tmp_path / "requirements.txt").read_text().splitlines())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = {*project["dependencies"], *extras["engine"], *extras["server"], *extras["otel"], *extras["watermark"]}
    assert written == {line for line in wanted if not line.startswith("vivavoce-")}


def test_every_requirement_has_one_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    pinned = {line.split("==")[0].lower().replace("_", "-") for line in constraints()}
    for line in project["dependencies"] + extras["engine"] + extras["server"]:
        name = re.split(r"[\[<>=~!]", line)[0]
        if not name.startswith("vivavoce-"):
            assert name.lower().replace("_", "-") in pinned, f"{name} has no version in constraints.txt"


def constraints() -> list[str]:
    return [line for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line]


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_installs_are_constrained(target: str) -> None:
    (environment,) = of_stage("build", "ENV")
    assert "PIP_CONSTRAINT=/src/constraints.txt" in environment
    assert "constraints.txt" in of_stage("build", "COPY")[0]
    assert ancestors(f"third-party-{target}")[1] == "build"
    (install,) = of_stage(f"third-party-{target}", "RUN")
    assert install.split(" && ")[-1 if target == "cuda" else 2].strip().endswith("install -r requirements.txt")
    from_its_own_page = "--no-deps --no-index --find-links" in install and "+cpu" in install
    assert from_its_own_page == (target == "cpu"), "PyPI's torch would bring CUDA"
    (ours,) = of_stage("ours", "RUN")
    assert ours.endswith("--no-deps --root /ours ./voice .")
    assert of_stage(target, "COPY") == [
        f"--from=third-party-{target} /opt/vivavoce /opt/vivavoce",
        "--from=ours /ours/ /",
    ]


def test_the_cpu_version_of_torch_is_that_of_the_project() -> None:
    (install,) = of_stage("third-party-cpu", "RUN")
    command = re.search(r'"\$\((sed .*?)\)"', install)
    assert command is not None
    wanted = subprocess.run(["/bin/sh", "-ec", command[1]], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert f"{wanted.strip()}\n".replace("+cpu", "") in (ROOT / "constraints.txt").read_text()
    assert wanted.startswith("torch==")


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_it_runs_as_nobody_and_says_whether_it_lives(target: str) -> None:
    assert ancestors(target) == {"cpu": ["cpu", "runtime"], "cuda": ["cuda", "runtime-cuda", "runtime"]}[target]
    user = of_stage(target, "USER")[-1]
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user), "Kubernetes tells that a user is not root by a number"
    assert of_stage("runtime", "RUN")[0].count(user.split(":")[0]) == 1
    assert "/health" in of_stage("runtime", "HEALTHCHECK")[0]
    assert of_stage("runtime", "ENTRYPOINT") == ['["vivavoce"]']


def test_compilers_are_only_where_triton_needs_one() -> None:
    with_compiler = {stage for stage, word, rest in instructions() if word == "RUN" and "gcc" in rest}
    assert with_compiler == {"runtime-cuda"}


def test_what_is_compiled_is_kept_in_a_volume() -> None:
    volumes = json.loads(of_stage("runtime", "VOLUME")[0])
    variables = dict(word.split("=", 1) for word in of_stage("runtime-cuda", "ENV")[0].split())
    assert {"TRITON_CACHE_DIR", "CUDA_CACHE_PATH"} <= variables.keys()
    folders = [value for name, value in variables.items() if "CACHE" in name]
    assert all(f"/{folder.split('/')[1]}" in volumes for folder in folders)


def test_a_cpu_gets_all_packages_but_triton(tmp_path: Path) -> None:
    """The step that drops it, executed."""
    (install,) = of_stage("third-party-cpu", "RUN")
    step = re.search(r"&& (sed -i .*?) &&", install)
    assert step is not None
    (tmp_path / "requirements.txt").write_text("torch>=2.11\ntriton>=3.6; sys_platform == 'linux'\ntritonic\nav>=15\n")
    subprocess.run(["/bin/sh", "-ec", step[1]], cwd=tmp_path, check=True)
    assert (tmp_path / "requirements.txt").read_text().split() == ["torch>=2.11", "tritonic", "av>=15"]


def test_a_cpu_gets_no_headers_and_tests_of_torch(tmp_path: Path) -> None:
    """The steps that remove them, executed."""
    (install,) = of_stage("third-party-cpu", "RUN")
    step = install[install.index("&& torch=") + len("&& ") :].replace("/opt/vivavoce", str(tmp_path))
    torch = tmp_path / "lib/python3.11/site-packages/torch"
    for name in (
        "include/ATen/ATen.h",
        "test/test_api",
        "bin/protoc",
        "bin/models/a.ptl",
        "bin/torch_shm_manager",
        "lib/c.so",
    ):
        (torch / name).parent.mkdir(parents=True, exist_ok=True)
        (torch / name).touch()
    subprocess.run(["/bin/sh", "-ec", step], cwd=tmp_path, check=True)
    left = {str(path.relative_to(torch)) for path in torch.rglob("*") if path.is_file()}
    assert left == {"bin/torch_shm_manager", "lib/c.so"}


def test_without_a_target_it_is_the_cpus() -> None:
    assert instructions()[-1] == ("last", "FROM", "cpu")


def test_the_builder_gets_all_that_is_copied_and_nothing_else() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    let_in = {line[1:] for line in ignored if line.startswith("!")}
    copied = {
        source
        for _, word, rest in instructions()
        if word == "COPY" and not rest.startswith("--from")
        for source in rest.split()[:-1]
    }
    assert "*" in ignored
    assert let_in == copied
    assert all((ROOT / source).exists() for source in copied)
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert {package.split("/")[0] for package in packages["packages"]} <= copied


def test_its_settings_are_settings_of_the_server() -> None:
    from vivavoce_server.config import Settings
    from vivavoce_server.setting_sources import BUILD_VARIABLES, ENV_PREFIX

    text = (ROOT / "Dockerfile").read_text()
    names = set(re.findall(rf"{ENV_PREFIX}([A-Z_]+)=", text))
    names -= {name.removeprefix(ENV_PREFIX) for name in BUILD_VARIABLES}
    assert names
    assert {name.lower() for name in names} <= set(Settings.model_fields)
