"""Serve a speech model over HTTP."""

import argparse
import asyncio
import logging
import os
import shlex
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass
from itertools import chain

from fastapi import FastAPI
from vivavoce_client.arguments import Switch
from vivavoce_engine import (
    EngineConfig,
    EngineError,
    EngineHost,
    Model,
    ModelInfo,
    SpeechEngine,
    Thinker,
    freeze_gc,
    private_folder,
    recognizer_for,
)

from vivavoce_server.accepting import raise_descriptor_limit
from vivavoce_server.access import Keyring, read_keys
from vivavoce_server.app import create_app
from vivavoce_server.certificates import Certificate
from vivavoce_server.config import ServerConfig, Settings, load_settings, setting_help
from vivavoce_server.draining import DrainingServer
from vivavoce_server.engines import engines_of, open_hosts, open_thinkers, read_models
from vivavoce_server.fronts.count import count_fronts
from vivavoce_server.fronts.messages import Keys, LinkedModel
from vivavoce_server.fronts.supervisor import Plan, Supervisor
from vivavoce_server.interrupts import InterruptHandler
from vivavoce_server.listeners import bind
from vivavoce_server.logs import log_settings, log_to_stderr, printable
from vivavoce_server.marks import open_marker
from vivavoce_server.reading import warm_up
from vivavoce_server.server_names import is_loopback
from vivavoce_server.setting_groups import grouped
from vivavoce_server.setting_sources import flag_of
from vivavoce_server.setting_texts import is_switch, metavar
from vivavoce_server.sighup import SighupHandler
from vivavoce_server.tracing import check_tracing
from vivavoce_server.unix_socket import UnixSocket
from vivavoce_server.wyoming import open_wyoming
from vivavoce_server.wyoming_announcement import check_announcement

log = logging.getLogger(__name__)

EPILOG = """\
Each option is also an environment variable, such as VIVAVOCE_MAX_STREAMS, and
a line of the file that --config names, such as max-streams = 16. The command
line comes first, then the environment, then the file. Defaults are in
brackets.
"""
PROGRESS_EVERY_S = 5.0
USAGE_ERROR, FAILURE = 2, 1
INTERRUPTED = 130
"""Exit status of a shell for SIGINT."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds one option for each setting, in groups."""
    parser.usage = "%(prog)s [OPTIONS]"
    parser.epilog = parser.epilog or EPILOG
    texts = setting_help()
    for title, names in grouped(Settings.model_fields).items():
        group = parser.add_argument_group(title)
        for name in names:
            field, help_text = Settings.model_fields[name], texts[name].replace("%", "%%")
            if is_switch(field):
                group.add_argument(flag_of(name), dest=name, default=None, action=Switch, help=help_text)
            else:
                action = "append" if name == "model" else "store"
                group.add_argument(
                    flag_of(name), dest=name, action=action, metavar=metavar(name, field), help=help_text
                )


def given_flags(args: argparse.Namespace) -> dict[str, object]:
    """The settings that the command line gives."""
    return {name: value for name in Settings.model_fields if (value := getattr(args, name)) is not None}


@dataclass(frozen=True)
class Start:
    """Settings and signals that a start has read and checked. `output`: descriptors of the real stdout and stderr."""

    config: ServerConfig
    engine_config: EngineConfig
    keys: Keys
    certificate: Certificate | None
    interrupts: InterruptHandler
    sighup: SighupHandler
    output: tuple[int, int] = (1, 2)


def run(args: argparse.Namespace) -> int:
    """Loads and warms up the models, serves until SIGTERM or SIGINT, then drains. Returns the exit status."""
    interrupts = InterruptHandler()
    sighup = SighupHandler(interrupts)
    raise_descriptor_limit()
    try:
        config, engine_config = load_settings(given_flags(args))
        keys = tuple(read_keys(config))  # reports invalid keys before the model loads
        certificate = Certificate.of(config)
        check_announcement(config)
        check_tracing(config)
        recognizer_for(engine_config.ref_text_judge)  # finds the package, and loads nothing
        open_marker(config.mark_audio)  # loads the watermark before the model
    except ValueError as error:
        print(f"vivavoce: {printable(str(error))}", file=sys.stderr)
        return USAGE_ERROR
    output = log_to_stderr(config.log_level, as_json=config.log_format == "json")
    log_settings({**config.model_dump(mode="json"), **asdict(engine_config)})
    warn_if_open(config, has_keys=bool(keys))
    start = Start(config, engine_config, keys, certificate, interrupts, sighup, output)
    with ExitStack() as stack:
        try:
            listeners = open_listeners(config, stack)
            models = read_models(config, engine_config)
            fronts = count_fronts(config, engine_config, [model.info for model in models.values()])
            if fronts == 1:
                serve_alone(start, models, listeners)
            else:
                serve_by_fronts(start, models, listeners, fronts)
        except (EngineError, NoListener) as error:
            print(f"vivavoce: {error}", file=sys.stderr)
            return FAILURE
        except KeyboardInterrupt:  # while the models load; later the signal drains
            print("vivavoce: interrupted before it served", file=sys.stderr)
            return INTERRUPTED
    return 0


def serve_alone(start: Start, models: Mapping[str, Model], listeners: Sequence[socket.socket]) -> None:
    """Serves from this process. Raises EngineError if a model cannot be loaded."""
    config, interrupts = start.config, start.interrupts
    engines: Mapping[str, SpeechEngine] = {}
    thinkers: Mapping[str, Thinker] = {}
    try:
        engines = engines_of(models, config, start.engine_config)
        thinkers = open_thinkers(config, start.engine_config, engines)
        with loading(config):
            with interrupts.held():
                warm_up((engine.info for engine in engines.values()), config)
            for thinker in thinkers.values():  # first: what the engines take of a card depends on what is left
                thinker.start()
            for engine in engines.values():
                engine.start()
        with interrupts.held():
            app = create_app(engines, config, Keyring(start.keys), thinkers)
        serve(app, config, listeners, start.sighup, start.certificate)
    finally:
        for thinker in thinkers.values():
            thinker.stop()
        for engine in engines.values():
            engine.stop()


def serve_by_fronts(start: Start, models: Mapping[str, Model], listeners: Sequence[socket.socket], fronts: int) -> None:
    """Serves from processes of their own, which this one starts and keeps, beside the engines.

    Raises:
        EngineError: a model cannot be loaded, or a front not be started.
    """
    config = start.config
    hosts: Mapping[str, Sequence[EngineHost]] = {}
    with private_folder() as folder, start.interrupts.also_at_sigterm():
        try:
            hosts = open_hosts(models, config, start.engine_config, folder)
            with loading(config):
                for of_model in hosts.values():
                    for host in of_model:
                        host.begin()
                    for host in of_model:
                        host.wait_until_started()
            log.info("starting %d fronts", fronts)
            linked = {
                name: LinkedModel(model, tuple(host.address for host in hosts[name])) for name, model in models.items()
            }
            plan = Plan(fronts, config, start.engine_config, linked, listeners, start.output, folder)
            infos = [model.info for model in models.values()]
            first = next((info for info in infos if info.task != "chat"), infos[0])

            def begin() -> None:
                announce(url_of(listeners[0], is_secure=start.certificate is not None), first, config)

            freeze_gc()
            asyncio.run(Supervisor(plan, start.keys, start.sighup, begin).run())
        finally:
            for host in chain.from_iterable(hosts.values()):
                host.stop()


class NoListener(Exception):
    """An address cannot be listened on. The message names it and the reason."""


def open_listeners(config: ServerConfig, stack: ExitStack) -> list[socket.socket]:
    """Binds the socket for HTTP, and the one for the Wyoming protocol if there is one.

    `stack` closes them, and removes a socket file.

    Raises:
        NoListener: an address cannot be used.
    """
    listeners: list[socket.socket] = []
    addresses = [] if config.uds is not None else [(config.host, config.port)]
    if config.uds is not None:
        try:
            unix = UnixSocket(config.uds, int(config.uds_mode, 8))
        except OSError as error:
            raise NoListener(f"cannot listen on {config.uds}: {error.strerror or error}") from error
        stack.callback(unix.remove)
        listeners.append(unix.listener)
    if config.wyoming_port:
        addresses.append((config.wyoming_host, config.wyoming_port))
    for host, port in addresses:
        try:
            listeners.append(bind(host, port))
        except OSError as error:
            raise NoListener(f"cannot listen on {host}:{port}: {error}") from error
        stack.callback(listeners[-1].close)
    return listeners


def warn_if_open(config: ServerConfig, *, has_keys: bool) -> None:
    """Logs a warning if strangers may reach the server and need no key."""
    if not has_keys and config.uds is None and not is_loopback(config.host):
        message = "open to the network without keys: all who reach %s:%d may speak, and store and delete voices; "
        log.warning(message + "set --api-keys or --api-keys-file, or --host 127.0.0.1", config.host, config.port)
    if config.wyoming_port and not is_loopback(config.wyoming_host):
        message = "the Wyoming protocol has no keys: all who reach %s:%d may speak"
        log.warning(message, config.wyoming_host, config.wyoming_port)


def serve(
    app: FastAPI,
    config: ServerConfig,
    listeners: Sequence[socket.socket],
    sighup: SighupHandler,
    certificate: Certificate | None = None,
) -> None:
    """Runs the app on a bound socket until a signal. Prints the address as soon as the server answers.

    `listeners` are the socket for HTTP, and the one for the Wyoming protocol if there is one.
    """
    app.openapi()  # takes 0.3 s, once; the first reader of the documentation would stop the event loop for as long
    listener, *others = listeners
    wyoming = open_wyoming(app, config, others[0]) if others else None
    url = url_of(listener, is_secure=certificate is not None)
    _, first = app.state.service.find_model(None)

    def begin() -> None:
        announce(url, first.info, config)

    server = DrainingServer(app, config, begin, sighup, wyoming)
    if certificate is not None:
        server.secure(certificate)
    freeze_gc()  # before the event loop runs, which it would stop for a tenth of a second
    server.run(sockets=[listener])


def url_of(listener: socket.socket, *, is_secure: bool) -> str:
    """The address of a bound socket for clients on this machine. A socket file has no host, so that any does."""
    scheme = "https" if is_secure else "http"
    if listener.family == socket.AF_UNIX:
        return f"{scheme}://localhost"
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "localhost"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def announce(url: str, info: ModelInfo, config: ServerConfig) -> None:
    """Prints how to speak with the server, and writes its address into the file of the settings. `info`: first model"""
    voice = info.speakers[0] if info.speakers else "alloy"
    where, options = url, "-s"
    has_keys = bool(config.api_keys) or config.api_keys_file is not None
    key = '-H "Authorization: Bearer $VIVAVOCE_API_KEY" ' if has_keys else ""
    if config.uds is not None:
        where, options = f"the socket {config.uds}", f"-s --unix-socket {shlex.quote(str(config.uds))}"
    print(f"Vivavoce speaks at {where} (docs: {url}{config.root_path}/docs). Try:", flush=True)
    if info.task == "base" and not info.speakers:  # the model speaks only with voices that it is given
        voice = "me"
        print(f"vivavoce voices add me RECORDING.wav --consent 'This is my voice.' --url {url}", flush=True)
    if info.task == "chat":
        path, rest = "chat/completions", "| jq -r .choices[0].message.audio.data | base64 -d > answer.wav"
        body = (
            """{"messages": [{"role": "user", "content": "Good morning!"}], "modalities": ["text", "audio"], """
            f""""audio": {{"voice": "{voice}", "format": "wav"}}}}"""
        )
    else:
        path, rest = "audio/speech", "-o hello.wav"
        body = f"""{{"input": "Hello, this is Vivavoce.", "voice": "{voice}", "response_format": "wav", """
        body += """"stream": false}"""
    command = f"curl {options} {url}/v1/{path} -H 'Content-Type: application/json' {key}-d '{body}' {rest}"
    print(command, flush=True)
    if config.wyoming_port:
        print(f"Wyoming clients find it at tcp://{config.wyoming_host}:{config.wyoming_port}", flush=True)
    if config.address_file is not None:
        # Renaming is atomic: a process that waits for the file never reads half a URL.
        partial = config.address_file.with_name(config.address_file.name + ".partial")
        address = url if config.uds is None else f"unix:{config.uds.absolute()}"
        partial.write_text(address, encoding="utf-8")
        os.replace(partial, config.address_file)


def loading(config: ServerConfig) -> AbstractContextManager[None]:
    """Says that the models are loaded, while they are."""
    return progress(f"loading and warming up {', '.join(config.model) or 'the shipped voice'}")


@contextmanager
def progress(what: str) -> Iterator[None]:
    """Prints the current activity at once and every few seconds, so that the user sees why a start takes long."""
    started_s = time.monotonic()
    done = threading.Event()

    def tell() -> None:
        while not done.wait(PROGRESS_EVERY_S):
            say(f"  ... {what}, {time.monotonic() - started_s:.0f} s")

    say(f"{what} ...")
    teller = threading.Thread(target=tell, name="vivavoce-progress", daemon=True)
    teller.start()
    try:
        yield
    finally:
        done.set()
        teller.join()
    say(f"{what} took {time.monotonic() - started_s:.1f} s")


def say(line: str) -> None:
    """Prints a line on stderr at once: lines of the log, which another thread writes, come before or behind it."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
