"""Two replicas of the Ray Serve application over the shipped voice. Run by `make test-ray`."""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
import ray
import vivavoce_ray
import yaml  # type: ignore[import-untyped]
from ray import serve
from vivavoce_ray import ByQueue, Options, Vivavoce, app
from vivavoce_server import ServerConfig, create_app

from tests.support.fleet import free_port
from tests.support.listening import LONG, SHORT, listen, listen_while_writing, listeners
from tests.support.live_server import fake_engine

REPLICAS = 2


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("ray")
    settings = {
        "VIVAVOCE_VOICES_DIR": str(folder / "voices"),
        "VIVAVOCE_MAX_CONTEXT": "512",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    port = free_port()
    ray.init(num_cpus=REPLICAS, include_dashboard=False, runtime_env={"env_vars": settings}, object_store_memory=10**8)
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    options = {"min_replicas": REPLICAS, "max_replicas": REPLICAS, "cpus": 0.5}
    serve.run(app(options), name="vivavoce", route_prefix="/")
    yield f"http://127.0.0.1:{port}"
    serve.shutdown()
    ray.shutdown()


def test_two_replicas_are_ready(url: str) -> None:
    assert httpx.get(f"{url}/ready").json() == {"status": "ready"}
    (deployment,) = serve.status().applications["vivavoce"].deployments.values()
    assert deployment.replica_states == {"RUNNING": REPLICAS}


def test_speech_arrives_while_it_is_made(url: str) -> None:
    pieces = []
    with httpx.stream("POST", f"{url}/v1/audio/speech", json=LONG, timeout=120) as response:
        for piece in response.iter_raw():
            pieces.append(piece)
    assert response.status_code == 200
    assert len(pieces) > 4, "one for each piece of speech"
    assert b"".join(pieces) == listen(url, LONG).pcm


def test_both_replicas_speak(url: str) -> None:
    with listeners(url, 4, LONG) as running:
        rows = {line for _ in range(30) if (line := active_rows(url)) is not None}
        heard = [listener.result() for listener in running]
    assert all(one.complete for one in heard)
    assert {len(one.pcm) for one in heard} == {len(heard[0].pcm)}
    assert "0" not in rows, "no replica that was asked stood idle"


def active_rows(url: str) -> str | None:
    lines = httpx.get(f"{url}/metrics", timeout=30).text.splitlines()
    return next(
        (line.split()[-1].removesuffix(".0") for line in lines if line.startswith("vivavoce_active_rows")), None
    )


async def test_live_text_is_spoken_as_it_comes(url: str) -> None:
    await listen_while_writing(url)


def test_a_listener_who_leaves_frees_the_row(url: str) -> None:
    with httpx.stream("POST", f"{url}/v1/audio/speech", json=LONG, timeout=120) as response:
        assert next(iter(response.iter_raw()))
    deadline_s = time.monotonic() + 60
    while {active_rows(url) for _ in range(8)} != {"0"}:
        assert time.monotonic() < deadline_s
    assert listen(url, SHORT).complete


@pytest.mark.parametrize(
    ("running", "ongoing", "waits", "wanted"),
    [(2, 1, [0, 0], 1), (2, 13, [0, 0], 3), (2, 4, [1.5, 0], 3), (2, 4, [50, 0], 4), (4, 0, [50, 9], 5), (1, 0, [], 1)],
)
def test_replicas_follow_the_queue(running: int, ongoing: float, waits: list[float], wanted: int) -> None:
    context = SimpleNamespace(
        current_num_replicas=running,
        total_num_requests=ongoing,
        aggregated_metrics={"queue_s": dict(enumerate(waits))},
        capacity_adjusted_min_replicas=1,
        capacity_adjusted_max_replicas=5,
    )
    assert ByQueue(queue_s=1, ongoing_per_replica=6)(context) == (wanted, {})


def test_a_replica_tells_how_long_its_queue_takes() -> None:
    waiting = fake_engine()
    replica = Vivavoce()
    replica.app = create_app(waiting, ServerConfig())
    assert replica.record_autoscaling_stats() == {"queue_s": 0.0}
    service = replica.app.state.service
    service.engines = {"m": SimpleNamespace(stats=lambda: SimpleNamespace(queued=3))}
    assert replica.record_autoscaling_stats() == {"queue_s": 300.0}, "nothing has ended yet"
    for _ in range(2):
        service.metrics.requests.labels("m", "completed").inc()
    for outcome in ("refused", "rejected"):
        service.metrics.requests.labels("m", outcome).inc()
    assert replica.record_autoscaling_stats() == {"queue_s": 1.5}


def test_the_commands_of_the_page_are_taken() -> None:
    page = (Path(vivavoce_ray.__file__).parent / "README.md").read_text()
    (command,) = [line.split() for line in page.splitlines() if line.startswith("    serve run ")]
    assert command[2] == "vivavoce_ray:app"
    assert Options.model_validate(dict(word.split("=") for word in command[3:])).max_replicas == 2


def test_unknown_options_are_refused() -> None:
    with pytest.raises(ValueError, match="replica"):
        app({"replica": 3})


def test_the_configuration_builds() -> None:
    (entry,) = yaml.safe_load((Path(vivavoce_ray.__file__).parent / "serve.yaml").read_text())["applications"]
    assert Options.model_validate(entry["args"]).max_replicas == 8
    assert entry["import_path"] == "vivavoce_ray:app"
