"""Everything that deploy/ tells an operator to type exists: commands, files, settings, metrics, alerts."""

import json
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]
from vivavoce_server import ServerConfig
from vivavoce_server.config import Settings, load_settings
from vivavoce_server.service import Service
from vivavoce_server.setting_sources import ENV_PREFIX

from tests.support.deploy_tools import RENDER_CHART, needs_tools, tool
from tests.support.live_server import fake_engine
from tests.support.programs import needs, path_of

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCUMENTS = sorted(DEPLOY.rglob("*.md"))
COMPOSE_FILES = sorted((DEPLOY / "compose").glob("compose*.yaml"))


def commands() -> list[list[str]]:
    """Indented lines of the documents, split as a shell does."""
    lines = [line for document in DOCUMENTS for line in document.read_text().splitlines() if line.startswith("    ")]
    parts = [part for line in lines for part in line.split("&&")]
    return [words for part in parts if (words := shlex.split(part, comments=True))]


def of(*words: str) -> list[list[str]]:
    return [command for command in commands() if command[: len(words)] == list(words)]


def test_every_command_is_of_a_kind_that_is_checked() -> None:
    kinds = {command[0] for command in commands()}
    others = {"ray", "serve", "pip"}  # Ray's are run by make test-ray
    assert kinds == {"cd", "docker", "haproxy", "helm", "sed", "vivavoce"} | others


def test_pip_installs_extras_that_there_are() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {words[2] for words in of("pip", "install")}
    assert named
    assert named <= {f"vivavoce-speech[{extra}]" for extra in extras}


def test_docker_builds_name_targets_that_there_are() -> None:
    targets = set(re.findall(r"^FROM .* AS (\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE))
    named = {command[command.index("--target") + 1] for command in of("docker", "build")}
    assert {"cpu", "cuda"} <= named <= targets


def test_docker_runs_mount_the_images_volumes() -> None:
    volumes = json.loads(re.findall(r"^VOLUME (.*)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)[0])
    mounted = {word.split(":")[1] for command in of("docker", "run") for word in command if re.match(r"[a-z]+:/", word)}
    assert mounted == set(volumes)


def test_compose_commands_name_services_that_there_are() -> None:
    services = {name for path in COMPOSE_FILES for name in yaml.safe_load(path.read_text())["services"]}
    named = {
        word.split("=")[0] for command in of("docker", "compose") for word in command if word.startswith("vivavoce")
    }
    assert of("docker", "compose")
    assert named <= services


@needs_tools
@pytest.mark.parametrize("command", of("helm"), ids=lambda command: command[1])
def test_helm_commands_render(command: list[str]) -> None:
    assert command[3] == "deploy/helm/vivavoce"
    values: dict[str, object] = {}
    for setting in (command[at + 1] for at, word in enumerate(command) if word == "--set"):
        path, _, text = setting.partition("=")
        *folders, last = path.split(".")
        inner = values
        for folder in folders:
            inner = inner.setdefault(folder, {})  # type: ignore[assignment]
        inner[last] = yaml.safe_load(text)
    done = tool("python", RENDER_CHART, ROOT / command[3], json.dumps(values))
    assert "error" not in json.loads(done.stdout)


@needs_tools
@pytest.mark.parametrize("path", COMPOSE_FILES, ids=lambda path: path.name)
def test_compose_files_follow_the_specification(path: Path, tmp_path: Path) -> None:
    assert compose_complaint(path.read_text(), tmp_path) == ""
    typo = path.read_text().replace("volumes:", "volume:").replace("deploy:", "deply:")
    assert "does not start with" in compose_complaint(typo, tmp_path)


def compose_complaint(text: str, folder: Path) -> str:
    """What a strict parser says, of a file in which every variable has its default."""
    plain = folder / "compose.yaml"
    plain.write_text(re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text))
    read = "import sys, compose_spec; compose_spec.PyCompose.from_yaml(open(sys.argv[1]).read())"
    return tool("python", "-c", read, plain).stderr


def test_files_that_compose_mounts_are_there() -> None:
    mounts = re.findall(r"(\.\.?/[\w./-]+):/", "".join(path.read_text() for path in COMPOSE_FILES))
    assert len(mounts) >= 7
    assert all((DEPLOY / "compose" / mount).is_file() for mount in mounts)


def test_a_replica_is_given_longer_than_it_takes() -> None:
    service = yaml.safe_load((DEPLOY / "compose/compose.yaml").read_text())["services"]["vivavoce"]
    assert service["deploy"]["replicas"] == 2
    assert int(service["stop_grace_period"].rstrip("s")) > int(service["environment"]["VIVAVOCE_GRACE_S"])


def test_each_server_of_compose_has_a_card_of_its_own() -> None:
    services = yaml.safe_load((DEPLOY / "compose/compose.cuda.yaml").read_text())["services"]
    cards = []
    for name, service in services.items():
        (device,) = service["deploy"]["resources"]["reservations"]["devices"]
        cards += device["device_ids"]
        assert service["deploy"]["replicas"] == 1
        aliases = service.get("networks", {"default": {"aliases": []}})["default"]["aliases"]
        assert "vivavoce" in {name, *aliases}, "the name under which the balancer looks for servers"
    assert cards == [str(number) for number in range(len(services))]


@needs("haproxy")
def test_the_servers_on_cards_are_those_of_their_balancer(tmp_path: Path) -> None:
    flags = [command[2:] for command in of("vivavoce", "serve") if "--device" in command]
    settings = [
        load_settings({flag[2:].replace("-", "_"): value for flag, value in zip(each[::2], each[1::2], strict=True)})
        for each in flags
    ]
    assert [engine.device for _, engine in settings] == ["cuda:0", "cuda:1"]
    assert len({server.voices_dir for server, _ in settings}) == 1
    ((*command, _, target),) = of("sed")
    text = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    ports = re.findall(r"^    server \S+ 127\.0\.0\.1:(\d+)$", text, re.MULTILINE)
    assert ports == [str(server.port) for server, _ in settings]
    (tmp_path / target).write_text(text)
    (balancer,) = of("haproxy")
    done = subprocess.run(
        [path_of("haproxy"), *balancer[1:], "-c"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@needs_tools
def test_hadolint_has_no_complaint() -> None:
    done = tool("hadolint", ROOT / "Dockerfile")
    assert done.returncode == 0, done.stdout


@needs("caddy")
def test_the_caddyfile_is_valid(tmp_path: Path) -> None:
    (text,) = re.findall(r"```caddyfile\n(.*?)```", (DEPLOY / "README.md").read_text(), re.DOTALL)
    (tmp_path / "Caddyfile").write_text(text)
    command = [path_of("caddy"), "validate", "--config", str(tmp_path / "Caddyfile"), "--adapter", "caddyfile"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(DEPLOY)))
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", document.read_text()):
        assert (document.parent / target).exists(), target


def test_settings_are_settings_of_the_server() -> None:
    files = [
        path for path in DEPLOY.rglob("*") if path.suffix in {".md", ".yaml", ".py"} and "templates" not in path.parts
    ]
    text = "".join(path.read_text() for path in files)
    named = set(re.findall(rf"{ENV_PREFIX}([A-Z_]+[A-Z])\b", text)) - {"IMAGE", "TARGET"}  # compose's own
    assert len(named) > 5
    assert {name.lower() for name in named} <= set(Settings.model_fields)


def test_metrics_and_alerts_of_the_guide_are_all_that_there_are() -> None:
    guide = (DEPLOY / "OPERATIONS.md").read_text()
    text = Service({"m": fake_engine()}, ServerConfig()).metrics.exposition().decode()
    exported = set(re.findall(r"^# TYPE (vivavoce_\w+) (?:histogram|gauge|counter)$", text, re.MULTILINE))
    exported = {name for name in exported if not name.endswith("_created")}
    assert set(re.findall(r"`(vivavoce_\w+)`", guide)) == exported
    rules = yaml.safe_load((DEPLOY / "helm/vivavoce/monitoring/rules.yml").read_text())["groups"][0]["rules"]
    assert set(re.findall(r"^\| (Vivavoce\w+) \|", guide, re.MULTILINE)) == {
        rule["alert"] for rule in rules if "alert" in rule
    }
