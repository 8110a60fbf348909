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

    Raises:
        CheckpointError: several are asked for, and a model's thinker can have one alone.
    """
    infos = tuple(models)
    has_thinker = config.thinker == "process" and any(
        info.task == "chat" and info.name != "fake-chat" for info in infos
    )
    if config.fronts != "auto":
        if has_thinker and config.fronts > 1:
            message = "a thinker that runs here serves one front: use --fronts 1, or --thinker with the URL of a server"
            raise CheckpointError(message)
        return config.fronts
    if has_thinker or not may_use_card(engine_config):
        return 1
    spare = usable_cores() - CORES_OF_AN_ENGINE * config.workers * len(infos)
    return max(1, min(MOST_FRONTS, spare))


def may_use_card(config: EngineConfig) -> bool:
    """True if these settings put speech on a card, or leave it to a machine that has one."""
    if config.device != "auto":
        return config.device != "cpu"
    return config.runner != "native" and config.dtype != "int8" and card_present()
