"""Processes of this package: one Python module each, with a socket to whoever started it."""

import os
import socket
import subprocess
import sys


def spawn(module: str) -> "tuple[subprocess.Popen[bytes], socket.socket]":
    """Runs `python -m module FD`, and gives this end of the socket whose other end is FD there."""
    here, there = socket.socketpair()
    # Modules are found where this process finds them, and nowhere else.
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    with there:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, str(there.fileno())],
            pass_fds=[there.fileno()],
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": paths},
        )
    return process, here
