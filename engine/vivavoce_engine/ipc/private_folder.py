"""A folder for the sockets of one server, which no other user can enter."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def private_folder() -> Iterator[Path]:
    """A new folder of mode 0700, which is removed with all that it holds at the end."""
    with tempfile.TemporaryDirectory(prefix="vivavoce-") as name:
        yield Path(name)
