"""The Helm chart, rendered by Helm's own library and checked against Kubernetes' schemas."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from tests.support.deploy_tools import RENDER_CHART, needs_tools, tool

CHART = Path(__file__).parents[2] / "deploy/helm/vivavoce"
FULL = {
    "gpus": 1,
    "settings": {"GRACE_S": "90", "MODEL": "Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice", "MAX_STREAMS": 64},
    "apiKeysSecret": "speech-keys",
    "ingress": {"enabled": True, "tlsSecret": "speech-tls"},
    "cacheClaim": "speech-cache",
    "autoscaling": {"enabled": True},
    "monitoring": {"enabled": True, "labels": {"release": "prometheus"}},
    "nodeSelector": {"nvidia.com/gpu.present": "true"},
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
}
CUSTOM = {"ScaledObject", "ServiceMonitor", "PrometheusRule"}
"""Kinds of operators, whose schemas are not Kubernetes'."""

pytestmark = needs_tools


def rendered(values: dict[str, Any]) -> dict[str, Any]:
    done = tool("python", RENDER_CHART, CHART, json.dumps(values))
    assert done.returncode == 0, done.stderr
    output: dict[str, Any] = json.loads(done.stdout)
    return output


def objects(values: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Kind → the one object of that kind."""
    manifests = rendered(values)["manifests"]
    documents = [one for text in manifests.values() for one in yaml.safe_load_all(text) if one]
    found = {document["kind"]: document for document in documents}
    assert len(found) == len(documents)
    return found


def container(values: dict[str, Any]) -> dict[str, Any]:
    (only,) = objects(values)["Deployment"]["spec"]["template"]["spec"]["containers"]
    return dict(only)


@pytest.mark.parametrize("values", [{}, FULL], ids=["defaults", "everything"])
def test_it_is_what_kubernetes_takes(values: dict[str, Any], tmp_path: Path) -> None:
    found = objects(values)
    expected = {"Deployment", "Service", "PersistentVolumeClaim", "PodDisruptionBudget"}
    assert set(found) == (expected | CUSTOM | {"Ingress", "ConfigMap"} if values else expected)
    files = []
    for kind in set(found) - CUSTOM:
        files.append(tmp_path / f"{kind}.yaml")
        files[-1].write_text(yaml.safe_dump(found[kind]))
    checked = tool("kubernetes-validate", "--strict", *files)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_helm_has_no_complaint() -> None:
    assert [message["error"] for message in rendered(FULL)["messages"]] == ["icon is recommended"]


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"replica": 3}, "replica"),
        ({"gpus": 2}, "gpus"),
        ({"settings": {"GRACE_S": "5", "PORT": "80"}}, "PORT"),
        ({"autoscaling": {"queueSeconds": 0}}, "queueSeconds"),
    ],
)
def test_wrong_values_are_named(values: dict[str, Any], named: str) -> None:
    assert named in rendered(values)["error"]


def test_a_replica_stops_only_when_its_speech_is_over() -> None:
    pod = objects(FULL)["Deployment"]["spec"]["template"]["spec"]
    environment = {one["name"]: one.get("value") for one in pod["containers"][0]["env"]}
    pause_s = int(pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])
    assert environment["VIVAVOCE_GRACE_S"] == "90"
    assert pause_s > 2 * 2, "longer than the readiness probe takes to notice"
    assert pod["terminationGracePeriodSeconds"] > pause_s + 90


def test_probes_ask_what_the_server_answers() -> None:
    probes = {
        name: container({})[name]["httpGet"]["path"] for name in ("startupProbe", "readinessProbe", "livenessProbe")
    }
    assert probes == {"startupProbe": "/ready", "readinessProbe": "/ready", "livenessProbe": "/health"}


def test_settings_are_settings_of_the_server() -> None:
    from vivavoce_server.config import Settings

    names = [one["name"].removeprefix("VIVAVOCE_").lower() for one in container(FULL)["env"]]
    assert "model" in names
    assert "api_keys" in names
    assert set(names) <= set(Settings.model_fields)


def test_a_gpu_is_asked_for_with_the_image_that_uses_it() -> None:
    assert container(FULL)["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert container(FULL)["image"].endswith("-cuda")
    assert "nvidia.com/gpu" not in container({})["resources"]["limits"]
    assert container({})["image"].endswith("-cpu")


def test_voices_are_shared_and_outlive_the_chart() -> None:
    claim = objects({})["PersistentVolumeClaim"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    assert claim["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    mounts = {mount["mountPath"]: mount["name"] for mount in container({})["volumeMounts"]}
    assert mounts["/voices"] == "voices"
    assert "PersistentVolumeClaim" not in objects({"voices": {"existingClaim": "mine"}})


def test_autoscaling_goes_by_the_queue_and_the_rows() -> None:
    scaled = objects(FULL)["ScaledObject"]["spec"]
    queries = [trigger["metadata"]["query"] for trigger in scaled["triggers"]]
    assert 'max(vivavoce:queue_seconds{namespace="voices"})' in queries
    assert scaled["scaleTargetRef"]["name"] == objects(FULL)["Deployment"]["metadata"]["name"]
    assert "replicas" not in objects(FULL)["Deployment"]["spec"], "or every upgrade would undo what KEDA did"


def test_it_brings_the_rules_and_the_dashboard() -> None:
    found = objects(FULL)
    assert found["PrometheusRule"]["spec"] == yaml.safe_load((CHART / "monitoring/rules.yml").read_text())
    dashboard = json.loads(found["ConfigMap"]["data"]["vivavoce.json"])
    assert dashboard == json.loads((CHART / "monitoring/dashboard.json").read_text())
    assert found["ServiceMonitor"]["metadata"]["labels"]["release"] == "prometheus"


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({}, ["speech.voices", "speech.voices.svc"]),
        ({"ingress": {"enabled": True}}, ["speech.voices", "speech.voices.svc", "speech.example"]),
        (
            {"settings": {"GRACE_S": "5", "ALLOWED_HOSTS": "a.example,b.example"}},
            ["speech.voices", "speech.voices.svc", "a.example", "b.example"],
        ),
        ({"apiKeysSecret": "keys"}, []),
        ({"apiKeysSecret": "keys", "settings": {"GRACE_S": "5", "ALLOWED_HOSTS": "a.example"}}, ["a.example"]),
    ],
)
def test_a_server_without_keys_answers_to_its_service_and_ingress(values: dict[str, Any], names: list[str]) -> None:
    given = [one["value"] for one in container(values)["env"] if one["name"] == "VIVAVOCE_ALLOWED_HOSTS"]
    assert given == ([",".join(names)] if names else [])
