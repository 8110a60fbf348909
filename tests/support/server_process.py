"""A server in a process of its own, as users run it."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.waiting import wait_until

SERVE = (sys.executable, "-m", "vivavoce_server")
START_DEADLINE_S = 120.0


@contextmanager
def launched(
    folder: Path, *flags: str, start_new_session: bool = False
) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Yields a server that is starting on a free port, and the file that will hold its URL. Kills it at the end."""
    address_file = folder / "address"
    command = [*SERVE, "--port", "0", "--address-file", str(address_file), *flags]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=start_new_session
    ) as process:
        try:
            yield process, address_file
        finally:
            process.kill()


def url_of(process: subprocess.Popen[str], address_file: Path) -> str:
    """Waits until the server is ready. Returns its URL."""
    wait_until(lambda: address_file.exists() or process.poll() is not None, START_DEADLINE_S)
    assert process.poll() is None, process.communicate()[1]
    return address_file.read_text(encoding="utf-8")


@contextmanager
def serving(folder: Path, *flags: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Yields a ready server on a free port, and its URL. Kills it at the end unless the test has stopped it."""
    with launched(folder, *flags) as (process, address_file):
        yield process, url_of(process, address_file)


def read_until(process: subprocess.Popen[str], words: str) -> list[str]:
    """Reads the log up to the line that contains these words."""
    assert process.stderr is not None
    lines: list[str] = []
    while not lines or words not in lines[-1]:
        line = process.stderr.readline()
        assert line, f"it ended without {words!r}: {lines}"
        lines.append(line)
    return lines
