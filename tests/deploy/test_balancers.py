"""Two servers on the shipped voice behind real balancers, with the configurations that deploy/ ships."""

import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.fleet import BALANCER_NAMES, BALANCERS, Balancer, Replica, replicas
from tests.support.listening import LONG, SPEECH, Heard, listen, listen_while_writing, listeners, load
from tests.support.speaking import largest_step
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Replica]]:
    with replicas(tmp_path_factory.mktemp("servers"), "--max-context", "512", "--grace-s", "120") as pair:
        yield pair


@pytest.fixture(scope="module", params=BALANCER_NAMES)
def balancer(
    request: pytest.FixtureRequest, servers: list[Replica], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Balancer]:
    folder: Path = tmp_path_factory.mktemp(request.param)
    with BALANCERS[request.param](folder, servers) as running:
        yield running


def same_speech(one: Heard, other: Heard) -> bool:
    """As far as both go. Pieces of other lengths are decoded by other sums: the last bit may round the other way."""
    length = min(len(one.samples), len(other.samples))
    return length > 0 and largest_step(one.samples[:length], other.samples[:length]) <= 1


def test_speech_arrives_while_it_is_made(balancer: Balancer, servers: list[Replica]) -> None:
    with httpx.stream("POST", balancer.url + SPEECH, json=LONG) as response:
        assert response.status_code == 200
        pieces = response.iter_raw()
        assert next(pieces)
        assert sum(server.rows for server in servers) == 1, "it is still being made"
    wait_until(lambda: sum(server.rows for server in servers) == 0)


async def test_live_text_is_spoken_as_it_comes(balancer: Balancer) -> None:
    await listen_while_writing(balancer.url)


def test_a_server_that_dies_takes_only_its_own_streams_along(balancer: Balancer, servers: list[Replica]) -> None:
    victim, other = servers
    with listeners(balancer.url, 4, LONG) as running:
        assert [server.rows for server in servers] == [2, 2], "each new one goes where fewer run"
        victim.send(signal.SIGKILL)
        victim.wait()
        meanwhile = [listen(balancer.url, LONG | {"input": "Yes."}) for _ in range(2)]
        heard = [listener.result() for listener in running]
    assert [one.status for one in meanwhile] == [200, 200]
    assert all(one.complete for one in meanwhile)
    whole = [one for one in heard if one.complete]
    broken = [one for one in heard if not one.complete]
    assert len(whole) == len(broken) == 2
    assert same_speech(*whole)
    assert len(whole[0].pcm) == len(whole[1].pcm)
    assert all(len(one.pcm) < len(whole[0].pcm) and same_speech(one, whole[0]) for one in broken)
    assert other.rows == 0
    victim.launch()
    victim.await_ready()
    wait_until(lambda: balancer.sees(victim))


def test_a_rolling_restart_under_load_loses_nothing(balancer: Balancer, servers: list[Replica]) -> None:
    streams: list[Heard] = []
    with load(balancer.url, 1) as requests:
        for server in servers:
            wait_until(lambda: all(balancer.sees(each) and each.ended("completed") for each in servers))
            # Three: the load's one request can stand in for a stream on the other server, never for two.
            with listeners(balancer.url, 3, LONG | {"max_new_tokens": 60}) as running:
                assert server.rows > 0
                server.send(signal.SIGTERM)
                streams += [listener.result() for listener in running]
            assert server.wait() == 0
            server.launch()
            server.await_ready()
    assert len(requests) > 4
    assert {one.status for one in requests + streams} == {200}
    assert all(one.complete for one in requests + streams)
    assert {len(one.pcm) for one in streams} == {len(streams[0].pcm)}
