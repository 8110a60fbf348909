"""uvicorn with a gentle stop: on a signal the server refuses new speech, finishes what runs, and then leaves."""

import asyncio
import logging
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

from vivavoce_server.config import ServerConfig
from vivavoce_server.service import Service
from vivavoce_server.uvicorn_sockets import websocket_options

log = logging.getLogger(__name__)

CLOSE_CONNECTIONS_S = 1
"""Seconds for responses without speech after everything that spoke is over."""


class DrainingServer(uvicorn.Server):
    """First SIGTERM or SIGINT: drain within `grace_s`, still listening, so that a load balancer reads "not ready"
    instead of a refused connection. Second: leave at once.
    """

    def __init__(self, app: FastAPI, config: ServerConfig, on_started: Callable[[], None]) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                log_level=None,
                log_config=None,
                server_header=False,
                access_log=False,
                timeout_graceful_shutdown=CLOSE_CONNECTIONS_S,
                **websocket_options(),
            )
        )
        service = app.state.service
        assert isinstance(service, Service)
        self._service = service
        self._grace_s = config.grace_s
        self._on_started = on_started
        self._draining: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._loop = asyncio.get_running_loop()
        self._on_started()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # Not recorded by uvicorn, which would raise it again after a clean stop and so end with a signal's status.
        if self._loop is None or self._draining is not None:
            self.should_exit = self.force_exit = True
            return
        self._loop.call_soon_threadsafe(self._start_draining)

    def _start_draining(self) -> None:
        if self._draining is None:
            self._draining = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        log.info("draining: %d utterances go on for up to %g s", self._service.speaking, self._grace_s)
        self._service.drain()
        try:
            async with asyncio.timeout(self._grace_s):
                await self._service.silence.wait()
        except TimeoutError:
            log.warning("%d utterances are cut off after %g s", self._service.speaking, self._grace_s)
        self.should_exit = True
