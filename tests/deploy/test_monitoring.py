"""Prometheus with the project's rules, over two servers and HAProxy: every query of the dashboard returns data."""

import json
import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import yaml  # type: ignore[import-untyped]
from vivavoce_server.metrics import UNDERRUN_BUCKETS_S

from tests.support.fleet import DEPLOY, answers, free_port, haproxy, replicas, running
from tests.support.listening import SHORT, listen
from tests.support.programs import needs, path_of
from tests.support.waiting import wait_until

MONITORING = DEPLOY / "helm/vivavoce/monitoring"
DASHBOARD = json.loads((MONITORING / "dashboard.json").read_text())
QUERIES = [
    (f"{panel['title']}, {target['legendFormat']}", target["expr"])
    for panel in DASHBOARD["panels"]
    for target in panel["targets"]
]
RULES = yaml.safe_load((MONITORING / "rules.yml").read_text())["groups"][0]["rules"]

needs_prometheus = needs("prometheus", "haproxy")


@contextmanager
def trickle(url: str) -> Iterator[None]:
    """A request now and then: rates need growth between scrapes."""
    over = threading.Event()

    def ask_often() -> None:
        while not over.wait(0.2):
            assert listen(url, SHORT).status == 200

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask_often)
        try:
            yield
        finally:
            over.set()
    asking.result()


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of one that watches."""
    folder: Path = tmp_path_factory.mktemp("prometheus")
    port = free_port()
    with replicas(folder, "--model", "fake") as servers, haproxy(folder, servers) as balancer:
        settings = yaml.safe_load((DEPLOY / "compose/prometheus.yml").read_text())
        settings["global"] = dict.fromkeys(settings["global"], "1s")
        targets = {"vivavoce": [server.port for server in servers], "haproxy": [balancer.metrics_port or 0]}
        for job in settings["scrape_configs"]:
            del job["dns_sd_configs"]
            addresses = [f"127.0.0.1:{number}" for number in targets.pop(job["job_name"])]
            job["static_configs"] = [{"targets": addresses}]
        assert not targets
        (folder / "rules.yml").write_bytes((MONITORING / "rules.yml").read_bytes())
        config = folder / "prometheus.yml"
        config.write_text(yaml.safe_dump(settings))
        flags = [
            f"--config.file={config}",
            f"--web.listen-address=127.0.0.1:{port}",
            f"--storage.tsdb.path={folder}/data",
        ]
        url = f"http://127.0.0.1:{port}"
        with running([path_of("prometheus"), *flags], folder / "prometheus.log"):
            wait_until(lambda: answers(f"{url}/-/ready"))
            with trickle(balancer.url):
                wait_for(lambda: ask(url, "up") == [1.0, 1.0, 1.0])  # both servers and the balancer
                yield url


def ask(prometheus: str, query: str) -> list[float]:
    answer = httpx.get(f"{prometheus}/api/v1/query", params={"query": query}).json()
    assert answer["status"] == "success", answer
    return [float(series["value"][1]) for series in answer["data"]["result"]]


def wait_for(condition: Callable[[], bool]) -> None:
    """At the pace of scrapes."""
    wait_until(condition, pause_s=0.3)


@needs_prometheus
@pytest.mark.parametrize(("panel", "query"), QUERIES, ids=[name for name, _ in QUERIES])
def test_the_dashboard_finds_data(prometheus: str, panel: str, query: str) -> None:
    plain = query.replace("$__rate_interval", "1m").replace("$model", ".*")
    assert "$" not in plain

    def found() -> bool:
        values = ask(prometheus, plain)
        return bool(values) and all(value == value for value in values)  # NaN is what nobody measured

    wait_for(found)


@needs_prometheus
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.get("alert", rule.get("record")))
def test_rules_name_metrics_that_there_are(prometheus: str, rule: dict[str, str]) -> None:
    exported = set(httpx.get(f"{prometheus}/api/v1/metadata").json()["data"])
    for name in set(re.findall(r"\bvivavoce_\w+", rule["expr"])):
        assert {name, re.sub("_(bucket|count|sum)$", "", name)} & exported, name


@needs("promtool")
def test_alerts_fire_when_they_should(tmp_path: Path) -> None:
    cases = tmp_path / "rules_test.yml"
    text = Path(__file__).with_name("rules_test.yml").read_text()
    cases.write_text(text.replace("RULES", str(MONITORING / "rules.yml")))
    done = subprocess.run(
        [path_of("promtool"), "test", "rules", str(cases)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert {rule["alert"] for rule in RULES if "alert" in rule} <= set(re.findall(r"Vivavoce\w+", text))


def test_buckets_that_queries_name_are_buckets() -> None:
    buckets = {str(bucket) for bucket in UNDERRUN_BUCKETS_S}
    named = re.findall(
        r'le="([^"]+)"', (MONITORING / "rules.yml").read_text() + " ".join(query for _, query in QUERIES)
    )
    assert named
    assert set(named) <= buckets
