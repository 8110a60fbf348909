"""Messages between a front and the host of a process (host.py). Frozen, and pickled like those of `wire.py`.

Host → front: ProcessStatus, first and after each change; and the process's reports, while the front does not need it.
Front → host: Need and Unanswered.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from vivavoce_engine.errors import EngineError
from vivavoce_engine.process.carrier import Phase


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """The state of the process. `pid`, `failed` and `restarts` are those of Watcher.

    `address` is the socket of the process that serves, None in other phases. `error` says, in phase AWAY, why all
    requests that wait for the process fail; None while that is not known yet. `answers_need` is true in the answer to
    a Need: from then on the process is not unloaded.
    """

    phase: Phase
    pid: int | None
    address: Path | None
    failed: bool
    restarts: Mapping[str, int]
    error: EngineError | None
    answers_need: bool = False


@dataclass(frozen=True, slots=True)
class Need:
    """Says whether the front needs a process on demand. The answer to a need is a ProcessStatus."""

    is_needed: bool


@dataclass(frozen=True, slots=True)
class Unanswered:
    """Reports that a question had no answer for too long."""
