"""Unix sockets between processes of one user."""

import os
import socket
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PENDING_CONNECTIONS = 64


@contextmanager
def private_folder() -> Iterator[Path]:
    """A new folder of mode 0700 for the sockets of one server, removed with all that it holds at the end."""
    with tempfile.TemporaryDirectory(prefix="vivavoce-") as name:
        yield Path(name)


def listen(path: Path) -> socket.socket:
    """A socket that listens at a path of a private folder, which nothing has yet.

    Raises:
        OSError: the system refuses the path, for example because it is longer than about 100 bytes.
    """
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(str(path))
        listener.listen(PENDING_CONNECTIONS)
    except OSError:
        listener.close()
        raise
    return listener


def is_own_user(connection: socket.socket) -> bool:
    """True if the process at the other end belongs to the user of this one.

    Where the system does not tell whose it is (outside Linux), the folder's mode alone keeps others out.
    """
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    credentials = struct.Struct("3i")
    _, user, _ = credentials.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, credentials.size))
    return bool(user == os.geteuid())
