"""Voices of a model that runs in another process. Torch-free.

Names, files and caches are on this side; the other process encodes recordings and knows the preset embeddings.
"""

from collections.abc import Iterator, Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from vivavoce_engine.config import EngineConfig
from vivavoce_engine.model import Model
from vivavoce_engine.request import VoiceReference
from vivavoce_engine.voices.recognizer import recognizer_for
from vivavoce_engine.voices.registry import Voices
from vivavoce_engine.voices.store import VoiceStore


class VoiceSource(Protocol):
    """The process's part of a model's voices. Its methods wait for it, and raise EngineError if it is away."""

    def encode(self, audio: NDArray[np.float32]) -> VoiceReference: ...

    def fit(self, reference: VoiceReference) -> float | None: ...

    def presets(self) -> Mapping[str, NDArray[np.float32]]: ...


class _Presets(Mapping[str, NDArray[np.float32]]):
    """The preset speakers' embeddings, fetched from the process at the first use."""

    def __init__(self, source: VoiceSource) -> None:
        self._source = source

    def __getitem__(self, name: str) -> NDArray[np.float32]:
        return self._source.presets()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._source.presets())

    def __len__(self) -> int:
        return len(self._source.presets())


def remote_voices(model: Model, source: VoiceSource, config: EngineConfig, store: VoiceStore | None) -> Voices:
    """Voices for a model whose process `source` reaches. Raises NoRecognizer as `recognizer_for`."""
    encoder = source if model.info.clones else None
    return Voices(
        model.info, _Presets(source), encoder, store, config.ref_text_check, recognizer_for(config.ref_text_judge)
    )
