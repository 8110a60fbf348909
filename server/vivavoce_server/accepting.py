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
from contextlib import suppress
from functools import partial
from typing import Any

import uvicorn

from vivavoce_server.ledger import Ledger
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
GIVE_WAY_S, GIVE_WAY_TIMES = 0.001, 4
"""Seconds that a process gives others to take a connection, and how often before it takes the connection itself."""
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
        gives_way: Callable[[], bool] = lambda: False,
    ) -> None:
        """`count` tells how many connections are open, `most` is their limit, and `tls` gives each a context.

        `gives_way` tells whether another process that accepts from the same socket should go first.
        """
        self._listener = listener
        self._protocol = protocol
        self._count = count
        self._most = most
        self._tls = tls
        self._gives_way = gives_way
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
        connection = await self._next_connection()
        if self._tls is None:
            await self._connect(connection)
            return
        # Nobody else waits for a client that is slow to shake hands.
        handshake = asyncio.create_task(self._shake_hands(connection, self._tls()))
        self._handshakes.add(handshake)
        handshake.add_done_callback(self._handshakes.discard)

    async def _next_connection(self) -> socket.socket:
        """The next connection that no other process takes. A process that gives way leaves them some time for it."""
        while True:
            await self._wait_until_readable()
            for _ in range(GIVE_WAY_TIMES):
                if not self._gives_way():
                    break
                await asyncio.sleep(GIVE_WAY_S)
            with suppress(BlockingIOError, InterruptedError):
                connection, _ = self._listener.accept()
                connection.setblocking(False)
                return connection

    async def _wait_until_readable(self) -> None:
        loop, readable = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._listener, readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(self._listener)

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


class _Connections(set[Any]):
    """The open connections of a server. `on_change` is called whenever their number has changed."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        super().__init__()
        self._on_change = on_change

    def add(self, element: Any) -> None:  # noqa: ANN401  # uvicorn's protocols
        super().add(element)
        self._on_change()

    def discard(self, element: Any) -> None:  # noqa: ANN401
        super().discard(element)
        self._on_change()


class AcceptingServer(uvicorn.Server):
    """A uvicorn server that accepts by Acceptor. It serves sockets that are bound already."""

    tls: TlsContext | None = None
    """The context of each new connection; None without TLS."""

    def __init__(self, config: uvicorn.Config, ledger: Ledger | None = None) -> None:
        """`ledger` counts the connections of each process that accepts from the same sockets; None: of this one."""
        super().__init__(config)
        self._ledger = ledger or Ledger()
        self._acceptors: tuple[asyncio.Task[None], ...] = ()
        self.server_state.connections = _Connections(self._tell_ledger)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        listeners = sockets or []
        for listener in listeners:
            listener.listen(self.config.backlog)
        await super().startup(sockets=[])
        kind: Callable[..., asyncio.Protocol] = self.config.http_protocol_class
        protocol = partial(kind, config=self.config, server_state=self.server_state, app_state=self.lifespan.state)
        most, ledger = most_connections(), self._ledger
        acceptors = (
            Acceptor(listener, protocol, self._count, most, self.tls, lambda: ledger.is_ahead) for listener in listeners
        )
        self._acceptors = tuple(asyncio.create_task(acceptor.run()) for acceptor in acceptors)
        self._tell_ledger()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for acceptor in self._acceptors:
            acceptor.cancel()
        await asyncio.gather(*self._acceptors, return_exceptions=True)
        self._acceptors = ()
        self._tell_ledger()
        await super().shutdown(sockets)

    def _count(self) -> int:
        return len(self.server_state.connections)

    def _tell_ledger(self) -> None:
        self._ledger.count_connections(self._count() if self._acceptors else None)
