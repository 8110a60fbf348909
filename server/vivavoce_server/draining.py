"""A uvicorn server that drains: after a signal it refuses new speech, finishes running speech, and exits.

SIGHUP reloads the API keys and the certificate. Stored voices need no reload, because every look-up reads the disk.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import FrameType

import uvicorn
from fastapi import FastAPI

from vivavoce_server.accepting import AcceptingServer
from vivavoce_server.access import KeyEntry, Keyring, read_keys_again
from vivavoce_server.certificates import Certificate
from vivavoce_server.config import ServerConfig
from vivavoce_server.listeners import make_reusable
from vivavoce_server.logs import log_bug_of_loop
from vivavoce_server.service import Service
from vivavoce_server.sighup import SighupHandler
from vivavoce_server.uvicorn_sockets import connection_options
from vivavoce_server.wyoming import WyomingServer

log = logging.getLogger(__name__)

CLOSE_CONNECTIONS_S = 1
"""Seconds for the remaining responses once all speech has ended, and for telling the clients that are cut off."""

CLOSE = (b"connection", b"close")
"""Header by which a client of a server that drains opens its next connection elsewhere."""


class DrainingServer(AcceptingServer):
    """The server process's reaction to signals.

    The first SIGTERM or SIGINT drains the server within `grace_s`. Live connections that say nothing are told at once.
    The server keeps listening, so that a load balancer reads "not ready" instead of a refused connection. The second
    signal makes it exit at once. SIGHUP reloads keys and certificate, or drains if the terminal has been closed.
    """

    def __init__(
        self,
        app: FastAPI,
        config: ServerConfig,
        on_started: Callable[[], None],
        sighup: SighupHandler | None = None,
        wyoming: WyomingServer | None = None,
    ) -> None:
        """`sighup` None leaves SIGHUP unhandled. `wyoming` lives as long as this server."""
        service, keyring = app.state.service, app.state.keyring
        assert isinstance(service, Service)
        assert isinstance(keyring, Keyring)
        super().__init__(
            uvicorn.Config(
                app,
                log_level=None,
                log_config=None,
                server_header=False,
                access_log=False,
                timeout_graceful_shutdown=CLOSE_CONNECTIONS_S,
                **connection_options(config),
            ),
            keyring.ledger,
        )
        self._service = service
        self._keyring = keyring
        self._settings = config
        self._on_started = on_started
        self._sighup = sighup
        self._certificate: Certificate | None = None
        self._wyoming = wyoming
        self._watching: asyncio.Task[None] | None = None
        self._draining: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def secure(self, certificate: Certificate) -> None:
        """Speaks TLS with a certificate, which SIGHUP and a change of its files renew. Call it before `run`."""
        self._certificate = certificate
        self.tls = lambda: certificate.context

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(log_bug_of_loop)
        if self._sighup is not None:
            self._sighup.serve(self._loop, self._reload, self._start_draining)
        if self._certificate is not None:
            self._watching = asyncio.create_task(self._certificate.watch())
        for listener in sockets or ():
            make_reusable(listener)
        await super().startup(sockets)
        if self._wyoming is not None:
            await self._wyoming.start()
        self._on_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._watching is not None:
            self._watching.cancel()
        if self._wyoming is not None:
            await self._wyoming.stop()
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # uvicorn must not record the signal: it would raise it again after a clean stop, and the exit status would be a
        # signal's.
        self.leave(now=self._draining is not None)

    def leave(self, *, now: bool) -> None:
        """Ends the server: at once, or when its speech has ended. Call it on any thread."""
        if self._loop is None or now:
            self.should_exit = self.force_exit = True
        else:
            self._loop.call_soon_threadsafe(self._start_draining)

    def renew(self, keys: Sequence[tuple[str, KeyEntry]] | None) -> None:
        """Reads the certificate again, and takes other keys; None keeps those that there are. Call it on any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._renew, keys)

    def _reload(self) -> None:
        self._renew(read_keys_again(self._settings))

    def _renew(self, keys: Sequence[tuple[str, KeyEntry]] | None) -> None:
        if self._certificate is not None:
            self._certificate.reload()
        if keys is not None:
            self._keyring.replace(keys)

    def _start_draining(self) -> None:
        if self._draining is None:
            # The headers of all responses: those of this second, and those that uvicorn makes each second.
            for headers in (self.server_state.default_headers, self.config.encoded_headers):
                headers.append(CLOSE)
            self._draining = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        grace_s = self._settings.grace_s
        log.info("draining: %d utterances go on for up to %g s", self._service.speaking, grace_s)
        self._service.drain()
        try:
            async with asyncio.timeout(grace_s):
                await self._service.silence.wait()
        except TimeoutError:
            log.warning("%d utterances are cut off after %g s", self._service.speaking, grace_s)
            await self._cut_off()
        # uvicorn would close them with a code of its own.
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_CONNECTIONS_S):
                await self._service.no_sessions.wait()
        self.should_exit = True

    async def _cut_off(self) -> None:
        """Fails running speech, so that its listeners get an error before their connections are closed."""
        stopping = [asyncio.to_thread(engine.stop) for engine in self._service.engines.values()]
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_CONNECTIONS_S):
                await asyncio.gather(*stopping)
                await self._service.silence.wait()
