"""Workflows, issue forms, hooks and pyproject.toml agree with the Makefile, constraints.txt and each other."""

import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from tests.support.deploy_tools import needs_tools, tool

ROOT = Path(__file__).parents[1]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted(GITHUB.glob("workflows/*.yml"))
FORMS = sorted(path for path in GITHUB.glob("ISSUE_TEMPLATE/*.yml") if path.name != "config.yml")
CONFIG = GITHUB / "ISSUE_TEMPLATE/config.yml"
HOOKS = ROOT / ".pre-commit-config.yaml"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
VERBS = frozenset(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
PYTHONS = ["3.11", "3.12", "3.13", "3.14"]

by_name = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
by_form = pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)


def read(path: Path) -> dict[Any, Any]:
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(content, dict)
    return content


def steps_of(path: Path) -> list[dict[str, Any]]:
    return [step for job in read(path)["jobs"].values() for step in job["steps"]]


def runs_of(steps: list[dict[str, Any]]) -> list[str]:
    return [step["run"] for step in steps if "run" in step]


def verbs_of(text: str) -> list[str]:
    """The verbs after each `make` of a text."""
    return [verb for words in re.findall(r"\bmake((?: [a-z-]+)+)", text) for verb in words.split()]


def pinned_version(package: str) -> str:
    [version] = re.findall(rf"^{package}==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    return str(version)


# ---- workflows


def test_the_files_are_found() -> None:
    assert [path.name for path in WORKFLOWS] == ["test.yml", "weekly.yml"]
    assert [path.name for path in FORMS] == ["bug.yml", "card.yml", "feature.yml"]


@pytest.mark.parametrize(
    ("schema", "paths"),
    [
        ("vendor.github-workflows", WORKFLOWS),
        ("custom.github-workflows-require-timeout", WORKFLOWS),
        ("vendor.github-issue-forms", FORMS),
        ("vendor.github-issue-config", [CONFIG]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@needs_tools
def test_files_have_the_form_that_github_reads(schema: str, paths: list[Path], tmp_path: Path) -> None:
    done = tool("check-jsonschema", "--builtin-schema", schema, *paths)
    assert done.returncode == 0, done.stdout
    wrong = tmp_path / "wrong.yml"
    wrong.write_text("jobs: {test: {steps: 1}}\nbody: 1\ncontact_links: 1\n")
    assert tool("check-jsonschema", "--builtin-schema", schema, wrong).returncode == 1


@by_name
def test_workflows_call_verbs_of_the_makefile(path: Path) -> None:
    named = [verb for run in runs_of(steps_of(path)) for verb in verbs_of(run)]
    assert named
    assert set(named) <= VERBS
    others = [run for run in runs_of(steps_of(path)) if not run.startswith("make ")]
    assert all(run.startswith("sudo apt-get ") for run in others)


def test_every_push_is_linted_and_tested_and_every_week_audited() -> None:
    runs = {path.name: runs_of(steps_of(path)) for path in WORKFLOWS}
    assert {"make lint types", "make quick", "make test", "make test-programs"} <= set(runs["test.yml"])
    assert {"make audit", "make test-pins", "make fuzz"} == set(runs["weekly.yml"])
    triggers = read(GITHUB / "workflows/test.yml")[True]  # YAML 1.1 reads the key `on` as true
    assert triggers == {"push": {"branches": ["main"]}, "pull_request": None, "workflow_dispatch": None}


@by_name
def test_workflows_may_read_alone_and_end(path: Path) -> None:
    workflow = read(path)
    assert workflow["permissions"] == {"contents": "read"}
    assert workflow["concurrency"]["group"].startswith("${{ github.workflow }}")
    for name, job in workflow["jobs"].items():
        assert "permissions" not in job, name
        assert 10 <= job["timeout-minutes"] <= 60, name
    checkouts = [step for step in steps_of(path) if step.get("uses", "").startswith("actions/checkout@")]
    assert len(checkouts) == len(workflow["jobs"])
    assert all(step["with"] == {"persist-credentials": False} for step in checkouts)


def test_workflows_use_githubs_own_actions_each_in_one_version() -> None:
    used = {step["uses"] for path in WORKFLOWS for step in steps_of(path) if "uses" in step}
    assert all(re.fullmatch(r"actions/[a-z-]+@v\d+", action) for action in used)
    names = [action.split("@")[0] for action in used]
    assert sorted(names) == ["actions/checkout", "actions/setup-python"]


def test_every_supported_python_runs_all_tests() -> None:
    job = read(GITHUB / "workflows/test.yml")["jobs"]["test"]
    assert job["strategy"] == {"fail-fast": False, "matrix": {"python": PYTHONS}}
    [setup] = [step for step in job["steps"] if step.get("uses", "").startswith("actions/setup-python@")]
    assert setup["with"]["python-version"] == "${{ matrix.python }}"
    assert runs_of(job["steps"]) == ["make test", "make test-long", "make test-kernels"]


@by_name
def test_other_jobs_use_the_oldest_python(path: Path) -> None:
    versions = [step["with"]["python-version"] for step in steps_of(path) if "setup-python@" in step.get("uses", "")]
    assert set(versions) - {"${{ matrix.python }}"} == {PYTHONS[0]}


# ---- the package's description


def test_the_supported_pythons_are_said_alike() -> None:
    prefix = "Programming Language :: Python :: 3."
    named = [line.removeprefix(prefix) for line in PYPROJECT["project"]["classifiers"] if line.startswith(prefix)]
    assert [f"3.{minor}" for minor in named] == PYTHONS
    assert PYPROJECT["project"]["requires-python"] == f">={PYTHONS[0]}"
    assert PYPROJECT["tool"]["mypy"]["python_version"] == PYTHONS[0]
    assert "target-version" not in PYPROJECT["tool"]["ruff"]  # ruff reads requires-python
    assert f"sys.version_info < ({PYTHONS[0].replace('.', ', ')})" in MAKEFILE


def test_classifiers_are_sorted_and_leave_the_license_to_its_field() -> None:
    classifiers = PYPROJECT["project"]["classifiers"]
    assert classifiers == sorted(set(classifiers))
    assert not any(line.startswith("License ::") for line in classifiers)  # the build refuses both
    assert PYPROJECT["project"]["license"] == "Apache-2.0"
    assert PYPROJECT["project"]["authors"] == [{"name": "Vivavoce developers"}]


def test_there_is_one_repository() -> None:
    urls = PYPROJECT["project"]["urls"]
    assert urls.keys() == {"Repository", "Documentation", "Changelog", "Issues"}
    home = urls["Repository"]
    assert all(url.startswith(home) for url in urls.values())
    assert (ROOT / urls["Changelog"].removeprefix(f"{home}/blob/main/")).is_file()
    [link] = read(CONFIG)["contact_links"]
    assert link["url"] == f"{home}/security/advisories/new"
    assert "Security → Advisories" in (ROOT / "SECURITY.md").read_text(encoding="utf-8")


# ---- issue forms and the pull-request template


@by_form
def test_forms_ask_each_question_once(path: Path) -> None:
    form = read(path)
    assert form.keys() == {"name", "description", "labels", "body"}
    questions = [part for part in form["body"] if part["type"] != "markdown"]
    assert len(questions) >= 3
    for key in ("id", "label"):
        values = [part["id"] if key == "id" else part["attributes"]["label"] for part in questions]
        assert len(set(values)) == len(values)
    assert all(isinstance(part["validations"]["required"], bool) for part in questions)


def test_a_bug_report_describes_the_machine() -> None:
    parts = {part.get("id"): part for part in read(GITHUB / "ISSUE_TEMPLATE/bug.yml")["body"]}
    machine = parts["doctor"]
    assert machine["validations"]["required"] is True
    for wanted in ("vivavoce doctor --json", "Python", "torch", "nvidia-smi"):
        assert wanted in machine["attributes"]["description"]
    assert {"happened", "expected", "reproduce", "checkpoint"} <= parts.keys()
    assert read(CONFIG)["blank_issues_enabled"] is False


def test_the_pull_request_template_names_what_exists() -> None:
    lines = (GITHUB / "pull_request_template.md").read_text(encoding="utf-8").splitlines()
    boxes = [line for line in lines if line.startswith("- [ ] ")]
    assert 3 <= len(boxes) <= 6
    text = "\n".join(boxes)
    assert verbs_of(text) == ["test"]
    files = re.findall(r"`([A-Za-z.]+\.md)`", text)
    assert len(files) == 2
    assert all((ROOT / name).is_file() for name in files)


# ---- hooks before a commit


def hooks() -> dict[str, dict[str, Any]]:
    [repo] = read(HOOKS)["repos"]
    assert repo["repo"] == "local"  # another would state a tool's version a second time
    return {hook["id"]: hook for hook in repo["hooks"]}


def test_hooks_are_the_makefiles_tools() -> None:
    assert list(hooks()) == ["ruff-format", "ruff-check", "mypy"]
    assert all(hook["language"] == "system" for hook in hooks().values())
    assert hooks()["mypy"]["entry"] == "make types"
    assert hooks()["mypy"]["pass_filenames"] is False
    assert "$(BIN)/mypy" in MAKEFILE
    assert "$(BIN)/ruff format" in MAKEFILE
    assert "$(BIN)/ruff check" in MAKEFILE


@pytest.mark.parametrize("package", ["ruff", "mypy"])
def test_hooks_run_the_versions_of_constraints_txt(package: str) -> None:
    assert importlib.metadata.version(package) == pinned_version(package)


def run_hook(name: str, path: Path) -> int:
    """Runs a hook as pre-commit does, with the tools of this environment."""
    program, *arguments = hooks()[name]["entry"].split()
    assert program == ".venv/bin/ruff"
    here = Path(sys.executable).with_name("ruff")
    return subprocess.run([here, *arguments, path], cwd=ROOT, capture_output=True, check=False).returncode


def test_hooks_format_and_refuse(tmp_path: Path) -> None:
    path = tmp_path / "wrong.py"
    path.write_text("import os\nx = { 'a':1 }\n")
    assert run_hook("ruff-format", path) == 0
    assert path.read_text() == 'import os\n\nx = {"a": 1}\n'
    assert run_hook("ruff-check", path) == 1
    path.write_text("x = 1\n")
    assert run_hook("ruff-check", path) == 0
