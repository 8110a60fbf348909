"""A local server for the time that a command runs: another process, reached over HTTP like any server."""

import importlib.util
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vivavoce_client.protocol import VivavoceError

SERVER_MODULE = "vivavoce_server"
NEEDED_MODULES = (SERVER_MODULE, "fastapi", "uvicorn", "vivavoce_engine", "numpy")
"""Modules without which no server starts. A bare install has the server's own, and not those of its extra."""
EMPTY_FLAGS = (
    *("--uds", "--ssl-certfile", "--ssl-keyfile", "--ssl-keyfile-password", "--ssl-ca-certs", "--root-path"),
    *("--api-keys", "--api-keys-file"),
)
POLL_S = 0.05
STOP_S = 10.0


class NoLocalServer(VivavoceError):
    """The server is not installed, or did not start."""


@contextmanager
def local_server(model: str | None) -> Iterator[str]:
    """Starts a server on a free port, yields its URL once it is ready, and stops it at the end."""
    if not all(map(importlib.util.find_spec, NEEDED_MODULES)):
        raise NoLocalServer(
            "there is no server to talk to: give --url, or install one with: pip install 'vivavoce-speech[server]'"
        )
    with tempfile.TemporaryDirectory(prefix="vivavoce-") as folder:
        address_file = Path(folder) / "address"
        command = [sys.executable, "-m", SERVER_MODULE, "--port", "0", "--address-file", str(address_file)]
        command += ["--log-level", "warning"]
        # The environment or a file may give these to a server of the user's. The local one has none of them.
        command += [f"{flag}=" for flag in EMPTY_FLAGS]
        command += ["--host", "127.0.0.1", "--wyoming-port", "0", "--no-wyoming-zeroconf"]
        command += [] if model is None else ["--model", model]
        # Standard output has the ready message, which is for people who start a server. Warnings still show.
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            while not address_file.exists():
                if process.poll() is not None:
                    raise NoLocalServer(f"the server ended with status {process.returncode} before it was ready")
                time.sleep(POLL_S)
            yield address_file.read_text(encoding="utf-8")
        finally:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
