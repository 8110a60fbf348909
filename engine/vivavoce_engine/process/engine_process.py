"""Engines whose loop is a process of its own, seen by the three who have to do with one. Torch-free.

A lost CUDA context, a step that never ends, or a process killed for its memory leaves the server running.
"""

import logging
from collections.abc import Callable
from pathlib import Path

from vivavoce_engine.config import EngineConfig
from vivavoce_engine.model import Model
from vivavoce_engine.process.host import Host
from vivavoce_engine.process.link import Link
from vivavoce_engine.process.remote_engine import RemoteEngine
from vivavoce_engine.process.watcher import Program, Watcher
from vivavoce_engine.process.wire import LoadCommand
from vivavoce_engine.voices.store import VoiceStore

log = logging.getLogger(__name__)


def no_address() -> None:
    """The address of a process that its server alone speaks with."""


def engine_program(model: Model, config: EngineConfig, next_address: Callable[[], Path | None] = no_address) -> Program:
    """The process of an engine. `next_address` names the socket at which the next process listens for fronts."""

    def load() -> LoadCommand:
        return LoadCommand(model.load, config, log.getEffectiveLevel(), next_address())

    return Program(model.info.name, "engine", "vivavoce_engine.process.worker", load, config.max_step_s)


class EngineProcess(RemoteEngine):
    """An engine in a process of its own, which is restarted when it breaks. `on_demand_s` is as for RemoteEngine."""

    def __init__(
        self,
        model: Model,
        config: EngineConfig,
        store: VoiceStore | None = None,
        on_demand_s: float | None = None,
    ) -> None:
        program = engine_program(model, config)
        super().__init__(
            model, config, store, on_demand_s, lambda gate, owner: Watcher(program, on_demand_s, gate, owner)
        )


class EngineHost(Host):
    """The process of an engine whose utterances belong to fronts: the LinkedEngines that are given its `address`."""

    def __init__(self, model: Model, config: EngineConfig, folder: Path, on_demand_s: float | None = None) -> None:
        super().__init__(lambda next_address: engine_program(model, config, next_address), folder, on_demand_s)


class LinkedEngine(RemoteEngine):
    """A front's engine, whose process belongs to the EngineHost at `address`, in another process.

    `start` returns once the host has told the state of the process, so a front can be up, and not ready, while the
    model loads or comes back. `restarts`, `failed` and `processes` are the host's, so all fronts tell the same.
    """

    def __init__(
        self,
        model: Model,
        config: EngineConfig,
        address: Path,
        store: VoiceStore | None = None,
        on_demand_s: float | None = None,
    ) -> None:
        super().__init__(
            model, config, store, on_demand_s, lambda gate, owner: Link("engine", address, on_demand_s, gate, owner)
        )
