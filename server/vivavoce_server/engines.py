"""Creates the engines of all models, and their shared folder of voices, from the settings. Loads no weights."""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from vivavoce_engine import (
    CheckpointError,
    EngineConfig,
    EngineHost,
    EnginePool,
    EngineProcess,
    LinkedEngine,
    Model,
    SpeechEngine,
    Thinker,
    ThinkerConfig,
    ThinkerProcess,
    ThinkerText,
    VoiceStore,
    locate_checkpoint,
    read_model,
)
from vivavoce_engine.fake_runner import fake_chat_model, fake_model
from vivavoce_engine.thinker.fake import FakeThinker

from vivavoce_server.chat.external import ExternalThinker
from vivavoce_server.config import ServerConfig

FAKE_MODEL, FAKE_CHAT_MODEL = "fake", "fake-chat"
MIN_THINKER_STEP_S = 120.0
"""A thinker may read a long conversation in one step, for longer than a step of speech takes."""
NOT_INTELLIGIBLE = re.compile(r"not intelligible", re.IGNORECASE)


def open_engines(config: ServerConfig, engine_config: EngineConfig) -> dict[str, SpeechEngine]:
    """Engines of all checkpoints, not started, by model name. Raises as `read_models`."""
    return engines_of(read_models(config, engine_config), config, engine_config)


def engines_of(
    models: Mapping[str, Model], config: ServerConfig, engine_config: EngineConfig
) -> dict[str, SpeechEngine]:
    """Engines of models, not started, which share one folder of voices. Raises CheckpointError if it cannot be used."""
    store = open_store(config)
    return {name: open_engine(model, config, engine_config, store) for name, model in models.items()}


def read_models(config: ServerConfig, engine_config: EngineConfig) -> dict[str, Model]:
    """The models of all checkpoints, without weights, by the names that clients use.

    Raises:
        CheckpointError: a checkpoint cannot be served, or two have the same name.
    """
    if config.model_name is not None and len(config.model) > 1:
        raise CheckpointError("--model-name names a single model; of several, write each as --model NAME=CHECKPOINT")
    models: dict[str, Model] = {}
    for entry in config.model or (None,):
        name, checkpoint = (None, None) if entry is None else split_entry(entry)
        model = read_named_model(checkpoint, engine_config, identify=config.cache_dir is not None)
        name = name or config.model_name or model.info.name
        if name in models:
            raise CheckpointError(f"two models are named {name!r}; write them as --model NAME=CHECKPOINT")
        models[name] = model
    return models


def open_engine(
    model: Model, config: ServerConfig, engine_config: EngineConfig, store: VoiceStore | None
) -> SpeechEngine:
    """An engine with one process for the model, or a pool of several."""
    if config.workers == 1:
        return EngineProcess(model, engine_config, store, on_demand_s(config))
    return EnginePool.of_processes(model, engine_config, config.workers, store, on_demand_s(config))


def on_demand_s(config: ServerConfig) -> float | None:
    """Seconds without use after which a model is unloaded; None if it is loaded at the start and stays."""
    return config.model_ttl_s if config.load == "on-demand" else None


def open_hosts(
    models: Mapping[str, Model], config: ServerConfig, engine_config: EngineConfig, folder: Path
) -> dict[str, list[EngineHost]]:
    """The processes of all models, not started, for fronts that speak through them. Their sockets are in `folder`."""
    return {
        name: [EngineHost(model, engine_config, folder, on_demand_s(config)) for _ in range(config.workers)]
        for name, model in models.items()
    }


def link_engine(
    model: Model,
    addresses: Sequence[Path],
    config: ServerConfig,
    engine_config: EngineConfig,
    store: VoiceStore | None,
) -> SpeechEngine:
    """A front's engine, whose processes have these addresses."""
    if len(addresses) == 1:
        return LinkedEngine(model, engine_config, addresses[0], store, on_demand_s(config))
    return EnginePool.of_links(model, engine_config, addresses, store, on_demand_s(config))


def open_thinkers(
    config: ServerConfig, engine_config: EngineConfig, engines: Mapping[str, SpeechEngine]
) -> dict[str, Thinker]:
    """Thinkers of the models that chat, not started, by model name. `engines` are those of `open_engines`.

    Raises:
        CheckpointError: a thinker's files cannot be read, or `thinker` is neither `process` nor a URL.
    """
    thinkers: dict[str, Thinker] = {}
    for (name, engine), entry in zip(engines.items(), config.model or ("",), strict=True):
        if engine.info.task == "chat":
            thinkers[name] = _open_thinker(split_entry(entry)[1], config, engine_config)
    return thinkers


def _open_thinker(checkpoint: str, config: ServerConfig, engine_config: EngineConfig) -> Thinker:
    if checkpoint == FAKE_CHAT_MODEL:
        return FakeThinker()
    where = config.thinker
    if where.startswith(("http://", "https://")):
        path = locate_checkpoint(checkpoint)
        key = None if config.thinker_key is None else config.thinker_key.get_secret_value()
        return ExternalThinker(ThinkerText(path), where, config.thinker_model, key, config.thinker_stall_s)
    if where != "process":
        message = "--thinker is `process`, or the URL of a server such as http://localhost:8001/v1"
        raise CheckpointError(f"{message}, not {where!r}")
    settings = ThinkerConfig(
        device=engine_config.device if config.thinker_device == "auto" else config.thinker_device,
        dtype=config.thinker_dtype,
        conversations=config.thinker_conversations,
        max_context=config.thinker_max_context,
        max_step_s=max(MIN_THINKER_STEP_S, engine_config.max_step_s),
    )
    return ThinkerProcess(locate_checkpoint(checkpoint, whole=True), settings)


def split_entry(entry: str) -> tuple[str | None, str]:
    """Splits `name=checkpoint`. A checkpoint alone has no name (None). An existing path is always a checkpoint."""
    name, equals, checkpoint = entry.partition("=")
    if not equals or not name or Path(entry).exists():
        return None, entry
    return name, checkpoint


def read_named_model(checkpoint: str | None, config: EngineConfig, *, identify: bool) -> Model:
    """The model behind an entry: a checkpoint, a fake model, or the shipped voice (None). Raises CheckpointError.

    `identify` as for `read_model`.
    """
    if checkpoint == FAKE_MODEL:
        return fake_model()
    if checkpoint == FAKE_CHAT_MODEL:
        return fake_chat_model()
    if checkpoint is None:
        try:
            import vivavoce_voice
        except ModuleNotFoundError:
            message = "the shipped voice is not installed: pip install vivavoce-voice, or name a checkpoint by --model"
            raise CheckpointError(message) from None
        return read_model(str(vivavoce_voice.CHECKPOINT), config, vivavoce_voice.NAME, identify=identify)
    warn_if_not_intelligible(Path(checkpoint))
    return read_model(checkpoint, config, identify=identify)


def warn_if_not_intelligible(checkpoint: Path) -> None:
    """Repeats the warning in a checkpoint's model card, so that users do not look for the fault elsewhere."""
    card = checkpoint / "MODEL_CARD.md"
    if card.is_file() and NOT_INTELLIGIBLE.search(card.read_text(encoding="utf-8")):
        print(
            "WARNING: this checkpoint does not speak understandable words (its MODEL_CARD.md says so).", file=sys.stderr
        )


def open_store(config: ServerConfig) -> VoiceStore | None:
    """The folder of stored voices, created if it does not exist. None if storing is off or impossible.

    Raises:
        CheckpointError: the folder that the operator named cannot be used.
    """
    if not config.max_voices:
        return None
    try:
        return VoiceStore(config.voices_dir or default_voices_dir(), config.max_voices)
    except (OSError, RuntimeError) as error:  # RuntimeError: the user has no home folder
        if config.voices_dir is not None:
            raise CheckpointError(f"voices cannot be stored: {error}") from error
        # The server can speak without a writable home folder.
        print(f"WARNING: no voices will be stored: {error}", file=sys.stderr)
        return None


def default_voices_dir() -> Path:
    """vivavoce/voices in the user's data folder (XDG base directories)."""
    data = os.environ.get("XDG_DATA_HOME")
    return (Path(data) if data else Path.home() / ".local" / "share") / "vivavoce" / "voices"
