"""Accepts connections, as many as there are descriptors for. Further ones wait in the system's queue.

asyncio's own servers accept until no descriptor is left. Then nothing that needs a file works any more, and asyncio
writes thousands of lines a second about it.
"""

import asyncio
import errno
import logging
import os
import resource
import socket
import ssl
from collections.abc import Callable
from functools import partial

import uvicorn

from vivavoce_server.logs import Throttle

log = logging.getLogger(__name__)

WANTED_DESCRIPTORS = 65_536
SPARE_DESCRIPTORS = 16
"""Least number of descriptors that connections leave to files, pipes and processes."""
SPARE_SHARE = 8
"""One descriptor in this number is left to them."""
FULL_POLL_S = 0.05
"""Seconds between two looks for a free place."""
PAUSE_S = 1.0
"""Seconds without accepting after the system had no descriptor or memory for a connection."""
HANDSHAKE_S = 10.0
"""Seconds that a client has for the handshake of TLS."""
TLS_SHUTDOWN_S = 10.0
"""Seconds that a client has to answer the end of TLS."""
TlsContext = Callable[[], ssl.SSLContext]
OUT_OF_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


def raise_descriptor_limit() -> None:
    """Lets this process, and those that it starts, have as many descriptors as the system allows, within reason."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, WANTED_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def most_connections() -> int:
    """The number of connections for which this process has descriptors, beside what is open now and to spare."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = (WANTED_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft) - len(os.listdir("/dev/fd"))
    return max(1, free - max(SPARE_DESCRIPTORS, free // SPARE_SHARE))


class Acceptor:
    """Accepts the connections of one socket: `await run()`, until it is cancelled."""

    def __init__(
        self,
        listener: socket.socket,
        protocol: Callable[[], asyncio.BaseProtocol],
        count: Callable[[], int],
        most: int,
        tls: TlsContext | None = None,
    ) -> None:
        """`count` tells how many connections are open, `most` is their limit, and `tls` gives each a context."""
        self._listener = listener
        self._protocol = protocol
        self._count = count
        self._most = most
        self._tls = tls
        self._handshakes: set[asyncio.Task[None]] = set()
        self._told = Throttle(log, logging.WARNING)

    async def run(self) -> None:
        try:
            await self._run()
        finally:
            for handshake in self._handshakes:
                handshake.cancel()

    async def _run(self) -> None:
        self._listener.setblocking(False)
        while True:
            await self._wait_for_a_place()
            try:
                await self._accept()
            except OSError as error:
                # A peer that has gone meanwhile is no reason to pause.
                if error.errno in OUT_OF_RESOURCES:
                    self._told.tell("no connection is accepted for %g s: %s", PAUSE_S, error.strerror)
                    await asyncio.sleep(PAUSE_S)
            await asyncio.sleep(0)

    async def _accept(self) -> None:
        connection, _ = await asyncio.get_running_loop().sock_accept(self._listener)
        if self._tls is None:
            await self._connect(connection)
            return
        # Nobody else waits for a client that is slow to shake hands.
        handshake = asyncio.create_task(self._shake_hands(connection, self._tls()))
        self._handshakes.add(handshake)
        handshake.add_done_callback(self._handshakes.discard)

    async def _connect(self, connection: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(self._protocol, connection)
        except BaseException:
            connection.close()
            raise

    async def _shake_hands(self, connection: socket.socket, context: ssl.SSLContext) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._protocol,
                connection,
                ssl=context,
                ssl_handshake_timeout=HANDSHAKE_S,
                ssl_shutdown_timeout=TLS_SHUTDOWN_S,
            )
        except OSError as error:  # it speaks no TLS, knows no such certificate, or has gone
            log.debug("a TLS handshake failed: %s", error)
            connection.close()

    async def _wait_for_a_place(self) -> None:
        while self._count() + len(self._handshakes) >= self._most:
            self._told.tell("%d connections are open; further ones wait for a place", self._most)
            await asyncio.sleep(FULL_POLL_S)


class AcceptingServer(uvicorn.Server):
    """A uvicorn server that accepts by Acceptor. It serves sockets that are bound already."""

    tls: TlsContext | None = None
    """The context of each new connection; None without TLS."""
    _acceptors: tuple[asyncio.Task[None], ...] = ()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        listeners = sockets or []
        for listener in listeners:
            listener.listen(self.config.backlog)
        await super().startup(sockets=[])
        kind: Callable[..., asyncio.Protocol] = self.config.http_protocol_class
        protocol = partial(kind, config=self.config, server_state=self.server_state, app_state=self.lifespan.state)
        most = most_connections()
        acceptors = (Acceptor(listener, protocol, self._count, most, self.tls) for listener in listeners)
        self._acceptors = tuple(asyncio.create_task(acceptor.run()) for acceptor in acceptors)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for acceptor in self._acceptors:
            acceptor.cancel()
        await asyncio.gather(*self._acceptors, return_exceptions=True)
        await super().shutdown(sockets)

    def _count(self) -> int:
        return len(self.server_state.connections)
