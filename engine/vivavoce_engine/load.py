"""From a checkpoint's name to an engine that is warm: the one place that puts the parts together."""

import logging
import time

from vivavoce_engine.checkpoint import locate_checkpoint, read_checkpoint
from vivavoce_engine.config import EngineConfig
from vivavoce_engine.engine import Engine
from vivavoce_engine.voice_store import VoiceStore
from vivavoce_engine.voices import Voices

log = logging.getLogger(__name__)


def load_engine(
    name: str, config: EngineConfig, model_id: str | None = None, store: VoiceStore | None = None
) -> Engine:
    """Loads a checkpoint (a folder, or a hub id) and returns its engine, not started.

    `model_id` is the name that clients use; the folder's name unless given. `store` keeps voices; engines may share it.

    Raises:
        CheckpointError: the checkpoint cannot be found or is not servable.
    """
    from vivavoce_engine.reference_encoder import ReferenceEncoder  # torch, seconds to import
    from vivavoce_engine.torch_runner import TorchRunner

    started = time.monotonic()
    path = locate_checkpoint(name)
    checkpoint = read_checkpoint(path)
    runner = TorchRunner(model_id or path.resolve().name, checkpoint, config)
    encoder = ReferenceEncoder(checkpoint, runner.device) if checkpoint.encoder else None
    log.info("loaded %s in %.1f s", path, time.monotonic() - started)
    return Engine(runner, config, Voices(runner.info, runner.speaker_embeddings(), encoder, store))
