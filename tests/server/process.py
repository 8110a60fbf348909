"""The server as a process of its own, as users run it."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.server.live import wait_until

SERVE = (sys.executable, "-m", "vivavoce_server")
START_DEADLINE_S = 120.0


@contextmanager
def serving(folder: Path, *flags: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A ready server on a free port, and its URL; killed at the end unless the test has stopped it."""
    address_file = folder / "address"
    command = [*SERVE, "--port", "0", "--address-file", str(address_file), *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            wait_until(lambda: address_file.exists() or process.poll() is not None, START_DEADLINE_S)
            assert process.poll() is None, process.communicate()[1]
            yield process, address_file.read_text(encoding="utf-8")
        finally:
            process.kill()
