"""The server of a soak run: a process as users run it, with short limits, so that a short run reaches each of them."""

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.server_process import SERVE, START_DEADLINE_S
from tests.support.waiting import wait_until

SETTINGS = ("--max-streams", "4", "--max-queue", "8", "--stall-s", "5", "--live-stall-s", "5")
SLOW_START_S = 600.0
"""Most seconds until a server under sanitizers is ready."""


@contextmanager
def soaked_server(
    folder: Path,
    max_wait_s: float,
    model: str | None,
    settings: Sequence[str] = SETTINGS,
    environment: Mapping[str, str] | None = None,
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A ready server and its URL; what it logs goes to `folder`/log. `environment` is this process's own if None."""
    address = folder / "address"
    command = [*SERVE, "--port", "0", "--address-file", str(address), "--max-wait-s", str(max_wait_s), *settings]
    command += ["--voices-dir", str(folder / "voices"), *(["--model", model] if model else [])]
    log = folder / "log"
    with (
        log.open("wb") as output,
        subprocess.Popen(command, stdout=output, stderr=output, env=environment) as process,
    ):
        try:
            deadline_s = START_DEADLINE_S if environment is None else SLOW_START_S
            wait_until(lambda: address.exists() or process.poll() is not None, deadline_s)
            assert process.poll() is None, log.read_text(encoding="utf-8")
            yield process, address.read_text(encoding="utf-8")
        finally:
            process.kill()
