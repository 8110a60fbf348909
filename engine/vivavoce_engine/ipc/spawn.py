"""Child processes. Each runs one module of this package and has a socket to its parent."""

import faulthandler
import os
import signal
import socket
import subprocess
import sys

from vivavoce_engine.ipc.pipe import Pipe


def spawn_module(module: str) -> "tuple[subprocess.Popen[bytes], socket.socket]":
    """Runs `python -m module FD`. FD is the child's end of a socket, of which the other end is returned."""
    assert module.startswith("vivavoce_engine.")
    here, there = socket.socketpair()
    # The child finds modules where this process does, and nowhere else.
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
    """The child's end of the socket. A module that `spawn_module` runs calls this first in its `main`.

    SIGINT and SIGTERM are ignored from then on: a service manager may signal the whole process group, but the parent
    decides when its children end. A crash prints the stack of each thread.
    """
    assert len(sys.argv) == 2, "spawn_module gives the file descriptor and nothing else"
    faulthandler.enable()
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.SIG_IGN)
    return Pipe(socket.socket(fileno=int(sys.argv[1])))
