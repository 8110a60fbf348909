"""A model before and after it is loaded. Torch-free."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vivavoce_engine.batching.runner import Frontend, Runner
from vivavoce_engine.checkpoint.files import Checkpoint
from vivavoce_engine.config import EngineConfig
from vivavoce_engine.request import ModelInfo
from vivavoce_engine.text.answer import AnswerFrontend
from vivavoce_engine.text.prompt import TextFrontend
from vivavoce_engine.voices.registry import AudioEncoder


@dataclass(frozen=True, slots=True)
class Parts:
    """A loaded model. `presets` are the speakers' embeddings, [hidden] each. `encoder` is None unless it clones."""

    runner: Runner
    presets: Mapping[str, NDArray[np.float32]]
    encoder: AudioEncoder | None = None
    config: EngineConfig | None = None
    """The settings as loading has settled them, with numbers for `auto`. None if they are those that were asked for."""
    identity: str = ""
    """The identity of its speech; see SpeechEngine."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model before it is loaded: its description, its text frontend, and the function `load` that loads it.

    `load` is called in the engine's process. It has to be a module-level function, which pickle finds by its name.
    """

    info: ModelInfo
    text: Frontend
    load: Callable[[], Parts]


def model_info(name: str, checkpoint: Checkpoint, text: TextFrontend | AnswerFrontend) -> ModelInfo:
    """Describes a checkpoint. `name` is the model's name for clients."""
    return ModelInfo(
        name=name,
        task=checkpoint.task,
        speakers=text.speakers,
        languages=text.languages,
        takes_instructions=checkpoint.takes_instructions,
        sampling=checkpoint.sampling,
        max_frames=checkpoint.max_frames,
        sample_rate=checkpoint.codec.sample_rate,
        samples_per_frame=checkpoint.codec.samples_per_frame,
        embedding_size=0 if checkpoint.task in ("voice_design", "chat") else checkpoint.talker.transformer.hidden_size,
        clones=checkpoint.encoder is not None,
        max_utterance_chars=checkpoint.max_utterance_chars,
        max_context_chars=checkpoint.max_context_chars,
        text=checkpoint.text,
        speaker_infos=checkpoint.speakers,
        word_times=checkpoint.alignment is not None,
        alignment_offset_s=0.0 if checkpoint.alignment is None else checkpoint.alignment.offset_ms / 1000,
    )
