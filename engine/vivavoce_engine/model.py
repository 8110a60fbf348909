"""A model before it is loaded. Torch-free."""

from collections.abc import Callable
from dataclasses import dataclass

from vivavoce_engine.request import ModelInfo
from vivavoce_engine.runner import PromptBuilder
from vivavoce_engine.wire import Parts


@dataclass(frozen=True, slots=True)
class Model:
    """What can be told of a model before it is loaded, and how to load it: `load` is called in the engine's process,
    and found there by its name."""

    info: ModelInfo
    text: PromptBuilder
    load: Callable[[], Parts]
