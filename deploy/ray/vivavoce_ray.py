"""Vivavoce as a Ray Serve application. Each replica is a whole server, with an engine for each checkpoint.

Settings are the server's variables (VIVAVOCE_MODEL, VIVAVOCE_VOICES_DIR, ...) in the environment of every node.

    serve run vivavoce_ray:app max_replicas=4
"""

import math
import time
from collections import deque
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict
from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingContext, AutoscalingPolicy
from vivavoce_server import create_app
from vivavoce_server.config import load_settings
from vivavoce_server.engines import open_engines
from vivavoce_server.service import Service

RATE_WINDOW_S = 60.0
TURNED_AWAY = frozenset({"rejected", "refused"})
"""Outcomes of requests that never waited for a row."""
LEAST_RATE = 0.01
"""Utterances per second assumed to end if none has ended, so that the estimated wait is long but finite."""


class Options(BaseModel):
    """Arguments of `serve run`, and of `args` in a config file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    min_replicas: int = 1
    max_replicas: int = 1
    gpus: float = 0
    """GPUs of a replica."""
    cpus: float = 2
    max_ongoing_requests: int = 512
    """Ray's limit. Higher than what a server runs and queues, so that the server refuses, with a Retry-After."""
    grace_s: float = 60
    """Seconds that running speech may continue after a replica is told to stop."""
    queue_s: float = 1
    """Longest acceptable wait in seconds. A longer wait starts more replicas."""
    ongoing_per_replica: float = 6
    """Target number of requests and live sockets of a replica. Set it below the replica's rows (the metric
    vivavoce_rows): 8 on a CPU, up to 256 on a card."""


def build_server() -> FastAPI:
    """Loads and warms up the engines, in the process of a replica."""
    # Ray's proxies listen, on every interface as serve.yaml says.
    config, engine_config = load_settings({"host": "0.0.0.0"})
    engines = open_engines(config, engine_config)
    for engine in engines.values():
        engine.start()
    return create_app(engines, config)


class Vivavoce:
    """A replica. Ray adds `app`, which `build_server` makes."""

    app: FastAPI

    def __init__(self) -> None:
        self._ended: deque[tuple[float, float]] = deque()

    @property
    def _service(self) -> Service:
        service = self.app.state.service
        assert isinstance(service, Service)
        return service

    def check_health(self) -> None:
        """Raises if an engine has failed for good, so that Ray replaces the replica."""
        if self._service.failed:
            raise RuntimeError("an engine does not come back: only a restart helps")

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Estimates the wait of queued requests from the rate at which utterances have been ending (Little's law)."""
        now_s = time.monotonic()
        self._ended.append((now_s, self._requests_ended()))
        while now_s - self._ended[0][0] > RATE_WINDOW_S:
            self._ended.popleft()
        (then_s, then), (_, now) = self._ended[0], self._ended[-1]
        rate = (now - then) / max(now_s - then_s, 1.0)
        queued = sum(engine.stats().queued for engine in self._service.engines.values())
        return {"queue_s": queued / max(rate, LEAST_RATE)}

    def _requests_ended(self) -> float:
        families = self._service.metrics.requests.collect()
        samples = (sample for family in families for sample in family.samples if sample.name.endswith("_total"))
        return sum(sample.value for sample in samples if sample.labels["outcome"] not in TURNED_AWAY)

    def __del__(self) -> None:
        if hasattr(self, "_asgi_app"):
            for engine in self._service.engines.values():
                engine.stop()


class ByQueue:
    """Autoscaling policy for Ray: decides the number of replicas."""

    def __init__(self, queue_s: float, ongoing_per_replica: float) -> None:
        self._queue_s = queue_s
        self._ongoing_per_replica = ongoing_per_replica

    def __call__(self, context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
        """Scales by the ratio of the longest wait to `queue_s`, and keeps enough replicas for running requests."""
        waits = (context.aggregated_metrics or {}).get("queue_s", {}).values()
        longest_s = max(waits, default=0.0)
        running = max(context.current_num_replicas, 1)
        for_queue = math.ceil(running * longest_s / self._queue_s) if longest_s > self._queue_s else 0
        for_ongoing = math.ceil(context.total_num_requests / self._ongoing_per_replica)
        wanted = min(max(for_queue, for_ongoing), 2 * running)  # limits the replicas that one burst starts
        lowest, highest = context.capacity_adjusted_min_replicas, context.capacity_adjusted_max_replicas
        return max(lowest, min(wanted, highest)), {}


def app(arguments: dict[str, Any]) -> serve.Application:
    """Builds the application, for `serve run vivavoce_ray:app NAME=VALUE ...`."""
    options = Options.model_validate(arguments)
    policy = AutoscalingPolicy(
        policy_function=ByQueue,
        policy_kwargs={"queue_s": options.queue_s, "ongoing_per_replica": options.ongoing_per_replica},
    )
    deployment = serve.deployment(
        name="vivavoce",
        max_ongoing_requests=options.max_ongoing_requests,
        graceful_shutdown_timeout_s=options.grace_s,
        ray_actor_options={"num_cpus": options.cpus, "num_gpus": options.gpus},
        autoscaling_config=AutoscalingConfig(
            min_replicas=options.min_replicas,
            max_replicas=options.max_replicas,
            upscale_delay_s=2,
            downscale_delay_s=300,
            policy=policy,
        ),
    )
    return deployment(serve.ingress(build_server)(Vivavoce)).bind()
