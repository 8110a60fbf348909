"""Serve a speech model over HTTP. Each flag is also an environment variable: --max-streams is VIVAVOCE_MAX_STREAMS."""

import argparse
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from fastapi import FastAPI
from vivavoce_engine import EngineError, SpeechEngine, freeze_gc

from vivavoce_server.accepting import raise_descriptor_limit
from vivavoce_server.access import Keyring, load_keyring
from vivavoce_server.app import create_app
from vivavoce_server.config import ServerConfig, explain, load_settings, setting_help
from vivavoce_server.draining import DrainingServer
from vivavoce_server.engines import open_engines
from vivavoce_server.listeners import bind
from vivavoce_server.logs import log_to_stderr
from vivavoce_server.marks import open_marker
from vivavoce_server.reading import warm_up
from vivavoce_server.server_names import is_loopback
from vivavoce_server.sighup import SighupHandler
from vivavoce_server.wyoming import WyomingServer
from vivavoce_server.wyoming_announcement import Announcement, check_announcement

log = logging.getLogger(__name__)

PROGRESS_EVERY_S = 5.0
USAGE_ERROR, FAILURE = 2, 1
INTERRUPTED = 130
"""Exit status of a shell for SIGINT."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds one flag for each setting."""
    for name, help_text in setting_help().items():
        flag = "--" + name.replace("_", "-")
        action = "append" if name == "model" else "store"
        parser.add_argument(flag, dest=name, default=None, action=action, help=help_text.replace("%", "%%"))


def run(args: argparse.Namespace) -> int:
    """Loads and warms up the models, serves until SIGTERM or SIGINT, then drains. Returns the exit status."""
    sighup = SighupHandler()
    raise_descriptor_limit()
    flags = {name: getattr(args, name) for name in setting_help() if getattr(args, name) is not None}
    try:
        config, engine_config = load_settings(flags)
        keyring = load_keyring(config)  # reports invalid keys before the model loads
        check_announcement(config)
        open_marker(config.mark_audio)  # loads the watermark before the model
    except ValueError as error:
        print(f"vivavoce: {explain(error)}", file=sys.stderr)
        return USAGE_ERROR
    log_to_stderr(config.log_level, as_json=config.log_format == "json")
    log.info("settings: %s %s", config, engine_config)
    warn_if_open(config, keyring)
    listeners = []
    addresses = [(config.host, config.port)]
    if config.wyoming_port:
        addresses.append((config.wyoming_host, config.wyoming_port))
    for host, port in addresses:
        try:
            listeners.append(bind(host, port))
        except OSError as error:
            print(f"vivavoce: cannot listen on {host}:{port}: {error}", file=sys.stderr)
            return FAILURE
    engines: Mapping[str, SpeechEngine] = {}
    try:
        engines = open_engines(config, engine_config)
        with progress(f"loading and warming up {', '.join(config.model) or 'the shipped voice'}"):
            warm_up((engine.info for engine in engines.values()), config)
            for engine in engines.values():
                engine.start()
        serve(create_app(engines, config, keyring), config, listeners, sighup)
    except EngineError as error:
        print(f"vivavoce: {error}", file=sys.stderr)
        return FAILURE
    except KeyboardInterrupt:  # while the models load; later the signal drains
        print("vivavoce: interrupted before it served", file=sys.stderr)
        return INTERRUPTED
    finally:
        for engine in engines.values():
            engine.stop()
    return 0


def warn_if_open(config: ServerConfig, keyring: Keyring) -> None:
    """Logs a warning if strangers may reach the server and need no key."""
    if not keyring.wanted and not is_loopback(config.host):
        message = "open to the network without keys: all who reach %s:%d may speak, and store and delete voices; "
        log.warning(message + "set --api-keys or --api-keys-file, or --host 127.0.0.1", config.host, config.port)
    if config.wyoming_port and not is_loopback(config.wyoming_host):
        message = "the Wyoming protocol has no keys: all who reach %s:%d may speak"
        log.warning(message, config.wyoming_host, config.wyoming_port)


def serve(app: FastAPI, config: ServerConfig, listeners: Sequence[socket.socket], sighup: SighupHandler) -> None:
    """Runs the app on a bound socket until a signal. Prints the address as soon as the server answers.

    `listeners` are the socket for HTTP, and the one for the Wyoming protocol if there is one.
    """
    app.openapi()  # takes 0.3 s, once; the first reader of the documentation would stop the event loop for as long
    listener, *others = listeners
    announcement = Announcement(others[0]) if config.wyoming_zeroconf else None
    wyoming = WyomingServer(app.state.service, others[0], announcement) if others else None
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "localhost"
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    _, first = app.state.service.find_model(None)

    def begin() -> None:
        freeze_gc()
        announce(url, first, config)
        if wyoming is not None:
            print(f"Wyoming clients find it at tcp://{config.wyoming_host}:{config.wyoming_port}", flush=True)

    DrainingServer(app, config, begin, sighup, wyoming).run(sockets=[listener])


def announce(url: str, engine: SpeechEngine, config: ServerConfig) -> None:
    voice = engine.info.speakers[0] if engine.info.speakers else "alloy"
    print(f"Vivavoce speaks at {url} (docs: {url}/docs). Try:", flush=True)
    if engine.info.task == "base" and not engine.info.speakers:  # the model speaks only with voices that it is given
        voice = "me"
        print(f"vivavoce voices add me RECORDING.wav --consent 'This is my voice.' --url {url}", flush=True)
    print(
        f"curl -s {url}/v1/audio/speech -H 'Content-Type: application/json' "
        f"""-d '{{"input": "Hello, this is Vivavoce.", "voice": "{voice}", "response_format": "wav"}}' -o hello.wav""",
        flush=True,
    )
    if config.address_file is not None:
        # Renaming is atomic: a process that waits for the file never reads half a URL.
        partial = config.address_file.with_name(config.address_file.name + ".partial")
        partial.write_text(url, encoding="utf-8")
        os.replace(partial, config.address_file)


@contextmanager
def progress(what: str) -> Iterator[None]:
    """Prints the current activity at once and every few seconds, so that the user sees why a start takes long."""
    started_s = time.monotonic()
    done = threading.Event()

    def tell() -> None:
        while not done.wait(PROGRESS_EVERY_S):
            print(f"  ... {what}, {time.monotonic() - started_s:.0f} s", file=sys.stderr, flush=True)

    print(f"{what} ...", file=sys.stderr, flush=True)
    teller = threading.Thread(target=tell, name="vivavoce-progress", daemon=True)
    teller.start()
    try:
        yield
    finally:
        done.set()
        teller.join()
    print(f"{what} took {time.monotonic() - started_s:.1f} s", file=sys.stderr, flush=True)
