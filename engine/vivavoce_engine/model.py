"""A model before and after it is loaded. Torch-free."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vivavoce_engine.batching.runner import PromptBuilder, Runner
from vivavoce_engine.checkpoint.files import Checkpoint
from vivavoce_engine.request import ModelInfo
from vivavoce_engine.text.prompt import TextFrontend
from vivavoce_engine.voices.registry import AudioEncoder


@dataclass(frozen=True, slots=True)
class Parts:
    """A loaded model. `presets` are the speakers' embeddings, [hidden] each; `encoder` is there if it clones."""

    runner: Runner
    presets: Mapping[str, NDArray[np.float32]]
    encoder: AudioEncoder | None = None


@dataclass(frozen=True, slots=True)
class Model:
    """What can be told of a model before it is loaded, and how to load it: `load` is called in the engine's process,
    and found there by its name."""

    info: ModelInfo
    text: PromptBuilder
    load: Callable[[], Parts]


def model_info(name: str, checkpoint: Checkpoint, text: TextFrontend) -> ModelInfo:
    """`name` is what clients call it."""
    return ModelInfo(
        name=name,
        task=checkpoint.task,
        speakers=text.speakers,
        languages=text.languages,
        takes_instructions=checkpoint.takes_instructions,
        sampling=checkpoint.sampling,
        max_frames=checkpoint.max_new_tokens,
        sample_rate=checkpoint.codec.sample_rate,
        samples_per_frame=checkpoint.codec.samples_per_frame,
        embedding_size=0 if checkpoint.task == "voice_design" else checkpoint.talker.transformer.hidden_size,
        clones=checkpoint.encoder is not None,
        max_utterance_chars=checkpoint.max_utterance_chars,
    )
