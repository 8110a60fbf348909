"""Child processes. Each runs one module of this project and has a socket to its parent."""

import faulthandler
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from vivavoce_engine.ipc.pipe import Pipe

GROUP_SIGNALS = tuple(known for known in signal.Signals if known.name in ("SIGHUP", "SIGINT", "SIGTERM"))
"""Signals that a terminal or a service manager may send to the whole process group. They are for the parent alone.
Windows has no SIGHUP."""


def spawn_module(
    module: str, variables: Mapping[str, str] | None = None
) -> "tuple[subprocess.Popen[bytes], socket.socket]":
    """Runs `python -m module FD`. FD is the child's end of a socket, of which the other end is returned.

    `variables` are added to the environment.
    """
    assert module.startswith("vivavoce_")
    here, there = socket.socketpair()
    # The child finds modules where this process does, and nowhere else.
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    with there, blocked(GROUP_SIGNALS):  # the child inherits the mask, until it ignores them
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, str(there.fileno())],
            pass_fds=[there.fileno()],
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": paths, **(variables or {})},
        )
    return process, here


@contextmanager
def blocked(signals: Iterable[signal.Signals]) -> Iterator[None]:
    """Holds signals back from this thread, and from the processes that it starts."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def pipe_to_parent() -> Pipe:
    """The child's end of the socket. A module that `spawn_module` runs calls this first in its `main`.

    GROUP_SIGNALS are ignored from then on, and have been held back until then: the parent decides when its children
    end. A crash prints the stack of each thread.
    """
    assert len(sys.argv) == 2, "spawn_module gives the file descriptor and nothing else"
    faulthandler.enable()
    for signum in GROUP_SIGNALS:
        signal.signal(signum, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, GROUP_SIGNALS)
    return Pipe(socket.socket(fileno=int(sys.argv[1])))
