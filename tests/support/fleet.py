"""Two servers behind the project's own configuration of a real HAProxy or nginx, all processes on loopback.

The configurations are the files in deploy/. Only the addresses in them are replaced.
"""

import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.programs import needs, path_of
from tests.support.server_process import SERVE, START_DEADLINE_S
from tests.support.waiting import wait_until

DEPLOY = Path(__file__).parents[2] / "deploy"
STOP_DEADLINE_S = 150.0
CHECK = "check inter 1s fastinter 500ms"
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def answers(url: str) -> bool:
    try:
        return httpx.get(url).status_code == 200
    except httpx.TransportError:
        return False


@contextmanager
def running(command: list[str], log: Path, env: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A process whose output goes to a file. It is ended with SIGTERM, and killed if that is not enough."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, **(env or {})})
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Replica:
    """One server. It keeps its port over restarts."""

    def __init__(self, folder: Path, name: str, flags: tuple[str, ...]) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = folder / f"{name}.log"
        self._command = [*SERVE, "--port", str(self.port), *flags]
        self._process: subprocess.Popen[bytes] | None = None

    def launch(self) -> None:
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command, stdout=output, stderr=output, env={**os.environ, **ONE_THREAD}
            )

    def await_ready(self) -> None:
        process = self._process
        assert process is not None
        wait_until(lambda: process.poll() is not None or answers(f"{self.url}/ready"), START_DEADLINE_S)
        assert process.poll() is None, self._log.read_text()

    def send(self, signum: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(signum)

    def wait(self) -> int:
        assert self._process is not None
        return self._process.wait(STOP_DEADLINE_S)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def metrics(self) -> dict[tuple[str, str], float]:
        """Values of metrics by (sample, its outcome or "")."""
        text = httpx.get(f"{self.url}/metrics").text
        return {
            (sample.name, sample.labels.get("outcome", "")): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    @property
    def rows(self) -> int:
        return int(self.metrics()["vivavoce_active_rows", ""])

    def ended(self, outcome: str) -> int:
        return int(self.metrics().get(("vivavoce_requests_total", outcome), 0))


@contextmanager
def replicas(folder: Path, *flags: str) -> Iterator[list[Replica]]:
    """Two ready servers that store their voices in one folder."""
    pair = [Replica(folder, name, ("--voices-dir", str(folder / "voices"), *flags)) for name in ("one", "two")]
    with ExitStack() as stack:
        for replica in pair:  # one after the other, because they would share the cores
            stack.callback(replica.stop)
            replica.launch()
            replica.await_ready()
        yield pair


def replaced(text: str, old: str, new: str) -> str:
    """Replaces a text that occurs exactly once, so that a test fails if the file no longer contains it."""
    assert text.count(old) == 1, f"{old!r} is there {text.count(old)} times"
    return text.replace(old, new)


@dataclass(frozen=True)
class Balancer:
    url: str
    metrics_port: int | None
    sees: Callable[[Replica], bool]
    """True if the balancer reports that it sends requests to this server."""


@contextmanager
def haproxy(folder: Path, servers: list[Replica], check: str = CHECK) -> Iterator[Balancer]:
    port, metrics_port = free_port(), free_port()
    text = replaced((DEPLOY / "compose/haproxy.cfg").read_text(), CHECK, check)
    text = replaced(text, "bind :8000", f"bind 127.0.0.1:{port}")
    text = replaced(text, "bind :8405", f"bind 127.0.0.1:{metrics_port}")
    template = "    server-template vivavoce 16 vivavoce:8000 resolvers docker init-addr none\n"
    lines = [f"    server server-{server.port} 127.0.0.1:{server.port}\n" for server in servers]
    text = replaced(text, template, "".join(lines))
    config = folder / "haproxy.cfg"
    config.write_text(text)

    def sees(server: Replica) -> bool:
        wanted = f'haproxy_server_status{{proxy="vivavoce",server="server-{server.port}",state="UP"}} 1'
        return wanted in httpx.get(f"http://127.0.0.1:{metrics_port}/metrics").text

    with running([path_of("haproxy"), "-db", "-f", str(config)], folder / "haproxy.log"):
        balancer = Balancer(f"http://127.0.0.1:{port}", metrics_port, sees)
        wait_until(lambda: answers(f"{balancer.url}/ready") and all(map(sees, servers)))
        yield balancer


@contextmanager
def nginx(folder: Path, servers: list[Replica]) -> Iterator[Balancer]:
    port = free_port()
    text = (DEPLOY / "compose/nginx.conf").read_text()
    text = replaced(text, "listen 8000;", f"listen 127.0.0.1:{port};")
    line = "        server vivavoce:8000 max_fails=1 fail_timeout=2s;\n"
    text = replaced(text, line, "".join(line.replace("vivavoce:8000", f"127.0.0.1:{s.port}") for s in servers))
    # The folders that nginx was built with belong to root.
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    text = replaced(
        text, "http {\n", "http {\n" + "".join(f"    {kind}_temp_path {folder}/{kind};\n" for kind in kinds)
    )
    config = folder / "nginx.conf"
    config.write_text(text)
    settings = f"daemon off; pid {folder}/nginx.pid;"
    with running([path_of("nginx"), "-c", str(config), "-g", settings], folder / "nginx.log"):
        balancer = Balancer(f"http://127.0.0.1:{port}", None, lambda _: True)
        wait_until(lambda: answers(f"{balancer.url}/ready"))
        yield balancer


BALANCERS = {"haproxy": haproxy, "nginx": nginx}
BALANCER_NAMES = [pytest.param(name, marks=needs(name)) for name in BALANCERS]
