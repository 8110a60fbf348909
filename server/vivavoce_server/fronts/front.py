"""A front: `python -m vivavoce_server.fronts.front FD`, started by supervisor.py. It serves the whole app.

Signals of the process group are the supervisor's. A thread reads what it says. A front whose supervisor has gone ends
at once, because nobody would end it, and it holds the sockets.
"""

import asyncio
import os
import shutil
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from fastapi import FastAPI
from vivavoce_engine import EngineError, Pipe, freeze_gc, pipe_to_parent

from vivavoce_server.access import Keyring
from vivavoce_server.app import create_app
from vivavoce_server.certificates import Certificate
from vivavoce_server.draining import DrainingServer
from vivavoce_server.engines import link_engine, open_store
from vivavoce_server.fronts.messages import Alive, Begin, Leave, Renew, ToFront
from vivavoce_server.ledger import Ledger
from vivavoce_server.logs import log_to_stderr
from vivavoce_server.metrics import FOLDER_VARIABLE
from vivavoce_server.reading import warm_up
from vivavoce_server.wyoming import open_wyoming

ALIVE_EVERY_S = 1.0
ORPHAN_S = 3.0
"""Seconds in which a front whose supervisor has gone ends in order."""


class FrontServer(DrainingServer):
    """A server that leaves signals to the supervisor."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def main() -> int:
    """Entry point of the process."""
    pipe = pipe_to_parent()
    try:
        begin = pipe.receive()
        assert isinstance(begin, Begin)
        stdout, stderr, memory, *listening = pipe.receive_descriptors(begin.descriptors)
    except EOFError:
        return 1
    for real, number in ((stdout, 1), (stderr, 2)):
        os.dup2(real, number)
        os.close(real)
    log_to_stderr(begin.config.log_level, as_json=begin.config.log_format == "json")
    listeners = [socket.socket(fileno=descriptor) for descriptor in listening]
    try:
        serve(pipe, begin, Ledger(begin.fronts, begin.number, memory), listeners)
    except EngineError as error:
        print(f"vivavoce: {error}", file=sys.stderr)
        return 1
    return 0


def serve(pipe: Pipe, begin: Begin, ledger: Ledger, listeners: list[socket.socket]) -> None:
    """Serves until the supervisor says otherwise.

    Raises:
        EngineError: an engine cannot be reached, or the folder of voices not be used.
    """
    config, store = begin.config, open_store(begin.config)
    engines = {
        name: link_engine(linked.model, linked.addresses, config, begin.engine_config, store)
        for name, linked in begin.models.items()
    }
    with ExitStack() as stack:
        for engine in engines.values():
            engine.start()
            stack.callback(engine.stop)
        warm_up((engine.info for engine in engines.values()), config)
        app = create_app(engines, config, Keyring(begin.keys, ledger))
        app.state.service.created_s = begin.created_s
        run(pipe, app, begin, listeners)


def run(pipe: Pipe, app: FastAPI, begin: Begin, listeners: list[socket.socket]) -> None:
    """Runs the app until it is told to leave."""
    app.openapi()  # takes 0.3 s, once; the first reader of the documentation would stop the event loop for as long
    listener, *others = listeners
    wyoming = open_wyoming(app, begin.config, others[0]) if others else None

    def begin_to_obey() -> None:
        threading.Thread(target=obey, args=(pipe, server), name="vivavoce-supervisor", daemon=True).start()
        show_life(pipe)

    server = FrontServer(app, begin.config, begin_to_obey, wyoming=wyoming)
    if (certificate := Certificate.of(begin.config)) is not None:
        server.secure(certificate)
    freeze_gc()  # before the event loop runs, which it would stop for a tenth of a second
    server.run(sockets=[listener])


def show_life(pipe: Pipe) -> None:
    """Tells the supervisor now and each second that the event loop goes on."""
    with suppress(OSError):  # the supervisor has gone, which its thread finds too
        pipe.send(Alive())
    asyncio.get_running_loop().call_later(ALIVE_EVERY_S, show_life, pipe)


def obey(pipe: Pipe, server: DrainingServer) -> None:
    """Does what the supervisor says, until it is gone."""
    while True:
        try:
            message = pipe.receive()
        except (EOFError, OSError):
            shutil.rmtree(os.environ[FOLDER_VARIABLE], ignore_errors=True)  # nobody else is there to remove it
            server.leave(now=True)
            threading.Timer(ORPHAN_S, os._exit, (1,)).start()
            return
        assert isinstance(message, ToFront)
        match message:
            case Renew(keys=keys):
                server.renew(keys)
            case Leave(now=now):
                server.leave(now=now)


if __name__ == "__main__":
    sys.exit(main())
