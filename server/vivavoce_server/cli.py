"""Serve a speech model over HTTP. Every flag is also an environment variable: --max-streams is VIVAVOCE_MAX_STREAMS."""

import argparse
import asyncio
import logging
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vivavoce_engine import CheckpointError, Engine, EngineConfig, SynthesisRequest, collect

from vivavoce_server.app import create_app
from vivavoce_server.config import ServerConfig, load_settings, setting_help
from vivavoce_server.draining import DrainingServer

log = logging.getLogger(__name__)

FAKE_MODEL = "fake"
PROGRESS_EVERY_S = 5.0
WARM_UP_TEXT = "This warms the engine up."
WARM_UP_FRAMES = 24
NOT_INTELLIGIBLE = re.compile(r"not intelligible", re.IGNORECASE)
USAGE_ERROR, FAILURE = 2, 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds one flag for each setting."""
    for name, help_text in setting_help().items():
        flag = "--" + name.replace("_", "-")
        parser.add_argument(flag, dest=name, default=None, help=help_text.replace("%", "%%"))


def run(args: argparse.Namespace) -> int:
    """Loads, warms up, serves until SIGTERM or SIGINT, drains. Returns the exit status."""
    flags = {name: getattr(args, name) for name in setting_help() if getattr(args, name) is not None}
    try:
        config, engine_config = load_settings(flags)
    except ValueError as error:
        print(f"vivavoce: {error}", file=sys.stderr)
        return USAGE_ERROR
    logging.basicConfig(level=config.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    log.info("settings: %s %s", config, engine_config)
    try:
        listener = bind(config.host, config.port)
    except OSError as error:
        print(f"vivavoce: cannot listen on {config.host}:{config.port}: {error}", file=sys.stderr)
        return FAILURE
    try:
        with progress(f"loading {config.model or 'the shipped voice'}"):
            engine = open_engine(config.model, engine_config)
    except CheckpointError as error:
        print(f"vivavoce: {error}", file=sys.stderr)
        return FAILURE
    try:
        engine.start()
        with progress("warming up"):
            asyncio.run(warm_up(engine))
        serve(engine, config, listener)
    finally:
        engine.stop()
    return 0


def bind(host: str, port: int) -> socket.socket:
    """Takes the port before the model loads, so that a taken port is told at once."""
    family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, proto)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(address)
    return listener


def open_engine(model: str | None, config: EngineConfig) -> Engine:
    """The engine of a checkpoint. Imports the model code only where a model is wanted."""
    if model == FAKE_MODEL:
        from vivavoce_engine.fake_runner import FakeRunner

        return Engine(FakeRunner(), config)
    from vivavoce_engine.load import load_engine

    if model is None:
        import vivavoce_voice

        model = str(vivavoce_voice.CHECKPOINT)
    warn_if_not_intelligible(Path(model))
    return load_engine(model, config)


def warn_if_not_intelligible(checkpoint: Path) -> None:
    """Passes on what a checkpoint's own card says, so that nobody looks for the fault elsewhere."""
    card = checkpoint / "MODEL_CARD.md"
    if card.is_file() and NOT_INTELLIGIBLE.search(card.read_text(encoding="utf-8")):
        print(
            "WARNING: this checkpoint does not speak understandable words (its MODEL_CARD.md says so).", file=sys.stderr
        )


async def warm_up(engine: Engine) -> None:
    """Speaks one short utterance, so that the first listener does not pay for what happens only once."""
    info = engine.info
    request = SynthesisRequest(
        WARM_UP_TEXT,
        speaker=info.speakers[0] if info.speakers else "",
        instructions="A calm voice." if info.task == "voice_design" else "",
        max_frames=WARM_UP_FRAMES,
    )
    await collect(engine.submit(request))


def serve(engine: Engine, config: ServerConfig, listener: socket.socket) -> None:
    """Runs the app on a bound socket until a signal, and says where it is once it answers."""
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "localhost"
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    app = create_app(engine, config)
    server = DrainingServer(app, config, on_started=lambda: announce(url, engine, config))
    server.run(sockets=[listener])


def announce(url: str, engine: Engine, config: ServerConfig) -> None:
    voice = engine.info.speakers[0] if engine.info.speakers else "alloy"
    print(f"Vivavoce speaks at {url} (docs: {url}/docs). Try:", flush=True)
    print(
        f"curl -s {url}/v1/audio/speech -H 'Content-Type: application/json' "
        f"""-d '{{"input": "Hello, this is Vivavoce.", "voice": "{voice}", "response_format": "wav"}}' -o hello.wav""",
        flush=True,
    )
    if config.address_file is not None:
        # Renaming is atomic: whoever waits for the file never reads half a URL.
        partial = config.address_file.with_name(config.address_file.name + ".partial")
        partial.write_text(url, encoding="utf-8")
        os.replace(partial, config.address_file)


@contextmanager
def progress(what: str) -> Iterator[None]:
    """Says what goes on, and again every few seconds, so that a long start is no riddle."""
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
