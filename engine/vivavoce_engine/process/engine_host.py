"""EngineHost: keeps an engine process for several servers' fronts, which speak through it. Torch-free."""

from collections import Counter
from pathlib import Path

from vivavoce_engine.config import EngineConfig
from vivavoce_engine.model import Model
from vivavoce_engine.process.watcher import Phase


class EngineHost:
    """An engine process, watched and restarted, whose utterances belong to other processes: the fronts.

    A front is given `address` and makes a LinkedEngine of it. `folder` is private (`private_folder`); several hosts
    may share it. `on_demand_s` as for EngineProcess: the front's LinkedEngine is given the same.
    """

    def __init__(self, model: Model, config: EngineConfig, folder: Path, on_demand_s: float | None = None) -> None:
        self.address: Path
        """Path of the Unix socket at which fronts ask for the process."""
        raise NotImplementedError

    @property
    def phase(self) -> Phase:
        raise NotImplementedError

    @property
    def failed(self) -> bool:
        raise NotImplementedError

    @property
    def restarts(self) -> Counter[str]:
        raise NotImplementedError

    @property
    def pid(self) -> int | None:
        """Process id, None while there is no process."""
        raise NotImplementedError

    def begin(self) -> None:
        """Starts the process and the address, and does not wait."""
        raise NotImplementedError

    def wait_until_started(self) -> None:
        """Returns when the model is loaded, at once if on demand. Raises EngineError if it cannot be loaded."""
        raise NotImplementedError

    def stop(self) -> None:
        """Ends the process. Utterances of all fronts fail with NotServing."""
        raise NotImplementedError
