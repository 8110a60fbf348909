"""From settings to engines that are loaded and warm, and the folder of voices that they share."""

import os
import re
import sys
from pathlib import Path

import numpy as np
from vivavoce_engine import (
    CheckpointError,
    Engine,
    EngineConfig,
    SynthesisRequest,
    VoiceReference,
    VoiceStore,
    collect,
)

from vivavoce_server.config import ServerConfig

FAKE_MODEL = "fake"
WARM_UP_TEXT = "This warms the engine up."
WARM_UP_FRAMES = 24
NOT_INTELLIGIBLE = re.compile(r"not intelligible", re.IGNORECASE)


def open_engines(config: ServerConfig, engine_config: EngineConfig) -> dict[str, Engine]:
    """The engines of all checkpoints, loaded one after the other, by the names that clients use.

    Raises:
        CheckpointError: a checkpoint cannot be served, or two have one name.
    """
    if config.model_name is not None and len(config.model) > 1:
        raise CheckpointError("--model-name names a single model; of several, write each as --model NAME=CHECKPOINT")
    store = open_store(config)
    engines: dict[str, Engine] = {}
    for entry in config.model or (None,):
        name, checkpoint = (None, None) if entry is None else split_entry(entry)
        engine = open_engine(checkpoint, engine_config, store)
        name = name or config.model_name or engine.info.name
        if name in engines:
            raise CheckpointError(f"two models are named {name!r}; write them as --model NAME=CHECKPOINT")
        engines[name] = engine
    return engines


def split_entry(entry: str) -> tuple[str | None, str]:
    """`name=checkpoint` → both; a checkpoint alone has no name. What exists as a folder is one."""
    name, equals, checkpoint = entry.partition("=")
    if not equals or not name or Path(entry).exists():
        return None, entry
    return name, checkpoint


def open_engine(model: str | None, config: EngineConfig, store: VoiceStore | None = None) -> Engine:
    """The engine of a checkpoint. Imports the model code only where a model is wanted."""
    if model == FAKE_MODEL:
        from vivavoce_engine.fake_runner import FakeRunner, fake_voices

        return Engine(FakeRunner(), config, fake_voices(store))
    from vivavoce_engine.load import load_engine

    if model is None:
        import vivavoce_voice

        return load_engine(str(vivavoce_voice.CHECKPOINT), config, vivavoce_voice.NAME, store)
    warn_if_not_intelligible(Path(model))
    return load_engine(model, config, store=store)


def warn_if_not_intelligible(checkpoint: Path) -> None:
    """Passes on what a checkpoint's own card says, so that nobody looks for the fault elsewhere."""
    card = checkpoint / "MODEL_CARD.md"
    if card.is_file() and NOT_INTELLIGIBLE.search(card.read_text(encoding="utf-8")):
        print(
            "WARNING: this checkpoint does not speak understandable words (its MODEL_CARD.md says so).", file=sys.stderr
        )


def open_store(config: ServerConfig) -> VoiceStore | None:
    """The folder of stored voices, made if it is not there; None where voices are not to be stored, or cannot be.

    Raises:
        CheckpointError: the folder that the operator named cannot be used.
    """
    if not config.max_voices:
        return None
    try:
        return VoiceStore(config.voices_dir or default_voices_dir(), config.max_voices)
    except (OSError, RuntimeError) as error:  # RuntimeError: the user has no home
        if config.voices_dir is not None:
            raise CheckpointError(f"voices cannot be stored: {error}") from error
        # A read-only home is no reason not to speak.
        print(f"WARNING: no voices will be stored: {error}", file=sys.stderr)
        return None


def default_voices_dir() -> Path:
    """In the user's data folder (XDG base directories)."""
    data = os.environ.get("XDG_DATA_HOME")
    return (Path(data) if data else Path.home() / ".local" / "share") / "vivavoce" / "voices"


async def warm_up(engine: Engine) -> None:
    """Speaks one short utterance, so that the first listener does not pay for what happens only once."""
    info = engine.info
    # A model without speakers of its own clones: any embedding is a voice to it.
    clones = not info.speakers and info.embedding_size > 0
    request = SynthesisRequest(
        WARM_UP_TEXT,
        speaker=info.speakers[0] if info.speakers else "",
        reference=VoiceReference(np.zeros(info.embedding_size, np.float32)) if clones else None,
        instructions="A calm voice." if info.task == "voice_design" else "",
        max_frames=WARM_UP_FRAMES,
    )
    await collect(engine.submit(request))
