"""The identity of files: a digest of their contents, and a cheap look that tells whether they have changed since."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

Versions: TypeAlias = tuple[tuple[str, int, int, int], ...]
"""Name, inode, modification time in ns, and size in bytes of each file of a folder."""


def versions_of(folder: Path) -> Versions:
    """The versions of a folder's files. A file that is written, or replaced under its name, has another version."""
    found = ((name, path.stat()) for name, path in _files(folder))
    return tuple((name, stat.st_ino, stat.st_mtime_ns, stat.st_size) for name, stat in found)


def digest_of_folder(folder: Path, pattern: str = "*") -> str:
    """SHA-256 over names and contents of a folder's files, in hexadecimal. Reads all of them."""
    digest = hashlib.sha256()
    for name, path in _files(folder, pattern):
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        digest.update(f"{content} {len(name)} {name}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def _files(folder: Path, pattern: str = "*") -> Iterator[tuple[str, Path]]:
    """The regular files in a folder and in its folders, by name. Hidden ones belong to programs that manage it."""
    for path in sorted(folder.rglob(pattern)):
        name = path.relative_to(folder)
        if not any(part.startswith(".") for part in name.parts) and path.is_file():
            yield name.as_posix(), path
