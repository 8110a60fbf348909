"""LinkedEngine: a front's engine, whose process belongs to an EngineHost in another process. Torch-free."""

from pathlib import Path

from vivavoce_engine.config import EngineConfig
from vivavoce_engine.front.front import EngineFront
from vivavoce_engine.model import Model
from vivavoce_engine.voices.store import VoiceStore


class LinkedEngine(EngineFront):
    """An engine behind the `address` of an EngineHost. It is a SpeechEngine with all methods of EngineProcess but `pid`.

    `start` returns once the host has told how its process is: a front can be up, and not ready, while a model loads or
    comes back. `restarts`, `failed` and `processes` are the host's, so each front tells the same. `stats().queued` and
    `running` count the utterances of all fronts; `outstanding` counts this front's.
    """

    def __init__(
        self,
        model: Model,
        config: EngineConfig,
        address: Path,
        store: VoiceStore | None = None,
        on_demand_s: float | None = None,
    ) -> None:
        raise NotImplementedError


# EnginePool becomes: EnginePool.of_processes(model, config, workers, store, on_demand_s) and
# EnginePool.of_links(model, config, addresses: Sequence[Path], store, on_demand_s).
