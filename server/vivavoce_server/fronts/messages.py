"""Messages between the supervisor and a front, over the pipe of `spawn_module`.

Supervisor → front: Begin first, and its descriptors; then Renew and Leave at any time. The end of the pipe is a Leave.
Front → supervisor: Alive, from the moment that it answers, once a second. A front that cannot serve ends, and the log
says why.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from vivavoce_engine import EngineConfig, Model

from vivavoce_server.access import KeyEntry
from vivavoce_server.config import ServerConfig

Keys = tuple[tuple[str, KeyEntry], ...]


@dataclass(frozen=True, slots=True)
class LinkedModel:
    """A model without its weights, and the addresses of the processes that speak it."""

    model: Model
    addresses: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class Begin:
    """All that a front needs to serve.

    `descriptors` follow it: those of the real stdout and stderr, of the ledger's memory, of the bound socket for HTTP,
    and of the one for the Wyoming protocol if this front serves it.
    """

    number: int
    fronts: int
    config: ServerConfig
    engine_config: EngineConfig
    models: Mapping[str, LinkedModel]
    keys: Keys
    created_s: int
    descriptors: int


@dataclass(frozen=True, slots=True)
class Renew:
    """Asks a front to read the certificate again, and gives it the keys. None: those that it has stay."""

    keys: Keys | None


@dataclass(frozen=True, slots=True)
class Leave:
    """Asks a front to end: when its speech has ended, or `now`."""

    now: bool


@dataclass(frozen=True, slots=True)
class Alive:
    """The front answers, and its event loop goes on."""


ToFront = Renew | Leave
