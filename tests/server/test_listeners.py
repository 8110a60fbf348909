"""A bound port belongs to one server, before it listens as well as after, and is free once the server is gone."""

import socket

import pytest
from vivavoce_server.listeners import bind, make_reusable


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_port_has_one_server_while_its_model_loads_and_later(host: str) -> None:
    with bind("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(OSError, match="Address already in use"):
            bind(host, port)
        make_reusable(listener)
        listener.listen()
        with pytest.raises(OSError, match="Address already in use"):
            bind(host, port)


def test_a_port_is_free_while_old_connections_pass_away() -> None:
    with bind("127.0.0.1", 0) as listener:
        address = listener.getsockname()
        make_reusable(listener)
        listener.listen()
        with socket.create_connection(address):
            accepted, _ = listener.accept()
            accepted.close()  # first, so that this end waits for late packets
    with bind(*address) as again:
        assert again.getsockname() == address


@pytest.mark.parametrize("host", ["nowhere.invalid", "a" * 70, "./socket", "192.0.2.1"])
def test_a_host_that_has_no_address_here_is_an_os_error(host: str) -> None:
    with pytest.raises(OSError, match=r"."):
        bind(host, 0)
