"""Sockets that listen: bound before the models load, so that an occupied port is told at once."""

import socket


def bind(host: str, port: int) -> socket.socket:
    """A socket bound to a port of its own, also while connections of an earlier server are passing away.

    No other server can bind the port from then on. `make_reusable` comes before the socket listens.

    Raises:
        OSError: the port is taken or may not be used, or the host has no address here.
    """
    try:
        # asyncio turns Nagle's algorithm off only on a socket that names its protocol. Nagle costs 40 ms per response.
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except UnicodeError as error:
        raise OSError(f"there is no such host: {error}") from error
    listener = socket.socket(family, kind, proto)
    try:
        make_reusable(listener)
        listener.bind(address)
        # Linux lets two sockets with this option bind one port, until one of them listens. That is after the load.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    except OSError:
        listener.close()
        raise
    return listener


def make_reusable(listener: socket.socket) -> None:
    """Lets the port be bound while old connections, which inherit the option, are passing away."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
