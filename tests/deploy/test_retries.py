"""Another server answers a request whose server stops or is gone, even before a health check has noticed."""

import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.server.test_cli import SPEECH_BODY, address_of, raw_request
from tests.support.fleet import BALANCER_NAMES, Balancer, Replica, haproxy, nginx, replicas
from tests.support.listening import LONG, listen
from tests.support.programs import needs, path_of
from tests.support.speaking import assert_same_samples
from tests.support.waiting import wait_until

REQUESTS = 6
"""Enough that either server is asked, since they take turns while both are idle."""


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[Replica]]:
    with replicas(tmp_path, "--model", "fake") as pair:
        yield pair


@pytest.fixture(params=BALANCER_NAMES)
def balancer(request: pytest.FixtureRequest, servers: list[Replica], tmp_path: Path) -> Iterator[Balancer]:
    """HAProxy looks at the servers so seldom that it cannot know what happened to them."""
    starting = nginx(tmp_path, servers) if request.param == "nginx" else haproxy(tmp_path, servers, "check inter 1h")
    with starting as running:
        yield running


def test_neither_a_draining_server_nor_one_that_is_gone_costs_anybody_anything(
    balancer: Balancer, servers: list[Replica]
) -> None:
    stopping, _ = servers
    # A listener that does not read keeps it draining for as long as the test needs.
    with socket.create_connection(address_of(stopping.url)) as listener:
        listener.sendall(raw_request(SPEECH_BODY))
        assert listener.recv(4096)
        stopping.send(signal.SIGTERM)
        wait_until(lambda: httpx.get(f"{stopping.url}/ready").status_code == 503)
        heard = [listen(balancer.url, LONG) for _ in range(REQUESTS)]
    assert stopping.wait() == 0
    heard += [listen(balancer.url, LONG) for _ in range(REQUESTS)]
    assert [one.status for one in heard] == [200] * 2 * REQUESTS
    for one in heard:
        assert one.complete
        assert_same_samples(one.pcm, heard[0].pcm)
    assert httpx.get(f"{balancer.url}/metrics").status_code == 404, "servers' own metrics are not for the public"


@needs("haproxy")
def test_the_shipped_configuration_is_valid() -> None:
    config = Path(__file__).parents[2] / "deploy/compose/haproxy.cfg"
    subprocess.run([path_of("haproxy"), "-c", "-f", str(config)], check=True, capture_output=True)
