"""A socket file to listen on, for a proxy on this machine. It belongs to one server at a time, and goes with it."""

import errno
import fcntl
import os
import socket
import stat
from contextlib import suppress
from pathlib import Path


class UnixSocket:
    """A bound socket file, and the lock beside it (PATH.lock) by which a second server knows that it is taken.

    A file that a killed server left behind is replaced. Connecting to it would not tell a server that is still loading
    its model from one that is gone.
    """

    def __init__(self, path: Path, mode: int) -> None:
        """Binds the socket; `mode` says who may connect.

        Raises:
            OSError: another server has the path, it is no socket, it is too long, or its folder cannot be written.
        """
        self._path = path.absolute()
        self._lock_path = self._path.with_name(f"{self._path.name}.lock")
        self._lock = self._take_lock()
        try:
            self.listener = self._bind(mode)
        except OSError:
            self._drop_lock()
            raise
        self._inode = self._path.lstat().st_ino

    def _take_lock(self) -> int:
        while True:
            lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(lock)
                raise OSError(errno.EADDRINUSE, "another server has it") from None
            # The server before may have removed the file between the two calls.
            with suppress(FileNotFoundError):
                if self._lock_path.stat().st_ino == os.fstat(lock).st_ino:
                    return lock
            os.close(lock)

    def _drop_lock(self) -> None:
        self._lock_path.unlink(missing_ok=True)
        os.close(self._lock)

    def _bind(self, mode: int) -> socket.socket:
        with suppress(FileNotFoundError):
            if not stat.S_ISSOCK(self._path.lstat().st_mode):
                raise OSError(errno.EEXIST, "there is a file that is no socket")
            self._path.unlink()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(str(self._path))
            self._path.chmod(mode)  # nobody can connect before the socket listens
        except OSError:
            listener.close()
            raise
        return listener

    def remove(self) -> None:
        """Closes the socket and removes its file, unless another file stands there now."""
        self.listener.close()
        with suppress(FileNotFoundError):
            if self._path.lstat().st_ino == self._inode:
                self._path.unlink()
        self._drop_lock()
