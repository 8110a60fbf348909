"""From a checkpoint's name to an engine that is warm: the one place that puts the parts together."""

import logging
import time

from vivavoce_engine.checkpoint import locate_checkpoint, read_checkpoint
from vivavoce_engine.config import EngineConfig
from vivavoce_engine.engine import Engine

log = logging.getLogger(__name__)


def load_engine(name: str, config: EngineConfig, model_id: str | None = None) -> Engine:
    """Loads a checkpoint (a folder, or a hub id) and returns its engine, not started.

    `model_id` is the name that clients use; the folder's name unless given.

    Raises:
        CheckpointError: the checkpoint cannot be found or is not servable.
    """
    from vivavoce_engine.torch_runner import TorchRunner  # torch, seconds to import

    started = time.monotonic()
    path = locate_checkpoint(name)
    runner = TorchRunner(model_id or path.resolve().name, read_checkpoint(path), config)
    log.info("loaded %s in %.1f s", path, time.monotonic() - started)
    return Engine(runner, config)
