"""The number of fronts, where the settings leave it open."""

from collections.abc import Iterable

from vivavoce_engine import CheckpointError, EngineConfig, ModelInfo, card_present, usable_cores

from vivavoce_server.config import ServerConfig

MOST_FRONTS = 8
"""Most fronts that `auto` takes: what one card speaks keeps fewer than that busy."""
CORES_OF_AN_ENGINE = 2
"""Cores that an engine process beside a card needs: one for its loop, one for its encoder and the driver."""


def count_fronts(config: ServerConfig, engine_config: EngineConfig, models: Iterable[ModelInfo]) -> int:
    """The number of processes that serve HTTP.

    A model that chats has one: its thinker and its spoken answers, which later requests name, are in one process.

    Raises:
        CheckpointError: several are asked for, and a model chats.
    """
    infos = tuple(models)
    chats = any(info.task == "chat" for info in infos)
    if config.fronts != "auto":
        if chats and config.fronts > 1:
            raise CheckpointError("a model that chats is served by one front: use --fronts 1")
        return config.fronts
    if chats or not may_use_card(engine_config):
        return 1
    spare = usable_cores() - CORES_OF_AN_ENGINE * config.workers * len(infos)
    return max(1, min(MOST_FRONTS, spare))


def may_use_card(config: EngineConfig) -> bool:
    """True if these settings put speech on a card, or leave it to a machine that has one."""
    if config.device != "auto":
        return config.device != "cpu"
    return config.runner != "native" and config.dtype != "int8" and card_present()
