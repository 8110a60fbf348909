"""Compose and Helm run the Dockerfile's images: its targets, user, volumes, port and health check."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from tests.deploy.test_chart import objects
from tests.support.deploy_tools import needs_tools
from tests.support.dockerfile import ancestors, of_stage

DEPLOY = Path(__file__).parents[2] / "deploy"
COMPOSE = DEPLOY / "compose"
TARGETS = ("cpu", "cuda")
VOLUMES = json.loads(of_stage("runtime", "VOLUME")[0])
(PORT,) = (int(word) for word in of_stage("runtime", "EXPOSE"))
SCRATCH = "/tmp"  # noqa: S108 (the container's)


def user_of(target: str) -> list[int]:
    """[uid, gid] of the processes of a target."""
    return [int(number) for number in of_stage(target, "USER")[-1].split(":")]


def service(file: str, name: str = "vivavoce") -> dict[str, Any]:
    return dict(yaml.safe_load((COMPOSE / file).read_text())["services"][name])


def default_of(text: str) -> str:
    """The value of ${NAME:-VALUE} where NAME is not set."""
    found = re.fullmatch(r"\$\{\w+:-(.*)\}", text)
    assert found is not None
    return found[1]


def test_both_images_have_one_user_and_port() -> None:
    assert user_of("cpu") == user_of("cuda")
    assert [stage for target in TARGETS for stage in ancestors(target) if of_stage(stage, "EXPOSE")] == ["runtime"] * 2
    assert f"VIVAVOCE_PORT={PORT}" in of_stage("runtime", "ENV")[0].split()
    assert "os.environ['VIVAVOCE_PORT']" in of_stage("runtime", "HEALTHCHECK")[0]


def test_compose_builds_the_image_that_it_runs() -> None:
    server = service("compose.yaml")
    target = default_of(server["build"]["target"])
    assert default_of(server["image"]) == f"vivavoce:{target}"
    assert target in TARGETS
    cards = re.search(
        r"VIVAVOCE_TARGET=(\S+) VIVAVOCE_IMAGE=vivavoce:(\S+)", (COMPOSE / "compose.cuda.yaml").read_text()
    )
    assert cards is not None
    assert cards.groups() == ("cuda", "cuda")
    assert (COMPOSE / server["build"]["context"] / "Dockerfile").is_file()


def test_compose_runs_it_as_its_user_with_its_volumes_on_a_read_only_root() -> None:
    server = service("compose.yaml")
    assert {mount.split(":")[1] for mount in server["volumes"]} == set(VOLUMES)
    assert server["read_only"] is True
    assert server["tmpfs"] == [SCRATCH]
    assert server["cap_drop"] == ["ALL"]
    # Health check, user, command and port are the image's.
    assert server.keys() & {"healthcheck", "user", "command", "entrypoint"} == set()
    assert "VIVAVOCE_PORT" not in server["environment"]
    assert service("compose.yaml", "balancer")["depends_on"]["vivavoce"]["condition"] == "service_healthy"


@pytest.mark.parametrize(
    ("file", "address"),
    [
        ("haproxy.cfg", r"server-template vivavoce 16 vivavoce:(\d+) "),
        ("nginx.conf", r"server vivavoce:(\d+) "),
        ("prometheus.yml", r"names: \[vivavoce\], type: A, port: (\d+)"),
    ],
)
def test_servers_are_found_at_the_images_port(file: str, address: str) -> None:
    assert re.findall(address, (COMPOSE / file).read_text()) == [str(PORT)]


@needs_tools
@pytest.mark.parametrize("target", TARGETS)
def test_the_chart_runs_it_as_its_user_with_its_volumes_on_a_read_only_root(target: str) -> None:
    pod = objects({"gpus": TARGETS.index(target)})["Deployment"]["spec"]["template"]["spec"]
    (server,) = pod["containers"]
    assert server["image"].endswith(f"-{target}")
    context = pod["securityContext"]
    assert [context["runAsUser"], context["runAsGroup"]] == user_of(target)
    assert context["fsGroup"] == user_of(target)[1], "volumes must be writable"
    assert {mount["mountPath"] for mount in server["volumeMounts"]} == {*VOLUMES, SCRATCH}
    assert server["securityContext"]["readOnlyRootFilesystem"] is True
    assert [port["containerPort"] for port in server["ports"]] == [PORT]
    assert server["livenessProbe"]["httpGet"]["path"] in of_stage("runtime", "HEALTHCHECK")[0]
    assert server.keys() & {"command", "args"} == set(), "both are the image's"
