"""EnginePool: several processes of one model behind one engine, so that a CPU's cores are shared out among them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vivavoce_engine.batching.line import Line
from vivavoce_engine.config import EngineConfig
from vivavoce_engine.errors import NotServing
from vivavoce_engine.front.answer import SpokenAnswer
from vivavoce_engine.front.interface import EngineStats, SpeechEngine
from vivavoce_engine.front.live import LiveUtterance
from vivavoce_engine.front.stream import AudioStream
from vivavoce_engine.model import Model
from vivavoce_engine.process.engine_process import EngineProcess, LinkedEngine
from vivavoce_engine.process.remote_engine import RemoteEngine
from vivavoce_engine.process.remote_voices import remote_voices
from vivavoce_engine.request import SynthesisRequest, ThinkerPrompt, UtteranceOptions, VoiceReference
from vivavoce_engine.voices.store import VoiceStore


class EnginePool(SpeechEngine):
    """Sends each utterance to the process that can start it first. A process that breaks does not affect the others.

    `config` is for each of the `engines`. Each of them reaches a process, and the pool has the rows of all.
    """

    def __init__(
        self, model: Model, config: EngineConfig, engines: Sequence[RemoteEngine], store: VoiceStore | None = None
    ) -> None:
        assert engines
        super().__init__(model.info, config, remote_voices(model, self, config, store))
        self.engines = engines

    @classmethod
    def of_processes(
        cls,
        model: Model,
        config: EngineConfig,
        workers: int,
        store: VoiceStore | None = None,
        on_demand_s: float | None = None,
    ) -> "EnginePool":
        """A pool with `workers` processes of its own."""
        return cls(model, config, [EngineProcess(model, config, None, on_demand_s) for _ in range(workers)], store)

    @classmethod
    def of_links(
        cls,
        model: Model,
        config: EngineConfig,
        addresses: Sequence[Path],
        store: VoiceStore | None = None,
        on_demand_s: float | None = None,
    ) -> "EnginePool":
        """A front's pool, with the processes of the EngineHosts at these addresses."""
        engines = [LinkedEngine(model, config, address, None, on_demand_s) for address in addresses]
        return cls(model, config, engines, store)

    @property
    def rows(self) -> int:
        return sum(engine.rows for engine in self.engines)

    @property
    def identity(self) -> str:
        """The identity of the processes that have loaded their model. Empty if they differ: any of them may speak."""
        identities = {engine.identity for engine in self.engines if engine.identity or engine.processes}
        return identities.pop() if len(identities) == 1 else ""

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
        self._next_engine().check_room(max_wait_s)

    def submit(self, request: SynthesisRequest) -> AudioStream:
        return self._next_engine().submit(request)

    def open(self, options: UtteranceOptions) -> LiveUtterance:
        return self._next_engine().open(options)

    def open_answer(self, options: UtteranceOptions, prompt: ThinkerPrompt) -> SpokenAnswer:
        return self._next_engine().open_answer(options, prompt)

    def lines(self, but: SpeechEngine | None = None) -> Sequence[Line]:
        return [engine.line for engine in self.engines if engine is not but]

    def share_queue(self, engines: Sequence[SpeechEngine]) -> None:
        for engine in self.engines:
            engine.share_queue(engines)

    def encode(self, audio: NDArray[np.float32]) -> VoiceReference:
        """Encodes a recording for Voices, as EngineProcess.encode."""
        return self._next_engine().encode(audio)

    def fit(self, reference: VoiceReference) -> float | None:
        """The fit of a reference's codes and text for Voices, as EngineProcess.fit."""
        return self._next_engine().fit(reference)

    def presets(self) -> Mapping[str, NDArray[np.float32]]:
        """The preset speakers' embeddings for Voices, as EngineProcess.presets."""
        return self._next_engine().presets()

    def _next_engine(self) -> RemoteEngine:
        """The process with the shortest wait. Among equals, a loaded one; then the one with the fewest utterances."""
        ready = [engine for engine in self.engines if engine.ready]
        if not ready:
            raise NotServing("the engine is not serving")
        return min(ready, key=lambda engine: (engine.expected_wait_s, not engine.processes, engine.load))
