"""EnginePool: several processes of one model, one a few CPU cores, behind one name."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from vivavoce_engine.batching.admission import Backlog
from vivavoce_engine.config import EngineConfig
from vivavoce_engine.errors import NotServing
from vivavoce_engine.front.interface import EngineStats, SpeechEngine
from vivavoce_engine.front.live import LiveUtterance
from vivavoce_engine.front.stream import AudioStream
from vivavoce_engine.model import Model
from vivavoce_engine.process.engine_process import EngineProcess
from vivavoce_engine.process.remote_voices import remote_voices
from vivavoce_engine.request import SynthesisRequest, UtteranceOptions, VoiceReference
from vivavoce_engine.voices.store import VoiceStore


class EnginePool(SpeechEngine):
    """Each utterance goes where it is heard first. One process that breaks down leaves the others alone."""

    def __init__(
        self,
        model: Model,
        config: EngineConfig,
        workers: int,
        store: VoiceStore | None = None,
        on_demand_s: float | None = None,
    ) -> None:
        rows = replace(config, max_streams=config.max_streams * workers)
        super().__init__(model.info, rows, remote_voices(model, self, store))
        self.engines = [EngineProcess(model, config, None, on_demand_s) for _ in range(workers)]

    @property
    def ready(self) -> bool:
        return any(engine.ready for engine in self.engines)

    @property
    def failed(self) -> bool:
        return all(engine.failed for engine in self.engines)

    @property
    def restarts(self) -> Counter[str]:
        return sum((engine.restarts for engine in self.engines), Counter[str]())

    @property
    def processes(self) -> int:
        return sum(engine.processes for engine in self.engines)

    def start(self) -> None:
        for engine in self.engines:
            engine.begin()
        for engine in self.engines:
            engine.wait_until_started()

    def drain(self) -> None:
        for engine in self.engines:
            engine.drain()

    def stop(self) -> None:
        self.drain()
        for engine in self.engines:
            engine.stop()

    def stats(self) -> EngineStats:
        each = [engine.stats() for engine in self.engines]
        return EngineStats(
            queued=sum(stats.queued for stats in each),
            running=sum(stats.running for stats in each),
            steps=sum(stats.steps for stats in each),
            frames=sum(stats.frames for stats in each),
            step_s=max(stats.step_s for stats in each),
        )

    def check_room(self, max_wait_s: float | None) -> None:
        self._soonest().check_room(max_wait_s)

    def submit(self, request: SynthesisRequest) -> AudioStream:
        return self._soonest().submit(request)

    def open(self, options: UtteranceOptions) -> LiveUtterance:
        return self._soonest().open(options)

    def waiting(self) -> Backlog:
        return Backlog.total(engine.waiting() for engine in self.engines)

    def share_queue(self, engines: Sequence[SpeechEngine]) -> None:
        for engine in self.engines:
            engine.share_queue(engines)

    def encode(self, audio: NDArray[np.float32]) -> VoiceReference:
        """For Voices."""
        return self._soonest().encode(audio)

    def presets(self) -> Mapping[str, NDArray[np.float32]]:
        """For Voices."""
        return self._soonest().presets()

    def _soonest(self) -> EngineProcess:
        """Where the next utterance begins first; of several, one that is loaded, and has most rows free."""
        ready = [engine for engine in self.engines if engine.ready]
        if not ready:
            raise NotServing("the engine is not serving")
        return min(ready, key=lambda engine: (engine.expected_wait_s, not engine.processes, engine.outstanding))
