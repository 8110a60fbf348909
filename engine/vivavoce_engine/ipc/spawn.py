"""Child processes that run one module of this package each, with a socket to their parent."""

import faulthandler
import os
import signal
import socket
import subprocess
import sys

from vivavoce_engine.ipc.pipe import Pipe


def spawn_module(module: str) -> "tuple[subprocess.Popen[bytes], socket.socket]":
    """Runs `python -m module FD`, and gives this end of the socket whose other end is FD there."""
    assert module.startswith("vivavoce_engine.")
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


def pipe_to_parent() -> Pipe:
    """The child's end of the socket, for the `main` of a module that `spawn_module` runs. Call it first.

    SIGINT and SIGTERM are ignored from then on: whoever stops a server may signal its whole process group, and the
    parent decides how its children end. A crash prints each thread's stack.
    """
    assert len(sys.argv) == 2, "spawn_module gives the file descriptor and nothing else"
    faulthandler.enable()
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.SIG_IGN)
    return Pipe(socket.socket(fileno=int(sys.argv[1])))
