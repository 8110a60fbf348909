"""The folder of phrases: bounded, shared by processes, least recently used entries leave first.

Files appear whole or not at all: an entry is written under a name of its own, and renamed. The time of a file's last
use is its modification time, so that it outlives the process. All files together have at most `max_bytes`, also those
that are being written: their sum stands in the file LOCK, which a process locks to change it. A process that dies may
leave a sum that is too large. Files are counted at the start, and again whenever the sum leaves no room.

Whatever goes wrong here costs an entry. Methods run on threads, and raise OSError or Damaged at worst.
"""

import fcntl
import os
import stat
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from vivavoce_server.phrases.entry import Damaged, check_entry

FOLDER = "phrases"
LOCK, SUFFIX, PARTIAL_SUFFIX = "lock", ".phrase", ".partial"
PRIVATE_FOLDER, PRIVATE_FILE = 0o700, 0o600
LOCK_WAIT_S, LOCK_RETRY_S = 2.0, 0.005
"""Longest wait for another process's lock, and the time between two attempts."""
STALE_S = 3600.0
"""A partial file that nobody has written to for so long was left by a process that died."""
SUM_DIGITS = 20
"""Length of the sum in the lock."""
MAX_SHARE = 4
"""An entry takes at most a quarter of the folder."""
SLACK = 16
"""Room is made for a sixteenth of the folder more than is needed, so that the next entries find some."""
READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
NEW_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class NoRoom(Exception):
    """An entry is too large, or all the room is taken by entries that are being written."""


@dataclass
class Sum:
    """Bytes of all files of a folder, for a process that holds its lock."""

    total: int


class PhraseFolder:
    """Entries by key, in a folder of this user alone. Any thread of any process may call any method."""

    def __init__(self, parent: Path, max_bytes: int, on_evicted: Callable[[], object]) -> None:
        """Creates the folder, counts its files, and makes them fit. `on_evicted` is called for each entry that leaves.

        Raises:
            OSError: it cannot be created or read, or belongs to another user.
        """
        self._path = parent / FOLDER
        self._max_bytes = max_bytes
        self._on_evicted = on_evicted
        self._counted_bytes = 0
        """Bytes of all files in a folder that can only be read, at the start."""
        parent.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        with suppress(FileExistsError):
            self._path.mkdir(mode=PRIVATE_FOLDER)
        found = os.lstat(self._path)
        if not stat.S_ISDIR(found.st_mode):
            raise NotADirectoryError(f"{self._path} is no folder")
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
            raise PermissionError(f"{self._path} is open to other users; make it this user's alone (chmod 700)")
        try:
            with self._locked() as files:
                files.total = self._make_room(0)
        except OSError:  # a folder to read only
            self._counted_bytes = self._count()

    @property
    def total_bytes(self) -> int:
        """Bytes of all files, by any process."""
        try:
            written = (self._path / LOCK).read_bytes()
        except OSError:
            return self._counted_bytes
        return int(written) if written.isdigit() else self._counted_bytes

    def open(self, key: bytes) -> BinaryIO | None:
        """The checked entry of this key, at its first record; None if there is none.

        Raises:
            Damaged: there was something else, which is deleted.
            OSError: it cannot be read.
        """
        path = self._path_of(key)
        try:
            found = os.lstat(path)
            if not stat.S_ISREG(found.st_mode) or found.st_size > self._max_bytes:
                self._delete(path, found)
                raise Damaged("it is no file, or too large")
            file = os.fdopen(os.open(path, READ_FLAGS), "rb")
        except FileNotFoundError:
            return None
        found = os.fstat(file.fileno())
        try:
            check_entry(file, key, found.st_size)
        except BaseException as error:
            file.close()
            if isinstance(error, Damaged):
                self._delete(path, found)
            raise
        with suppress(OSError):  # a folder to read only
            os.utime(path)
        return file

    def begin(self, key: bytes) -> "PartialEntry":
        """A new entry of this key."""
        return PartialEntry(self, self._path_of(key), self._path / f"{uuid.uuid4().hex}{PARTIAL_SUFFIX}")

    # ---- for entries that are being written -------------------------------------------------------------------

    def grow(self, file: int, entry_bytes: int, more: int) -> None:
        """Takes room for `more` bytes of an entry's file, which then has `entry_bytes`. They can be written after that.

        Raises:
            NoRoom: there is none.
            OSError: the folder cannot be written to.
        """
        if entry_bytes > self._max_bytes // MAX_SHARE:
            raise NoRoom("the entry is too large")
        with self._locked() as files:
            if files.total + more > self._max_bytes:
                files.total = self._make_room(more)
            if files.total + more > self._max_bytes:
                raise NoRoom("entries that are being written take all the room")
            os.ftruncate(file, entry_bytes)  # so that others count them
            files.total += more

    def remove(self, partial: Path, size: int) -> None:
        """Deletes an entry that is not complete, unless another process has. Raises OSError if it cannot."""
        with self._locked() as files, suppress(FileNotFoundError):
            partial.unlink()
            files.total -= size

    def publish(self, partial: Path, path: Path) -> None:
        """Gives a complete entry its name. Another one of that name, which has the same content, is replaced."""
        with self._locked() as files:
            is_taken = os.path.lexists(path)
            partial.replace(path)
            if is_taken:
                files.total = self._count()

    # -----------------------------------------------------------------------------------------------------------

    def _path_of(self, key: bytes) -> Path:
        return self._path / f"{key.hex()}{SUFFIX}"

    def _delete(self, path: Path, found: os.stat_result) -> None:
        """Deletes what was found under a name, unless there is something else by now."""
        with suppress(OSError), self._locked() as files:
            now = path.lstat()
            if (now.st_ino, now.st_dev) != (found.st_ino, found.st_dev):
                return
            path.rmdir() if stat.S_ISDIR(now.st_mode) else path.unlink()
            files.total = self._count()  # its size now may be another than when it was written

    def _make_room(self, more: int) -> int:
        """Deletes files until there is room for `more` bytes, if there is not. Returns the sum of all that stay."""
        now_s = time.time()
        files = sorted(self._files())
        total = sum(size for _, size, _ in files)
        fits = self._max_bytes - more
        if total > fits:
            fits -= self._max_bytes // SLACK
        for used_s, size, path in files:
            is_partial = path.suffix == PARTIAL_SUFFIX
            if now_s - used_s > STALE_S if is_partial else total > fits:
                with suppress(OSError):
                    path.unlink()
                    total -= size
                    if not is_partial:
                        self._on_evicted()
        return total

    def _count(self) -> int:
        """Bytes of all files."""
        return sum(size for _, size, _ in self._files())

    def _files(self) -> Iterator[tuple[float, int, Path]]:
        """Time of the last use, size and path of each file. Files of other names are nobody's here."""
        with os.scandir(self._path) as entries:
            for entry in entries:
                if entry.name.endswith((SUFFIX, PARTIAL_SUFFIX)):
                    with suppress(OSError):  # deleted meanwhile
                        found = entry.stat(follow_symlinks=False)
                        yield found.st_mtime, found.st_size, Path(entry.path)

    @contextmanager
    def _locked(self) -> Iterator[Sum]:
        """Holds the lock, with the sum of all files. A sum that cannot be read is counted.

        Raises:
            OSError: the folder cannot be written to, or another process holds the lock for too long (TimeoutError).
        """
        lock = os.open(self._path / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, PRIVATE_FILE)
        try:
            _wait_for(lock)
            written = os.pread(lock, 2 * SUM_DIGITS, 0)
            files = Sum(int(written) if written.isdigit() else self._count())
            try:
                yield files
            finally:
                files.total = max(0, files.total)
                content = b"%0*d" % (SUM_DIGITS, files.total)  # of one length: nobody reads half of it
                os.ftruncate(lock, os.pwrite(lock, content, 0))
        finally:
            os.close(lock)


def _wait_for(lock: int) -> None:
    deadline_s = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline_s:
                raise TimeoutError("another process holds the lock") from None
        time.sleep(LOCK_RETRY_S)


class PartialEntry:
    """An entry that is being written. Its methods may be called on any thread, also at once."""

    def __init__(self, folder: PhraseFolder, path: Path, partial: Path) -> None:
        self._folder = folder
        self._path = path
        self._partial = partial
        self._file: int | None = None
        self._ended = False
        self._size = 0
        self._gate = threading.Lock()

    def write(self, content: bytes, *, last: bool = False) -> None:
        """Appends to the entry unless it has been abandoned. With `last`, it is complete.

        Raises:
            NoRoom: the folder has no room.
            OSError: the disk does not take it.
        """
        with self._gate:
            if self._ended:
                return
            if self._file is None:
                self._file = os.open(self._partial, NEW_FLAGS, PRIVATE_FILE)
            self._folder.grow(self._file, self._size + len(content), len(content))
            self._size += len(content)
            left = memoryview(content)
            while left:
                left = left[os.write(self._file, left) :]
            if last:
                self._folder.publish(self._partial, self._path)
                self._ended = True
                os.close(self._file)

    def abandon(self) -> None:
        """Forgets the entry unless it is complete."""
        with self._gate:
            if self._ended:
                return
            self._ended = True
            if self._file is not None:
                os.close(self._file)
                with suppress(OSError):  # a later start deletes it
                    self._folder.remove(self._partial, self._size)
